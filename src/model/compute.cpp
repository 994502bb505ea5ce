#include "model/compute.hpp"

#include "holdfast/error.hpp"

namespace holdfast {

Compute::Compute(int threads, std::function<bool()> cancelled)
    : threads_(threads), cancelled_(std::move(cancelled)) {
    ggml_threadpool_params parameters = ggml_threadpool_params_default(threads);
    pool_ = ggml_threadpool_new(&parameters);
    if (pool_ == nullptr)
        throw Error("cannot start " + std::to_string(threads) + " threads; use fewer with -t");

    loop_context_.reset(
        ggml_init({ggml_tensor_overhead() + ggml_graph_overhead_custom(1, false) + 256, nullptr, false}));
    const auto work = [](ggml_tensor*, int thread, int, void* self) {
        auto& compute = *static_cast<Compute*>(self);
        for (int i; (i = compute.loop_next_.fetch_add(1, std::memory_order_relaxed)) < compute.loop_count_;)
            (*compute.loop_task_)(i, thread);
    };
    ggml_tensor* node = ggml_custom_4d(loop_context_.get(), GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, work,
                                       GGML_N_TASKS_MAX, this);
    loop_graph_ = ggml_new_graph_custom(loop_context_.get(), 1, false);
    ggml_build_forward_expand(loop_graph_, node);
}

Compute::~Compute() {
    ggml_threadpool_free(pool_);
}

void Compute::run(ggml_cgraph* graph) {
    const std::lock_guard lock(mutex_);
    run_locked(graph);
}

void Compute::run_locked(ggml_cgraph* graph) {
    if (cancelled_ && cancelled_()) throw Error("interrupted", Error::Kind::interrupted);
    ggml_cplan plan = ggml_graph_plan(graph, threads_, pool_);
    if (work_.size() < plan.work_size) work_.resize(plan.work_size);
    plan.work_data = work_.data();
    if (cancelled_) {
        plan.abort_callback = [](void* function) {
            return (*static_cast<std::function<bool()>*>(function))();
        };
        plan.abort_callback_data = &cancelled_;
    }
    const ggml_status status = ggml_graph_compute(graph, &plan);
    if (status == GGML_STATUS_ABORTED) throw Error("interrupted", Error::Kind::interrupted);
    if (status != GGML_STATUS_SUCCESS) throw Error(std::string("ggml: ") + ggml_status_to_string(status));
}

void Compute::parallel(int count, const std::function<void(int, int)>& task) {
    const std::lock_guard lock(mutex_);
    loop_count_ = count;
    loop_next_ = 0;
    loop_task_ = &task;
    run_locked(loop_graph_);
}

}  // namespace holdfast
