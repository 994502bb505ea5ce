#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ggml-cpu.h"
#include "ggml-cpp.h"

namespace holdfast {

// A pool of threads: ggml's, for graphs and for our own loops. What several threads ask for is done one
// after another.
class Compute {
  public:
    // cancelled: asked by the calling thread between nodes; once it is true, whatever runs stops and throws
    // Error (interrupted).
    explicit Compute(int threads, std::function<bool()> cancelled = {});
    ~Compute();
    Compute(const Compute&) = delete;
    Compute& operator=(const Compute&) = delete;

    int threads() const { return threads_; }

    void run(ggml_cgraph* graph);

    // task(index, thread) for every index of [0, count), each on whichever thread is free.
    // task must not throw.
    void parallel(int count, const std::function<void(int index, int thread)>& task);

  private:
    void run_locked(ggml_cgraph* graph);

    int threads_;
    std::function<bool()> cancelled_;
    std::mutex mutex_;  // of what follows, while it is at work
    ggml_threadpool* pool_;
    std::vector<std::uint8_t> work_;

    ggml_context_ptr loop_context_;  // the graph of parallel(): one node
    ggml_cgraph* loop_graph_;
    int loop_count_ = 0;
    std::atomic<int> loop_next_{0};
    const std::function<void(int, int)>* loop_task_ = nullptr;
};

}  // namespace holdfast
