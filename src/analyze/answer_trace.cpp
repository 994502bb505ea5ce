#include "analyze/answer_trace.hpp"

#include <algorithm>

#include "engine/session.hpp"
#include "kernels/attention.hpp"

namespace holdfast {

AnswerTrace::AnswerTrace(const GgufModel& model, DecoderGraph& decoder, const RaggedCache& context,
                         std::span<const int> tokens, std::function<bool(int)> stop)
    : model_(model),
      decoder_(decoder),
      cache_(context),
      stop_(std::move(stop)),
      context_tokens_(context.next_position()) {
    const HyperParameters& p = model_.parameters();
    first_queries_.resize(std::size_t(p.layers) * std::size_t(p.heads) * std::size_t(p.head_dim));
    take(read_tokens(decoder_, tokens, cache_, p.context_length, {.queries = first_queries_.data()}));
    first_slot_ = cache_.next_position() - 1;
}

// The likeliest next token.
void AnswerTrace::take(std::span<const float> logits) {
    next_ = int(std::max_element(logits.begin(), logits.end()) - logits.begin());
    ended_ = stop_(next_);
}

bool AnswerTrace::advance(int most) {
    const HyperParameters& p = model_.parameters();
    queries_.clear();
    while (!ended_ && int(queries_.size()) < most) {
        if (tokens_.empty()) {  // the first step was read with what came before the answer
            queries_.push_back(std::move(first_queries_));
        } else {
            if (cache_.next_position() >= p.context_length) break;
            std::vector<float> queries(std::size_t(p.layers) * std::size_t(p.heads) *
                                       std::size_t(p.head_dim));
            take(decoder_.run({&next_, 1}, cache_, {.queries = queries.data()}));
            if (ended_) break;
            queries_.push_back(std::move(queries));
        }
        tokens_.push_back(next_);
    }
    return !queries_.empty();
}

const float* AnswerTrace::query(std::size_t step, int layer) const {
    const HyperParameters& p = model_.parameters();
    return queries_.at(step - first_recorded()).data() +
           std::size_t(layer) * std::size_t(p.heads) * std::size_t(p.head_dim);
}

std::vector<float> attention_weights(const GgufModel& model, const AnswerTrace& trace, std::size_t step,
                                     int layer, int kv_head) {
    const HyperParameters& p = model.parameters();
    const std::size_t floats = std::size_t(p.group()) * std::size_t(p.head_dim);
    const float* from = trace.query(step, layer) + std::size_t(kv_head) * floats;
    std::vector<float> queries(from, from + floats);
    for (float& x : queries) x *= p.attention_scale;

    const std::uint32_t slots = trace.slot(step) + 1;
    const std::size_t stride = pages_for(slots) * page_tokens;
    std::vector<float> scores(std::size_t(p.group()) * stride),
        workspace(attention_workspace(p.group(), p.head_dim)), weights;
    AttentionTask task;
    task.rows = p.group();
    task.head_dim = p.head_dim;
    task.query = queries.data();
    task.pages = trace.cache().pages(layer, kv_head);
    task.slot_end = slots;
    task.soft_cap = p.attention_soft_cap;
    score_slots(task, scores.data(), stride, workspace.data());
    weights.reserve(std::size_t(p.group()) * slots);
    for (int g = 0; g < p.group(); ++g) {
        float* row = scores.data() + std::size_t(g) * stride;
        softmax_row(row, slots, slots);
        weights.insert(weights.end(), row, row + slots);
    }
    return weights;
}

}  // namespace holdfast
