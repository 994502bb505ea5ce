#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cpp"
#include "hwy/foreach_target.h"
#include "kernels/panel-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace holdfast {
namespace HWY_NAMESPACE {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// With few rows a page is promoted to fp32 on the fly; with several tiles of rows it pays to do it once.
HWY_INLINE bool PromoteFirst(const AttentionTask& task) {
    return task.rows > kTileRows;
}

// scores [rows, stride] of the slots of one page, cap · tanh(score / cap).
// tanh x = (1 - e) / (1 + e) · sign x with e = exp(-2 |x|).
void CapScores(const AttentionTask& task, float* scores, std::size_t stride) {
    const Floats d;
    const Vector cap = hn::Set(d, task.soft_cap), one = hn::Set(d, 1.0f);
    for (int r = 0; r < task.rows; ++r)
        for (int i = 0; i < page_tokens; i += kLanes) {
            float* at = scores + std::size_t(r) * stride + i;
            const Vector x = hn::Div(hn::LoadU(d, at), cap);
            const Vector e = ExpNonPositive(hn::Mul(hn::Abs(x), hn::Set(d, -2.0f)));
            const Vector magnitude = hn::Div(hn::Sub(one, e), hn::Add(one, e));
            hn::StoreU(hn::Mul(hn::CopySign(magnitude, x), cap), d, at);
        }
}

// scores [rows, stride] of the slots of one page. Few rows are bound by memory: meanwhile the page's values
// are fetched.
HWY_INLINE void ScorePage(const AttentionTask& task, const fp16_t* page, float* scores, std::size_t stride,
                          float* promoted) {
    const std::size_t depth = std::size_t(task.head_dim);
    if (PromoteFirst(task)) {
        Promote(page_keys(page), depth * page_tokens, promoted);
        PanelRows(task.rows, depth, task.query, depth, promoted, page_tokens, scores, stride, false);
    } else {
        OneTile<kTileRows, true>(task.rows, depth, task.query, depth, page_keys(page), page_tokens, scores,
                                 stride, false, page_values(page, task.head_dim));
    }
    if (task.soft_cap > 0) CapScores(task, scores, stride);
}

// output [rows, padded_head_dim] += weights [rows, attention_block] · the first `tokens` values of a page.
// With few rows the keys of the page `next` are fetched meanwhile.
HWY_INLINE void AddValues(const AttentionTask& task, const fp16_t* page, const fp16_t* next,
                          std::size_t tokens, const float* weights, float* output, float* promoted) {
    const int padded = padded_head_dim(task.head_dim);
    const fp16_t* values = page_values(page, task.head_dim);
    const std::size_t row = std::size_t(task.head_dim), stride = std::size_t(padded);
    if (!PromoteFirst(task) && padded == task.head_dim) {
        for (int column = 0; column < padded; column += kPanel)
            OneTile<kTileRows, true>(task.rows, tokens, weights, attention_block, values + column, row,
                                     output + column, stride, true, page_keys(next) + column * page_tokens);
        return;
    }
    if (padded == task.head_dim) {
        Promote(values, tokens * row, promoted);
    } else {
        for (std::size_t t = 0; t < tokens; ++t) {
            for (std::size_t i = 0; i < row; ++i)
                promoted[t * stride + i] = fp16_to_fp32(values[t * row + i]);
            std::fill(promoted + t * stride + row, promoted + (t + 1) * stride, 0.0f);
        }
    }
    for (int column = 0; column < padded; column += kPanel)
        PanelRows(task.rows, tokens, weights, attention_block, promoted + column, stride, output + column,
                  stride, true);
}

// Scores of one row's block → weights exp(score - new maximum), 0 before `first` and from `seen` on; updates
// the row's maximum, sum and output.
HWY_INLINE void AdvanceRow(float* scores, std::uint32_t first, std::uint32_t seen, std::uint32_t columns,
                           float& maximum, float& sum, float* output, int padded) {
    const Floats d;
    if (seen <= first) {
        std::fill(scores, scores + columns, 0.0f);
        return;
    }
    std::fill(scores, scores + first, kNone);
    std::fill(scores + seen, scores + columns, kNone);
    Vector best = hn::LoadU(d, scores);
    for (std::uint32_t i = kLanes; i < columns; i += kLanes) best = hn::Max(best, hn::LoadU(d, scores + i));
    const float now = std::max(maximum, hn::GetLane(hn::MaxOfLanes(d, best)));
    const Vector shift = hn::Set(d, now);
    LaneSum total;
    for (std::uint32_t i = 0; i < columns; i += kLanes) {
        const Vector weight = ExpNonPositive(hn::Sub(hn::LoadU(d, scores + i), shift));
        hn::StoreU(weight, d, scores + i);
        total.Add(int(i / kLanes % (16 / kLanes)), weight);
    }
    if (now != maximum) {
        const float fade = maximum == kNone ? 0.0f : hn::GetLane(ExpNonPositive(hn::Set(d, maximum - now)));
        sum *= fade;
        for (int i = 0; i < padded; i += kLanes)
            hn::StoreU(hn::Mul(hn::LoadU(d, output + i), hn::Set(d, fade)), d, output + i);
        maximum = now;
    }
    sum += total.Total();
}

void Attend(const AttentionTask& task, const AttentionPartial& result, float* workspace) {
    const int padded = padded_head_dim(task.head_dim);
    float* scores = workspace;
    float* promoted = workspace + std::size_t(task.rows) * attention_block;
    std::fill(result.output, result.output + std::size_t(task.rows) * std::size_t(padded), 0.0f);
    std::fill(result.maximum, result.maximum + task.rows, kNone);
    std::fill(result.sum, result.sum + task.rows, 0.0f);
    const std::uint32_t last_page = task.slot_end == 0 ? 0 : (task.slot_end - 1) / page_tokens;

    if (!PromoteFirst(task))  // the keys of the first block; later ones are fetched on the way
        for (std::uint32_t p = task.slot_begin / page_tokens;
             p <= last_page && p < (task.slot_begin + attention_block) / page_tokens; ++p)
            for (int i = 0; i < task.head_dim; ++i) PrefetchLine(page_keys(task.pages[p]) + i * page_tokens);
    for (std::uint32_t begin = task.slot_begin; begin < task.slot_end; begin += attention_block) {
        const std::uint32_t count = std::min(attention_block, task.slot_end - begin);
        const std::uint32_t first = begin / page_tokens;
        const std::uint32_t pages = (count + page_tokens - 1) / page_tokens;
        for (std::uint32_t p = 0; p < pages; ++p)
            ScorePage(task, task.pages[first + p], scores + p * page_tokens, attention_block, promoted);
        for (int r = 0; r < task.rows; ++r) {
            const std::uint32_t visible = task.visible[r];
            const std::uint32_t seen = visible <= begin ? 0 : std::min(count, visible - begin);
            const std::uint32_t from = task.first == nullptr ? 0 : task.first[r];
            const std::uint32_t skipped = from <= begin ? 0 : std::min(count, from - begin);
            AdvanceRow(scores + std::size_t(r) * attention_block, skipped, seen, pages * page_tokens,
                       result.maximum[r], result.sum[r], result.output + std::size_t(r) * std::size_t(padded),
                       padded);
        }
        for (std::uint32_t p = 0; p < pages; ++p)
            AddValues(task, task.pages[first + p],
                      task.pages[std::min(first + p + attention_block / page_tokens, last_page)],
                      std::min<std::size_t>(page_tokens, count - p * page_tokens), scores + p * page_tokens,
                      result.output, promoted);
    }
}

void CombinePartials(std::span<const AttentionPartial> partials, int row, int head_dim, float* output) {
    const Floats d;
    const std::size_t offset = std::size_t(row) * std::size_t(padded_head_dim(head_dim));
    float maximum = kNone;
    for (const AttentionPartial& partial : partials) maximum = std::max(maximum, partial.maximum[row]);
    std::fill(output, output + head_dim, 0.0f);
    float sum = 0;
    for (const AttentionPartial& partial : partials) {
        if (partial.maximum[row] == kNone) continue;
        const float fade = hn::GetLane(ExpNonPositive(hn::Set(d, partial.maximum[row] - maximum)));
        sum += fade * partial.sum[row];
        for (int i = 0; i < head_dim; ++i) output[i] += fade * partial.output[offset + std::size_t(i)];
    }
    for (int i = 0; i < head_dim; ++i) output[i] /= sum;
}

void ScoreSlots(const AttentionTask& task, float* scores, std::size_t stride, float* workspace) {
    for (std::uint32_t slot = task.slot_begin; slot < task.slot_end; slot += page_tokens)
        ScorePage(task, task.pages[slot / page_tokens], scores + slot, stride, workspace);
}

void SoftmaxRow(float* scores, std::uint32_t visible, std::uint32_t count) {
    const Floats d;
    const std::uint32_t whole = visible / 16 * 16;
    Vector best = hn::Set(d, kNone);
    for (std::uint32_t i = 0; i < whole; i += kLanes) best = hn::Max(best, hn::LoadU(d, scores + i));
    float maximum = hn::GetLane(hn::MaxOfLanes(d, best));
    for (std::uint32_t i = whole; i < visible; ++i) maximum = std::max(maximum, scores[i]);
    LaneSum total;
    for (std::uint32_t i = 0; i < whole; i += kLanes) {
        const Vector weight = ExpNonPositive(hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, maximum)));
        hn::StoreU(weight, d, scores + i);
        total.Add(int(i / kLanes % (16 / kLanes)), weight);
    }
    float sum = total.Total();
    for (std::uint32_t i = whole; i < visible; ++i) {
        scores[i] = hn::GetLane(ExpNonPositive(hn::Set(d, scores[i] - maximum)));
        sum += scores[i];
    }
    const float inverse = 1.0f / sum;
    for (std::uint32_t i = 0; i < visible; ++i) scores[i] *= inverse;
    std::fill(scores + visible, scores + count, 0.0f);
}

