// The eviction methods once more, for tests: in double precision, straight from the formulas, with sorts
// instead of selection and everything in memory at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "holdfast/budget.hpp"
#include "holdfast/method.hpp"

namespace holdfast::testing {

using Doubles = std::vector<double>;

// One layer: q [n, H, d] of every query, k and v [Hk, n, d], wo [D, H·d].
struct PlainLayer {
    LayerShape shape;
    int hidden = 0;
    std::vector<float> q, k, v, wo;

    // Attention weights of query `position`, head `head`: [n], 0 where it can't see.
    Doubles attention(int head, std::uint32_t position) const {
        const std::size_t d = std::size_t(shape.head_dim);
        Doubles row(shape.tokens);
        double highest = -INFINITY, sum = 0;
        for (std::uint32_t j = 0; j <= position; ++j) {
            for (std::size_t i = 0; i < d; ++i)
                row[j] += double(q[(position * std::size_t(shape.heads()) + std::size_t(head)) * d + i]) *
                          double(k[shape.at(head / shape.group, j) * d + i]);
            row[j] *= double(shape.scale);
            highest = std::max(highest, row[j]);
        }
        for (std::uint32_t j = 0; j <= position; ++j) sum += row[j] = std::exp(row[j] - highest);
        for (std::uint32_t j = 0; j <= position; ++j) row[j] /= sum;
        return row;
    }

