// Compresses a context layer by layer with one method and budget: what to observe while a layer is read,
// and which slots of which heads to keep when it is finished.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "holdfast/budget.hpp"
#include "evict/cascade.hpp"
#include "holdfast/method.hpp"

namespace holdfast {

struct CompressionRequest {
    Method method = Method::full();
    Budget budget;  // not used by a method that keeps everything
};

class Compression {
  public:
    // shape: of the first layer, with the whole context's tokens. head_importance: of a method that
    // needs_profile(), [layers, kv_heads].
    Compression(const Method& method, const Budget& budget, const LayerShape& shape,
                std::span<const double> head_importance = {});

    // What must be observed: the last queries of a layer (0: none), every query.
    std::uint32_t window_queries() const;
    bool watches_queries() const { return scorer_ != nullptr && scorer_->watches_queries(); }
    void begin_layer(const LayerShape& shape);
    void watch(LayerView& layer, const QueryChunk& queries) { scorer_->watch(layer, queries); }

    // Called for every head that loses entries: of this layer, and with a budget over the whole model also
    // of earlier ones. kept: slots, rising, as the head's entries stand before the call.
    using Retain = std::function<void(int layer, int head, std::span<const std::uint32_t> kept)>;
    // Layers come in order.
    void finish_layer(LayerView& layer, const Retain& retain);

    bool keeps_all() const { return kind_ == Kind::keep_all; }
    // Where the budget can't be applied as written, why; otherwise empty.
    const std::string& note() const { return note_; }
    // Scores of the last finished layer, as the allocator saw them [kv_heads, tokens]; empty if nothing was
    // to be chosen. Those of forced tokens mean nothing.
    std::span<const float> scores() const { return scores_; }
    Forced forced() const { return forced_; }

    // Memory beyond what the layers themselves take.
    static std::size_t bytes_for(const Method& method, const Budget& budget, const LayerShape& shape,
                                 int threads);
    // Entries of the whole model that are kept in the end, about: allocations round differently.
    static std::size_t kept_entries(const Method& method, const Budget& budget, const LayerShape& shape);

  private:
    enum class Kind { keep_all, keep_last, choose };

    void decide(const Budget& budget, const LayerShape& shape);
    void score(LayerView& layer);
    void secure_scores(LayerView& layer, const struct CompetingScores& competing);
    void choose_in_layer(LayerView& layer, const Retain& retain);
    void choose_in_model(const LayerShape& shape, const Retain& retain);

    Method method_;
    Kind kind_ = Kind::keep_all;
    std::string note_;
    std::uint32_t tokens_ = 0;
    double tokens_per_head_ = 0;
    std::uint32_t last_ = 0;  // keep_last: tokens of a head
    Forced forced_;
    std::unique_ptr<Scorer> scorer_;
    std::unique_ptr<Allocator> allocator_;
    std::optional<Cascade> cascade_;
    std::vector<float> scores_;
};

}  // namespace holdfast