void StoreToken(fp16_t* page, int slot, int head_dim, const float* key, const float* value) {
    fp16_t* keys = page_keys(page) + slot;
    fp16_t* values = page_values(page, head_dim) + slot * head_dim;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    for (int i = 0; i < head_dim; ++i) keys[i * page_tokens] = fp32_to_fp16(key[i]);
    for (int i = 0; i < head_dim; ++i) values[i] = fp32_to_fp16(value[i]);
#else
    const Floats d;
    const hn::Rebind<hwy::float16_t, Floats> half;
    alignas(64) fp16_t column[kLanes];
    int i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) {
        hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, key + i)), half,
                   reinterpret_cast<hwy::float16_t*>(column));
        for (int j = 0; j < kLanes; ++j) keys[(i + j) * page_tokens] = column[j];
        hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, value + i)), half,
                   reinterpret_cast<hwy::float16_t*>(values + i));
    }
    for (; i < head_dim; ++i) {
        keys[i * page_tokens] = fp32_to_fp16(key[i]);
        values[i] = fp32_to_fp16(value[i]);
    }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace holdfast
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast {

HWY_EXPORT(Attend);
HWY_EXPORT(CombinePartials);
HWY_EXPORT(ScoreSlots);
HWY_EXPORT(SoftmaxRow);
HWY_EXPORT(StoreToken);

void attend(const AttentionTask& task, const AttentionPartial& result, float* workspace) {
    HWY_DYNAMIC_DISPATCH(Attend)(task, result, workspace);
}
void combine_partials(std::span<const AttentionPartial> partials, int row, int head_dim, float* output) {
    HWY_DYNAMIC_DISPATCH(CombinePartials)(partials, row, head_dim, output);
}
void score_slots(const AttentionTask& task, float* scores, std::size_t stride, float* workspace) {
    HWY_DYNAMIC_DISPATCH(ScoreSlots)(task, scores, stride, workspace);
}
void softmax_row(float* scores, std::uint32_t visible, std::uint32_t count) {
    HWY_DYNAMIC_DISPATCH(SoftmaxRow)(scores, visible, count);
}
void store_token(fp16_t* page, int slot, int head_dim, const float* key, const float* value) {
    HWY_DYNAMIC_DISPATCH(StoreToken)(page, slot, head_dim, key, value);
}

}  // namespace holdfast
#endif