    double norm(int kv_head, std::uint32_t token, ValueNorm kind) const {
        const std::size_t d = std::size_t(shape.head_dim);
        double mean = 0;
        for (int g = 0; g < shape.group; ++g) {
            double absolute = 0, square = 0;
            for (int out = 0; out < hidden; ++out) {
                double sum = 0;
                for (std::size_t i = 0; i < d; ++i)
                    sum += double(v[shape.at(kv_head, token) * d + i]) *
                           double(wo[(std::size_t(out) * std::size_t(shape.heads()) +
                                      std::size_t(kv_head * shape.group + g)) *
                                         d +
                                     i]);
                absolute += std::abs(sum);
                square += sum * sum;
            }
            mean += (kind == ValueNorm::exact ? absolute : std::sqrt(square)) / shape.group;
        }
        return mean;
    }
};

inline Doubles pool(const Doubles& row, int kernel) {
    Doubles pooled(row.size());
    for (int j = 0; j < int(row.size()); ++j)
        for (int i = j - kernel / 2; i <= j + kernel / 2; ++i)
            if (i >= 0 && i < int(row.size())) pooled[std::size_t(j)] += row[std::size_t(i)] / kernel;
    return pooled;
}

// The window's rows: mean and (pooled, rescaled) worst case per token, and the mass on the window.
struct PlainWindow {
    Doubles mean, worst;  // [Hk, n]
    double mass = 0, reference_mass = 0;
};

inline PlainWindow plain_window(const PlainLayer& layer, std::uint32_t window, int kernel) {
    const LayerShape& s = layer.shape;
    PlainWindow result{Doubles(s.entries()), Doubles(s.entries())};
    const std::uint32_t past = s.tokens - window;
    for (int head = 0; head < s.heads(); ++head)
        for (std::uint32_t query = past; query < s.tokens; ++query) {
            Doubles row = layer.attention(head, query);
            for (std::uint32_t j = 0; j < s.tokens; ++j) {
                const double share = row[j] / s.heads() / window;
                if (j >= past) result.mass += share;
                if (j < past && j + window >= past) result.reference_mass += share;
            }
            row.resize(past);
            const Doubles pooled = pool(row, kernel);
            const double before = std::accumulate(row.begin(), row.end(), 0.0),
                         after = std::accumulate(pooled.begin(), pooled.end(), 0.0);
            for (std::uint32_t j = 0; j < past; ++j) {
                const std::size_t at = s.at(head / s.group, j);
                result.mean[at] += row[j] / s.group / window;
                result.worst[at] = std::max(result.worst[at], pooled[j] * (after > 0 ? before / after : 1));
            }
        }
    return result;
}

// Scores [Hk, n] before the allocation. unsure: set where a threshold falls within rounding.
inline Doubles plain_scores(const PlainLayer& layer, const Method& method, double tokens_per_head,
                            Forced forced, bool& unsure) {
    const LayerShape& s = layer.shape;
    const MethodSettings& set = method.settings();
    const std::string& scorer = method.scorer().name;
    const std::size_t d = std::size_t(s.head_dim);
    const std::uint32_t n = s.tokens, begin = forced.first, end = n - forced.last;
    Doubles scores(s.entries());
    const auto length = [&](const std::vector<float>& of, int head, std::uint32_t j) {
        double square = 0;
        for (std::size_t i = 0; i < d; ++i) square += std::pow(double(of[s.at(head, j) * d + i]), 2);
        return std::sqrt(square);
    };
    if (scorer == "snapkv") {
        const PlainWindow window = plain_window(layer, set.window, set.kernel);
        for (int h = 0; h < s.kv_heads; ++h) {
            const auto first = window.mean.begin() + std::ptrdiff_t(s.at(h, 0));
            const Doubles pooled = pool(Doubles(first, first + (n - set.window)), set.kernel);
            for (std::uint32_t j = 0; j < pooled.size(); ++j)
                scores[s.at(h, j)] = method.worst_case() ? window.worst[s.at(h, j)] : pooled[j];
        }
    } else if (scorer == "tova" || scorer == "h2o") {
        const bool all = scorer == "h2o";
        const std::uint32_t first = all ? 0 : n - (method.worst_case() ? set.window : 1);
        Doubles sum(s.entries()), worst(s.entries());
        for (int head = 0; head < s.heads(); ++head)
            for (std::uint32_t query = first; query < n; ++query) {
                const Doubles row = layer.attention(head, query);
                Doubles pooled = row;
                pooled.resize(n - std::min(n, set.window));
                const double before = std::accumulate(pooled.begin(), pooled.end(), 0.0);
                pooled = pool(pooled, set.kernel);
                const double after = std::accumulate(pooled.begin(), pooled.end(), 0.0);
                for (int h = 0; h < s.kv_heads; ++h)
                    if (!all || h == head / s.group)
                        for (std::uint32_t j = 0; j < n; ++j) {
                            sum[s.at(h, j)] += row[j] / (all ? s.group * double(n - j) : s.heads());
                            if (j < pooled.size())
                                worst[s.at(h, j)] =
                                    std::max(worst[s.at(h, j)], pooled[j] * (after > 0 ? before / after : 1));
                        }
            }
        scores = method.worst_case() ? worst : sum;
    } else if (scorer == "knorm") {
        for (int h = 0; h < s.kv_heads; ++h)
            for (std::uint32_t j = 0; j < n; ++j) scores[s.at(h, j)] = -length(layer.k, h, j);
    } else if (scorer == "keydiff") {
        for (int h = 0; h < s.kv_heads; ++h) {
            Doubles mean(d);
            for (std::uint32_t j = 0; j < n; ++j)
                for (std::size_t i = 0; i < d; ++i)
                    mean[i] += layer.k[s.at(h, j) * d + i] / std::max(length(layer.k, h, j), 1e-12) / n;
            double square = 0;
            for (double x : mean) square += x * x;
            for (std::uint32_t j = 0; j < n; ++j) {
                double product = 0;
                for (std::size_t i = 0; i < d; ++i) product += layer.k[s.at(h, j) * d + i] * mean[i];
                scores[s.at(h, j)] =
                    -product / std::max(length(layer.k, h, j), 1e-8) / std::max(std::sqrt(square), 1e-8);
            }
        }
    } else if (scorer == "streaming") {
        for (int h = 0; h < s.kv_heads; ++h)
            for (std::uint32_t j = 0; j < n; ++j)
                scores[s.at(h, j)] = j < set.sinks ? 2.0 * n - j : double(j);
    }
    if (method.aggregation() == Aggregation::defensive)
        for (int h = 0; h < s.kv_heads; ++h) {
            double mean = 0;
            for (std::uint32_t j = begin; j < end; ++j) mean += scores[s.at(h, j)] / (end - begin);
            for (std::uint32_t j = begin; j < end; ++j)
                scores[s.at(h, j)] = std::max(scores[s.at(h, j)], mean);
        }
    if (method.critical() != Critical::mass) return scores;

    double highest = 0;
    for (std::uint32_t j = begin; j < end; ++j) {
        Doubles norms;
        for (int h = 0; h < s.kv_heads; ++h) norms.push_back(layer.norm(h, j, set.vnorm));
        const double total = std::accumulate(norms.begin(), norms.end(), 0.0);
        for (int h = 0; h < s.kv_heads; ++h)
            highest = std::max(highest, scores[s.at(h, j)] *= norms[std::size_t(h)] / total);
    }
    const PlainWindow window = plain_window(layer, set.window, 1);
    const std::int64_t allowed = std::int64_t(std::floor((n - set.window) * tokens_per_head / n + 1e-9));
    const std::int64_t most = std::max<std::int64_t>(0, allowed - forced.count());
    const double threshold = set.mass - (set.reference ? window.reference_mass : window.mass);
    for (int h = 0; h < s.kv_heads; ++h) {
        std::vector<std::uint32_t> order(end - begin);
        std::iota(order.begin(), order.end(), begin);
        std::ranges::stable_sort(
            order, [&](auto a, auto b) { return window.mean[s.at(h, a)] > window.mean[s.at(h, b)]; });
        double total = 0, sum = 0;
        for (std::uint32_t j = 0; j < end; ++j) total += window.mean[s.at(h, j)];
        for (std::uint32_t j = 0; j < begin; ++j) sum += window.mean[s.at(h, j)] / total;
        std::int64_t count = 0;
        for (; count < most && count < std::int64_t(order.size()); ++count) {
            sum += window.mean[s.at(h, order[std::size_t(count)])] / total;
            unsure |= std::abs(sum - threshold) < 1e-5;
            if (sum >= threshold) break;
        }
        // Equal but for rounding on both sides of where the forced ones end.
        if (count > 0 && count < std::int64_t(order.size())) {
            const double last = window.mean[s.at(h, order[std::size_t(count - 1)])],
                         next = window.mean[s.at(h, order[std::size_t(count)])];
            unsure |= last - next < 1e-5 * last;
        }
        for (std::int64_t i = 0; i < count; ++i) scores[s.at(h, order[std::size_t(i)])] = highest;
    }
    return scores;
}

// Indices of the best `count`, by a stable sort: ties go to the lower index.
inline std::vector<std::size_t> plain_best(const Doubles& scores, std::size_t count) {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    order.resize(std::min(count, order.size()));
    return order;
}

struct PlainChoice {
    std::vector<std::vector<bool>> kept;  // [layers · Hk][n]
};

// What is kept of all layers, from their scores (and norms, for the two-stage form) [layers][Hk, n].
// headkv: counts of each head, [layers · Hk].
inline PlainChoice plain_choice(const Method& method, const LayerShape& shape, double tokens_per_head,
                                Forced forced, const std::vector<Doubles>& scores,
                                const std::vector<Doubles>& norms, const std::vector<std::uint32_t>& headkv) {
    const std::uint32_t n = shape.tokens, begin = forced.first, end = n - forced.last;
    const std::size_t kv = std::size_t(shape.kv_heads), layers = std::size_t(shape.layers);
    const std::string& allocator = method.allocator().name;
    const auto floors = [](double x) { return std::size_t(std::floor(x + 1e-9)); };
    PlainChoice choice{std::vector<std::vector<bool>>(layers * kv, std::vector<bool>(n))};
    for (auto& head : choice.kept)
        for (std::uint32_t j = 0; j < n; ++j) head[j] = j < begin || j >= end;
    // The best of several heads together; the best `safe` of each come first.
    const auto together = [&](std::size_t first_head, std::size_t heads, std::size_t total,
                              std::size_t safe) {
        Doubles all;
        for (std::size_t h = first_head; h < first_head + heads; ++h) {
            const double* from = scores[h / kv].data() + (h % kv) * n;
            Doubles head(from + begin, from + end);
            for (std::size_t j : plain_best(head, safe)) head[j] = INFINITY;
            all.insert(all.end(), head.begin(), head.end());
        }
        std::vector<std::size_t> counts(heads, forced.count());
        for (std::size_t i : plain_best(all, total - heads * forced.count())) ++counts[i / (end - begin)];
        return counts;
    };
    const std::size_t needed = forced.count() > 0 ? 0 : 1;
    std::vector<std::size_t> counts(layers * kv);
    std::size_t safeguard = 0;
    const std::size_t even = floors(tokens_per_head);
    if (allocator == "layer") {
        counts = together(0, layers * kv, floors(tokens_per_head * double(layers * kv)), needed);
    } else {
        for (std::size_t l = 0; l < layers; ++l) {
            std::vector<std::size_t> layer(kv, even);
            if (allocator == "ada") {
                safeguard = floors(double(even) * method.settings().alpha);
                const std::size_t safe = std::max(safeguard, needed);
                layer = together(l * kv, kv, even * kv, safe - std::min<std::size_t>(safe, forced.count()));
            } else if (allocator == "joint") {
                layer = together(l * kv, kv, floors(tokens_per_head * double(kv)), needed);
            } else if (allocator == "headkv") {
                for (std::size_t h = 0; h < kv; ++h) layer[h] = headkv[l * kv + h];
                safeguard = floors(tokens_per_head * (1 - 1 / method.settings().pool));
            } else if (allocator == "pyramid") {
                const double w = std::max(1u, forced.count());
                double least = tokens_per_head / method.settings().slope, most = 2 * tokens_per_head - least;
                if (most >= n - w) most = n - w, least = 2 * tokens_per_head - most;
                const bool falls = layers > 1 && n >= most && most >= least && least >= w;
                const double exact =
                    falls ? most - double(l) * (most - least) / double(layers - 1) : tokens_per_head;
                std::fill(layer.begin(), layer.end(), std::size_t(std::nearbyint(exact)));
            }
            std::copy(layer.begin(), layer.end(), counts.begin() + std::ptrdiff_t(l * kv));
        }
    }
    for (std::size_t h = 0; h < layers * kv; ++h) {
        const std::size_t count =
            std::min<std::size_t>(n, std::max<std::size_t>({counts[h], 1, forced.count()}));
        const double* from = scores[h / kv].data() + (h % kv) * n;
        Doubles head(from + begin, from + end);
        if (method.critical() == Critical::two_stage && count < n) {
            const double* norm = norms[h / kv].data() + (h % kv) * n + begin;
            const std::size_t first =
                std::max(safeguard, floors(double(count) * method.settings().first_stage));
            const Doubles plain = head;
            // Rounded to fp32 as the published code computes it.
            for (std::size_t j = 0; j < head.size(); ++j)
                head[j] = double((float(plain[j]) + float(method.settings().epsilon)) * float(norm[j]));
            for (std::size_t j : plain_best(plain, first - std::min<std::size_t>(first, forced.count())))
                head[j] = INFINITY;
        }
        for (std::size_t j : plain_best(head, count - forced.count())) choice.kept[h][begin + j] = true;
    }
    return choice;
}

}  // namespace holdfast::testing
