#include "evict/compression.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "holdfast/error.hpp"
#include "evict/critical.hpp"
#include "evict/observer.hpp"
#include "evict/selection.hpp"

namespace holdfast {

namespace {

// A context no longer than the forced tokens and this many more leaves nothing worth choosing.
constexpr std::uint32_t too_short_to_choose = 8;

ScorerContext scorer_context(const Method& method) {
    return {method.settings(), method.worst_case(), method.critical() != Critical::none};
}

// Tokens that every head keeps. The worst case and the secured mass are over the past of the window, which
// is kept with them.
Forced forced_tokens(const Method& method, const Scorer& scorer) {
    Forced forced = scorer.forced();
    if (method.worst_case() || method.critical() == Critical::mass)
        forced.last = std::max(forced.last, method.settings().window);
    return forced;
}

std::uint32_t window_queries_of(const Method& method, const Scorer& scorer) {
    return std::max(scorer.window_queries(),
                    method.critical() == Critical::mass ? method.settings().window : 0);
}

// risk = max(risk, mean of the head's competing tokens): no token is safer than the average one. `absent` of
// them aren't there and have score 0.
void raise_to_mean(std::span<float> head, std::size_t absent) {
    const double sum = std::accumulate(head.begin(), head.end(), 0.0);
    const float prior = float(sum / double(std::max<std::size_t>(1, head.size() - absent)));
    for (float& value : head) value = std::max(value, prior);
}

// Gives every token of a head [tokens] that the head no longer has this score; returns how many of those
// that compete, [begin, end), it lacks.
std::size_t set_absent(std::span<float> head, std::span<const std::uint32_t> held, std::uint32_t begin,
                       std::uint32_t end, float score) {
    if (held.empty()) return 0;
    std::size_t absent = 0, next = 0;
    for (std::uint32_t token = 0; token < head.size(); ++token) {
        if (next < held.size() && held[next] == token) {
            ++next;
            continue;
        }
        head[token] = score;
        absent += token >= begin && token < end;
    }
    return absent;
}

}  // namespace

Compression::Compression(const Method& method, const Budget& budget, const LayerShape& shape,
                         std::span<const double> head_importance)
    : method_(method) {
    if (method.keeps_all()) return;
    const MethodSettings& settings = method.settings();
    std::unique_ptr<Scorer> scorer = method.scorer().make(scorer_context(method));
    forced_ = forced_tokens(method, *scorer);
    decide(budget, shape);
    if (kind_ != Kind::choose) return;

    scorer_ = std::move(scorer);
    const std::size_t heads = std::size_t(shape.layers) * std::size_t(shape.kv_heads);
    if (method.whole_model()) {
        cascade_.emplace(std::uint32_t(shape.kv_heads),
                         budget.entries(shape.tokens, heads) - heads * forced_.count());
        return;
    }
    if (method.needs_profile() && head_importance.size() != heads)
        throw Error("headkv needs the importance of " + std::to_string(heads) + " heads, and got " +
                    std::to_string(head_importance.size()));
    allocator_ = method.allocator().make(
        {settings, shape.layers, shape.kv_heads, shape.tokens, tokens_per_head_, forced_, head_importance});
}

void Compression::decide(const Budget& budget, const LayerShape& shape) {
    const std::uint32_t n = shape.tokens, forced = forced_.count();
    const std::size_t heads = std::size_t(shape.layers) * std::size_t(shape.kv_heads);
    const std::size_t entries = budget.entries(n, heads);
    tokens_ = n;
    tokens_per_head_ = budget.tokens_per_head(n);
    if (entries >= std::size_t(n) * heads) return;
    const std::string always = std::to_string(forced) + " tokens that " + method_.name() + " always keeps";
    if (n <= forced + too_short_to_choose) {
        note_ = "kept whole: the context is no longer than the " + always + " and " +
                std::to_string(too_short_to_choose) + " more";
    } else if (tokens_per_head_ < std::max(1u, forced)) {
        kind_ = Kind::keep_last;
        last_ = std::max(1u, std::uint32_t(entries / heads));
        note_ = "the budget is smaller than the " + (forced > 0 ? always : "one token that a head needs") +
                ": each head keeps its last " + std::to_string(last_);
    } else {
        kind_ = Kind::choose;
    }
}

std::uint32_t Compression::window_queries() const {
    if (kind_ != Kind::choose) return 0;
    return std::min(tokens_, window_queries_of(method_, *scorer_));
}

void Compression::begin_layer(const LayerShape& shape) {
    if (scorer_) scorer_->begin_layer(shape);
}

void Compression::finish_layer(LayerView& layer, const Retain& retain) {
    const LayerShape& shape = layer.shape();
    if (kind_ == Kind::keep_last)
        for (int h = 0; h < shape.kv_heads; ++h) {
            std::vector<std::uint32_t> slots(last_);
            std::iota(slots.begin(), slots.end(), shape.tokens - last_);
            retain(shape.layer, h, slots);
        }
    if (kind_ != Kind::choose) return;
    score(layer);
    if (cascade_)
        choose_in_model(shape, retain);
    else
        choose_in_layer(layer, retain);
}

void Compression::score(LayerView& layer) {
    const LayerShape& shape = layer.shape();
    scores_.resize(shape.entries());
    if (method_.worst_case())
        scorer_->worst_case(layer, scores_);
    else
        scorer_->score(layer, scores_);
    const CompetingScores competing{scores_, shape.kv_heads, shape.tokens, forced_.first,
                                    shape.tokens - forced_.last};
    for (int h = 0; h < shape.kv_heads; ++h) {
        const std::size_t absent = set_absent(std::span(scores_).subspan(shape.at(h, 0), shape.tokens),
                                              layer.held(h), competing.begin, competing.end, 0);
        for (float score : competing.head(h))
            if (!std::isfinite(score))
                throw Error("the scorer '" + method_.scorer().name + "' gave a token the score " +
                            std::to_string(score));
        if (method_.aggregation() == Aggregation::defensive) raise_to_mean(competing.head(h), absent);
    }
    if (method_.critical() == Critical::mass) secure_scores(layer, competing);
    for (int h = 0; h < shape.kv_heads; ++h)  // nobody chooses what isn't there
        set_absent(std::span(scores_).subspan(shape.at(h, 0), shape.tokens), layer.held(h), 0, 0,
                   std::numeric_limits<float>::lowest());
}

void Compression::secure_scores(LayerView& layer, const CompetingScores& competing) {
    const LayerShape& shape = layer.shape();
    const MethodSettings& settings = method_.settings();
    weigh_by_norms(competing, layer.value_norms(settings.vnorm));
    const WindowSummary& window = layer.window(settings.window, settings.kernel);
    const double n = shape.tokens, past = n - settings.window;
    const std::size_t allowed = floor_count(past * tokens_per_head_ / n);  // ⌊(n - w)ρ⌋
    secure_mass(competing, window.mean,
                settings.mass - (settings.reference ? window.reference_mass : window.mass),
                allowed - std::min<std::size_t>(allowed, forced_.count()));
}

void Compression::choose_in_layer(LayerView& layer, const Retain& retain) {
    const LayerShape& shape = layer.shape();
    const MethodSettings& settings = method_.settings();
    const std::uint32_t begin = forced_.first, end = shape.tokens - forced_.last, forced = forced_.count();
    Allocation allocation = allocator_->allocate({shape, tokens_per_head_, forced_, scores_});
    if (allocation.tokens.size() != std::size_t(shape.kv_heads))
        throw Error("the allocator '" + method_.allocator().name + "' gave " +
                    std::to_string(allocation.tokens.size()) + " numbers for " +
                    std::to_string(shape.kv_heads) + " KV heads");
    for (int h = 0; h < shape.kv_heads; ++h) {
        const std::uint32_t count =
            std::clamp(allocation.tokens[std::size_t(h)], std::max(1u, forced), shape.tokens);
        if (count == shape.tokens) continue;
        const std::span<const float> scores =
            std::span<const float>(scores_).subspan(shape.at(h, begin), end - begin);
        std::vector<std::uint32_t> chosen;
        if (method_.critical() == Critical::two_stage) {
            const auto first = std::max<std::uint32_t>(
                allocation.safeguard, std::uint32_t(floor_count(count * settings.first_stage)));
            chosen = select_in_two_stages(
                scores, layer.value_norms(settings.vnorm).subspan(shape.at(h, begin), end - begin),
                count - forced, first - std::min(first, forced), settings.epsilon);
        } else {
            chosen = best_tokens(scores, count - forced);
        }
        std::vector<std::uint32_t> slots(begin);
        std::iota(slots.begin(), slots.end(), 0u);
        for (std::uint32_t j : chosen) slots.push_back(begin + j);
        for (std::uint32_t j = end; j < shape.tokens; ++j) slots.push_back(j);
        retain(shape.layer, h, slots);
    }
}

void Compression::choose_in_model(const LayerShape& shape, const Retain& retain) {
    const std::uint32_t begin = forced_.first, end = shape.tokens - forced_.last;
    std::vector<float> competing;
    for (int h = 0; h < shape.kv_heads; ++h) {
        const auto head = std::span<const float>(scores_).subspan(shape.at(h, begin), end - begin);
        const std::size_t at = competing.size();
        competing.insert(competing.end(), head.begin(), head.end());
        if (forced_.count() == 0)  // no head stays empty
            competing[at + best_tokens(head, 1).front()] = std::numeric_limits<float>::infinity();
    }
    cascade_->add_layer(competing, [&](std::uint32_t l, std::uint32_t h, std::span<const std::uint32_t> kept,
                                       std::uint32_t before) {
        std::vector<std::uint32_t> slots(begin);
        std::iota(slots.begin(), slots.end(), 0u);
        for (std::uint32_t slot : kept) slots.push_back(begin + slot);
        for (std::uint32_t i = 0; i < forced_.last; ++i) slots.push_back(begin + before + i);
        retain(int(l), int(h), slots);
    });
}

std::size_t Compression::bytes_for(const Method& method, const Budget& budget, const LayerShape& shape,
                                   int threads) {
    if (method.keeps_all()) return 0;
    const std::unique_ptr<Scorer> scorer = method.scorer().make(scorer_context(method));
    // Scores, and copies of them in choosing.
    std::size_t bytes = 3 * shape.entries() * sizeof(float) + scorer->bytes(shape);
    if (const std::uint32_t window = window_queries_of(method, *scorer); window > 0)
        bytes += Observer::bytes_for(shape, std::min(window, shape.tokens), threads);
    if (scorer->watches_queries()) bytes += Observer::watching_bytes_for(shape, threads);
    if (method.whole_model())  // the scores of what is kept, once more while the next border is found
        bytes += 2 * sizeof(float) * kept_entries(method, budget, shape);
    return bytes;
}

std::size_t Compression::kept_entries(const Method& method, const Budget& budget, const LayerShape& shape) {
    const std::size_t heads = std::size_t(shape.layers) * std::size_t(shape.kv_heads);
    if (method.keeps_all()) return heads * shape.tokens;
    const Forced forced = forced_tokens(method, *method.scorer().make(scorer_context(method)));
    if (shape.tokens <= forced.count() + too_short_to_choose) return heads * shape.tokens;
    return std::max(heads, budget.entries(shape.tokens, heads));
}

}  // namespace holdfast
