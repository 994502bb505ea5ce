#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "ggml-cpu.h"
#include "ggml-cpp.h"

namespace holdfast {

// The one pool of threads: ggml's, for graphs and for our own loops.
class Compute {
  public:
    // cancel: when set, whatever runs stops within a node's time and throws Error (interrupted).
    explicit Compute(int threads, const std::atomic<bool>* cancel = nullptr);
    ~Compute();
    Compute(const Compute&) = delete;
    Compute& operator=(const Compute&) = delete;

    int threads() const { return threads_; }

    void run(ggml_cgraph* graph);

    // task(index, thread) for every index of [0, count), each on whichever thread is free.
    // task must not throw.
    void parallel(int count, const std::function<void(int index, int thread)>& task);

  private:
    int threads_;
    const std::atomic<bool>* cancel_;
    ggml_threadpool* pool_;
    std::vector<std::uint8_t> work_;

    ggml_context_ptr loop_context_;  // the graph of parallel(): one node
    ggml_cgraph* loop_graph_;
    int loop_count_ = 0;
    std::atomic<int> loop_next_{0};
    const std::function<void(int, int)>* loop_task_ = nullptr;
};

}  // namespace holdfast
