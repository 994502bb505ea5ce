#include "evict/observer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/clock.hpp"
#include "holdfast/error.hpp"
#include "evict/window_attention.hpp"
#include "kernels/attention.hpp"
#include "kernels/vnorm.hpp"

namespace holdfast {

namespace {

constexpr std::uint32_t columns_of_task = 1024;
constexpr int watched_rows = 96;  // queries of a KV head's group that are watched together
// Of attention weights at a time, unless those of one query head are more.
constexpr std::size_t most_window_bytes = 2 << 20;

std::size_t row_stride(std::uint32_t tokens) {
    return pages_for(tokens) * page_tokens;
}

// Query heads of a KV head whose windows are summarized together.
int heads_at_once(const LayerShape& s, std::uint32_t queries) {
    const std::size_t each = queries * row_stride(s.tokens) * sizeof(float);
    const auto fit = int(std::clamp<std::size_t>(most_window_bytes / each, 1, std::size_t(s.group)));
    const int passes = (s.group + fit - 1) / fit;
    return (s.group + passes - 1) / passes;
}

constexpr std::size_t norms_workspace(int head_dim) {
    return std::size_t(2) * page_tokens * std::size_t(padded_head_dim(head_dim));
}

int tasks_for(std::uint32_t columns) {
    return int((columns + columns_of_task - 1) / columns_of_task);
}

// row[slot] goes to row[positions[slot]]; the rest of the row becomes `absent`.
void spread(std::span<float> row, std::span<const std::uint32_t> positions, float absent) {
    std::size_t slot = positions.size();
    for (std::size_t token = row.size(); token-- > 0;)
        row[token] = slot > 0 && positions[slot - 1] == token ? row[--slot] : absent;
}

}  // namespace

void Observer::show(ObservedLayer layer) {
    layer_ = std::move(layer);
    windows_.clear();
    norms_.clear();
}

std::uint32_t Observer::slots_of(int head) const {
    return layer_.positions.empty() ? layer_.shape.tokens
                                    : std::uint32_t(layer_.positions[std::size_t(head)].size());
}

std::uint32_t Observer::slot_of(int head, std::uint32_t token) const {
    if (layer_.positions.empty()) return token;
    const auto positions = layer_.positions[std::size_t(head)];
    const auto at = std::ranges::lower_bound(positions, token);
    return at != positions.end() && *at == token ? std::uint32_t(at - positions.begin()) : slots_of(head);
}

void Observer::read_key(int head, std::uint32_t token, std::span<float> to) const {
    const std::uint32_t slot = slot_of(head, token);
    if (slot == slots_of(head)) {
        std::ranges::fill(to, 0.0f);
        return;
    }
    const fp16_t* keys = page_keys(layer_.pages[std::size_t(head)][slot / page_tokens]);
    for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = fp16_to_fp32(keys[i * page_tokens + slot % page_tokens]);
}

void Observer::read_value(int head, std::uint32_t token, std::span<float> to) const {
    const std::uint32_t slot = slot_of(head, token);
    if (slot == slots_of(head)) {
        std::ranges::fill(to, 0.0f);
        return;
    }
    const int head_dim = layer_.shape.head_dim;
    const fp16_t* values = page_values(layer_.pages[std::size_t(head)][slot / page_tokens], head_dim) +
                           slot % page_tokens * std::size_t(head_dim);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = fp16_to_fp32(values[i]);
}

void Observer::reserve(int rows) {
    const LayerShape& s = layer_.shape;
    weights_.reserve(std::size_t(rows) * row_stride(s.tokens) * sizeof(float));
    queries_.reserve(std::size_t(rows) * std::size_t(s.head_dim) * sizeof(float));
    workspaces_.reserve(attention_workspace(rows, s.head_dim) * std::size_t(threads_) * sizeof(float));
}

float* Observer::workspace(int thread, int rows) const {
    return workspaces_.as<float>() + std::size_t(thread) * attention_workspace(rows, layer_.shape.head_dim);
}

void Observer::attend(int head, int rows, std::uint32_t slots,
                      const std::function<std::uint32_t(int)>& visible) {
    const std::size_t stride = row_stride(layer_.shape.tokens);
    parallel_(tasks_for(slots), [&](int index, int thread) {
        AttentionTask task;
        task.rows = rows;
        task.head_dim = layer_.shape.head_dim;
        task.query = queries_.as<float>();
        task.pages = layer_.pages[std::size_t(head)];
        task.soft_cap = layer_.shape.soft_cap;
        task.slot_begin = std::uint32_t(index) * columns_of_task;
        task.slot_end = std::min(slots, task.slot_begin + columns_of_task);
        score_slots(task, weights_.as<float>(), stride, workspace(thread, rows));
    });
    parallel_(rows, [&](int r, int) {
        softmax_row(weights_.as<float>() + std::size_t(r) * stride, visible(r), slots);
    });
}

void Observer::borrow(Cost& cost) {
    if (cost.user != user_) borrowed_seconds_ += cost.seconds;
    cost.user = user_;
}

const WindowSummary& Observer::window(std::uint32_t queries, int kernel) {
    for (Window& known : windows_)
        if (known.queries == queries && known.kernel == kernel) {
            borrow(known.cost);
            return known.summary;
        }
    if (queries == 0 || queries > layer_.window || kernel < 1 || kernel % 2 == 0)
        throw Error("a window of " + std::to_string(queries) + " queries, pooled over " +
                    std::to_string(kernel) + ", was asked for, and " + std::to_string(layer_.window) +
                    " queries are there: a scorer says in window_queries() how many it needs");
    const Stopwatch watch;
    const LayerShape& s = layer_.shape;
    Window& window = windows_.emplace_back(Window{queries, kernel, {}, {}});
    window.summary.mean.resize(s.entries());
    window.summary.worst.resize(s.entries());
    reserve(heads_at_once(s, queries) * int(queries));
    for (int head = 0; head < s.kv_heads; ++head) summarize(head, window);
    window.cost = {user_, watch.seconds()};
    return window.summary;
}

void Observer::summarize(int head, Window& window) {
    const LayerShape& s = layer_.shape;
    const int step = heads_at_once(s, window.queries);
    for (int first = 0; first < s.group; first += step)
        summarize(head, first, std::min(step, s.group - first), window);
    const std::uint32_t slots = slots_of(head), past = slots - window.queries;
    const std::span<float> mean = std::span(window.summary.mean).subspan(s.at(head, 0), s.tokens);
    for (float& x : mean.first(past)) x /= float(std::uint32_t(s.group) * window.queries);
    if (slots < s.tokens)
        for (std::vector<float>* row : {&window.summary.worst, &window.summary.mean})
            spread(std::span(*row).subspan(s.at(head, 0), s.tokens),
                   layer_.positions[std::size_t(head)].first(past), 0);
}

void Observer::summarize(int head, int first, int count, Window& window) {
    const LayerShape& s = layer_.shape;
    const int queries = int(window.queries), rows = count * queries;
    const std::uint32_t past = slots_of(head) - window.queries;
    for (int r = 0; r < rows; ++r) {
        const int query_head = head * s.group + first + r / queries, skipped = int(layer_.window) - queries;
        const float* from = layer_.window_queries +
                            (std::size_t(query_head) * layer_.window + std::size_t(skipped + r % queries)) *
                                std::size_t(s.head_dim);
        float* to = queries_.as<float>() + std::size_t(r) * std::size_t(s.head_dim);
        for (int i = 0; i < s.head_dim; ++i) to[i] = from[i] * s.scale;
    }
    attend(head, rows, slots_of(head), [&](int r) { return past + std::uint32_t(r % queries) + 1; });

    const WindowAttention attention{weights_.as<float>(), row_stride(s.tokens), rows, past, window.queries};
    rescale_.resize(std::size_t(rows));
    parallel_(rows, [&](int r, int) {
        rescale_[std::size_t(r)] = pooled_rescale(attention.row(r).first(past), window.kernel);
    });
    parallel_(tasks_for(past), [&](int index, int) {
        const std::uint32_t begin = std::uint32_t(index) * columns_of_task;
        reduce_columns(attention, rescale_, window.kernel, begin, std::min(past, begin + columns_of_task),
                       window.summary.worst.data() + s.at(head, 0),
                       window.summary.mean.data() + s.at(head, 0));
    });
    const double share = double(count) / s.group / s.kv_heads;
    window.summary.mass += window_mass(attention, false) * share;
    window.summary.reference_mass += window_mass(attention, true) * share;
}

void Observer::for_each_block(const QueryChunk& chunk,
                              const std::function<void(int head, int rows, std::uint32_t slots)>& use) {
    const LayerShape& s = layer_.shape;
    const std::size_t width = std::size_t(s.head_dim);
    const auto block = std::uint32_t(std::max(1, watched_rows / s.group));
    reserve(int(block) * s.group);
    for (std::uint32_t first = 0; first < chunk.count; first += block)
        for (int head = 0; head < s.kv_heads; ++head) {
            // Rows: token by token, then the group's heads, so that no sum depends on the blocks.
            const int rows = int(std::min(block, chunk.count - first)) * s.group;
            for (int r = 0; r < rows; ++r) {
                const std::size_t token = first + std::uint32_t(r / s.group);
                const float* from =
                    chunk.queries +
                    (token * std::size_t(s.heads()) + std::size_t(head * s.group + r % s.group)) * width;
                float* to = queries_.as<float>() + std::size_t(r) * width;
                for (std::size_t i = 0; i < width; ++i) to[i] = from[i] * s.scale;
            }
            const auto visible = [&](int r) {
                return chunk.first_position + first + std::uint32_t(r / s.group) + 1;
            };
            attend(head, rows, visible(rows - 1), visible);
            use(head, rows, visible(rows - 1));
        }
}

void Observer::refuse_watching() const {
    if (!layer_.positions.empty())
        throw Error("queries of the context can be watched while it is read, not in a second compression");
}

void Observer::add_attention(const QueryChunk& chunk, std::span<double> sum) {
    refuse_watching();
    const LayerShape& s = layer_.shape;
    const std::size_t stride = row_stride(s.tokens);
    for_each_block(chunk, [&](int head, int rows, std::uint32_t slots) {
        parallel_(tasks_for(slots), [&](int index, int) {
            const std::uint32_t begin = std::uint32_t(index) * columns_of_task;
            const std::uint32_t end = std::min(slots, begin + columns_of_task);
            double* sums = sum.data() + s.at(head, 0);
            for (int r = 0; r < rows; ++r) {
                const float* row = weights_.as<float>() + std::size_t(r) * stride;
                for (std::uint32_t j = begin; j < end; ++j) sums[j] += double(row[j]) / s.group;
            }
        });
    });
}

void Observer::raise_attention(const QueryChunk& chunk, std::uint32_t window, int kernel,
                               std::span<float> worst) {
    refuse_watching();
    const LayerShape& s = layer_.shape;
    const std::size_t stride = row_stride(s.tokens);
    const std::uint32_t past = s.tokens - std::min(s.tokens, window);
    std::vector<float> sums(past);  // nobody asks for them
    for_each_block(chunk, [&](int head, int rows, std::uint32_t slots) {
        for (int r = 0; r < rows; ++r)  // what the rows can't see yet
            std::fill(weights_.as<float>() + std::size_t(r) * stride + slots,
                      weights_.as<float>() + std::size_t(r) * stride + s.tokens, 0.0f);
        const WindowAttention attention{weights_.as<float>(), stride, rows, past, s.tokens - past};
        rescale_.resize(std::size_t(rows));
        parallel_(rows, [&](int r, int) {
            rescale_[std::size_t(r)] = pooled_rescale(attention.row(r).first(past), kernel);
        });
        parallel_(tasks_for(past), [&](int index, int) {
            const std::uint32_t begin = std::uint32_t(index) * columns_of_task;
            const std::uint32_t end = std::min(past, begin + columns_of_task);
            reduce_columns(attention, rescale_, kernel, begin, end, worst.data() + s.at(head, 0),
                           sums.data());
        });
    });
}

std::span<const float> Observer::value_norms(ValueNorm kind) {
    const LayerShape& s = layer_.shape;
    if (!norms_.empty() && norms_kind_ == kind) {
        borrow(norms_cost_);
        return norms_;
    }
    const Stopwatch watch;
    if (kind == ValueNorm::exact ? !layer_.output : layer_.grams.empty())
        throw Error(kind == ValueNorm::exact
                        ? "norms of values are at hand when the whole layer is there, not while it is read"
                        : "gram norms are at hand with methods that have critical and vnorm=gram");
    const PackedMatrix output = kind == ValueNorm::exact ? layer_.output() : PackedMatrix();
    norms_kind_ = kind;
    norms_.assign(s.entries(), 0.0f);
    const std::size_t workspace = norms_workspace(s.head_dim);
    workspaces_.reserve(workspace * std::size_t(threads_) * sizeof(float));
    const int pages = int(pages_for(s.tokens));
    parallel_(pages * s.kv_heads, [&](int index, int thread) {
        const int head = index / pages, page = index % pages;
        const std::uint32_t begin = std::uint32_t(page) * page_tokens;
        if (begin >= slots_of(head)) return;
        const int tokens = int(std::min<std::uint32_t>(page_tokens, slots_of(head) - begin));
        float* norms = norms_.data() + s.at(head, begin);
        float* own = workspaces_.as<float>() + std::size_t(thread) * workspace;
        if (kind == ValueNorm::exact)
            projected_value_norms(layer_.pages[std::size_t(head)][page], tokens, s.head_dim, output,
                                  head * s.group, s.group, norms, own);
        else
            gram_value_norms(layer_.pages[std::size_t(head)][page], tokens, s.head_dim,
                             layer_.grams.subspan(std::size_t(head * s.group), std::size_t(s.group)), norms,
                             own);
    });
    for (float norm : norms_)
        if (!std::isfinite(norm)) {
            norms_.clear();
            throw Error("a value of layer " + std::to_string(s.layer) +
                        " is too large for fp16: this model's cache can't be scored by norms");
        }
    // What a head no longer has counts with the head's mean, where tokens' norms are compared between heads.
    for (int h = 0; h < s.kv_heads && !layer_.positions.empty(); ++h) {
        const auto head = std::span(norms_).subspan(s.at(h, 0), s.tokens);
        const auto there = head.first(slots_of(h));
        const double sum = std::accumulate(there.begin(), there.end(), 0.0);
        spread(head, held(h), float(sum / double(std::max<std::size_t>(1, there.size()))));
    }
    norms_cost_ = {user_, watch.seconds()};
    return norms_;
}

namespace {

std::size_t bytes_of_rows(const LayerShape& s, std::size_t rows, int threads) {
    return sizeof(float) * (rows * (row_stride(s.tokens) + std::size_t(s.head_dim)) +
                            attention_workspace(int(rows), s.head_dim) * std::size_t(threads));
}

}  // namespace

std::size_t Observer::bytes_for(const LayerShape& s, std::uint32_t window, int threads) {
    const std::size_t results = 3 * s.entries() * sizeof(float);  // mean, worst, norms
    return results + bytes_of_rows(s, std::size_t(heads_at_once(s, window)) * window, threads);
}

std::size_t Observer::watching_bytes_for(const LayerShape& s, int threads) {
    return bytes_of_rows(s, std::size_t(std::max(s.group, watched_rows)), threads);
}

}  // namespace holdfast
