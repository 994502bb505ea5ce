// Eviction methods: which entries of a context's KV cache are kept.
//
// A method is a scorer, an aggregation, a refinement and an allocation of the budget. Each has a name, and
// names are joined with "+": "snapkv+critical+ada". Scorers and allocators of one's own join in by
// registering a name. docs/methods/ has a page for each part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/export.h"

namespace holdfast {

// Rotary embedding of queries and keys: pair i of a head is turned by position · frequencies[i], then
// multiplied by `magnitude`. Dimensions behind the last pair stay as they are.
struct Rotation {
    std::vector<double> frequencies;  // radians a position
    bool neighbours = false;          // pairs are (2i, 2i + 1) rather than (i, i + number of pairs)
    double magnitude = 1;
};

struct LayerShape {
    int layer = 0, layers = 0;
    int kv_heads = 0;
    int group = 0;  // query heads of a KV head
    int head_dim = 0;
    std::uint32_t tokens = 0;  // n: of the context, whatever was read of it so far
    float scale = 1;           // of query · key
    float soft_cap = 0;        // scores become cap · tanh(score / cap); 0: as they are
    const Rotation* rotation = nullptr;

    int heads() const { return kv_heads * group; }
    std::size_t entries() const { return std::size_t(kv_heads) * tokens; }
    std::size_t at(int head, std::uint32_t token) const {
        return std::size_t(head) * tokens + token;
    }  // in arrays [kv_heads, tokens]
};

// Consecutive queries of a layer, after rotation.
struct QueryChunk {
    std::uint32_t first_position = 0;
    std::uint32_t count = 0;
    const float* queries = nullptr;  // [count, heads, head_dim]
};

// What the last queries of a layer paid attention to. The window is their own positions, the past all
// before them. [kv_heads, tokens] each, 0 in the window.
struct WindowSummary {
    std::vector<float> mean;    // of a token's attention weights, over the group's heads and the queries
    std::vector<float> worst;   // their maximum, each query's row pooled first and rescaled to its sum
    double mass = 0;            // mean attention on the window itself
    double reference_mass = 0;  // the same over the columns that DefensiveKV's published code sums
};

enum class ValueNorm { exact, gram };

// A layer of a context: the same tokens in every KV head. In a second compression heads lack what was evicted
// before: such keys and values read as zeros, their attention is 0, and their importance is ignored.
class HOLDFAST_API LayerView {
  public:
    virtual ~LayerView() = default;

    virtual const LayerShape& shape() const = 0;
    // Tokens that the head still has, rising; empty: all of them.
    virtual std::span<const std::uint32_t> held(int /*head*/) const { return {}; }
    virtual void read_key(int head, std::uint32_t token, std::span<float> to) const = 0;  // after rotation
    virtual void read_value(int head, std::uint32_t token, std::span<float> to) const = 0;

    // Of the last `queries` queries, no more than the scorer's window_queries(); kernel: tokens that are
    // averaged by pooling, odd.
    virtual const WindowSummary& window(std::uint32_t queries, int kernel) = 0;
    // [kv_heads, tokens]: mean over the group's heads h of ‖v W_h‖, of L1 (exact) or L2 (gram) norms; W_h is
    // the head's slice of the output projection.
    virtual std::span<const float> value_norms(ValueNorm kind) = 0;
    // sum [kv_heads, tokens] += the queries' attention weights, mean over the group's heads.
    virtual void add_attention(const QueryChunk& queries, std::span<double> sum) = 0;
    // worst [kv_heads, tokens] = max of itself and the queries' attention weights, each row pooled over the
    // past of the last `window` tokens and rescaled to its sum.
    virtual void raise_attention(const QueryChunk& queries, std::uint32_t window, int kernel,
                                 std::span<float> worst) = 0;

    // task(index, thread) for every index of [0, count), spread over threads. task must not throw.
    virtual void parallel(int count, const std::function<void(int index, int thread)>& task) = 0;
};

// Tokens that every KV head keeps whatever their score.
struct Forced {
    std::uint32_t first = 0, last = 0;
    std::uint32_t count() const { return first + last; }
};

// Gives every token of a layer an importance. One object serves all layers, one after another.
class HOLDFAST_API Scorer {
  public:
    virtual ~Scorer() = default;
    virtual Forced forced() const { return {}; }
    // importance [kv_heads, tokens]: finite, the higher the sooner kept. What stands at forced tokens is
    // ignored.
    virtual void score(LayerView& layer, std::span<float> importance) = 0;
    // The same by the worst case over queries instead of their mean, for scorers that see queries.
    virtual void worst_case(LayerView& layer, std::span<float> risk);

    // Last queries whose attention it asks the layer for, at most.
    virtual std::uint32_t window_queries() const { return 0; }
    // A scorer that watches every query of the context gets them while the layer is read, in order: keys up
    // to the chunk's end are there.
    virtual bool watches_queries() const { return false; }
    virtual void begin_layer(const LayerShape&) {}
    virtual void watch(LayerView&, const QueryChunk&) {}

    // Memory that it holds beyond the layer's scores.
    virtual std::size_t bytes(const LayerShape&) const { return 0; }
};

// What an allocator decides from.
struct LayerScores {
    const LayerShape& shape;
    double tokens_per_head = 0;  // n·ρ: the budget's kept tokens of a KV head on average
    Forced forced;
    std::span<const float> scores;  // [kv_heads, tokens]; the lowest float where a head lacks the token
};

struct Allocation {
    std::vector<std::uint32_t> tokens;  // [kv_heads]: kept, forced ones among them
    std::uint32_t safeguard = 0;        // best-scored tokens of a head that a refinement must leave
};

// Says how many tokens each KV head of a layer keeps. One object serves all layers, one after another.
class HOLDFAST_API Allocator {
  public:
    virtual ~Allocator() = default;
    virtual Allocation allocate(const LayerScores& layer) = 0;
};

// Parameters of all parts; a method uses some of them.
struct MethodSettings {
    std::uint32_t window = 32;   // w: last queries, observed and kept
    int kernel = 5;              // κ: tokens averaged by pooling
    std::uint32_t sinks = 4;     // first tokens kept
    std::uint32_t future = 512;  // positions that expected-attention averages over
    std::uint64_t seed = 0;      // of random
    double alpha = 0.2;          // ada: share of a head's even budget that is its own
    double slope = 20;           // `beta` of pyramid, and of allocators of one's own
    double pool = 1.2;           // `beta` of headkv
    double first_stage = 0.5;    // critical, two-stage: share of the budget chosen by score alone
    double epsilon = 1e-4;       // critical, two-stage: added to scores
    double mass = 0.9;           // critical, mass: attention that the first stage secures
    ValueNorm vnorm = ValueNorm::exact;
    bool reference = false;  // critical, mass: DefensiveKV's published window mass
    std::string profile;     // headkv: file
};

// What an allocator can know before the first layer.
struct AllocatorContext {
    const MethodSettings& settings;
    int layers = 0, kv_heads = 0;
    std::uint32_t tokens = 0;
    double tokens_per_head = 0;
    Forced forced;
    std::span<const double> head_importance;  // headkv: [layers, kv_heads], sum 1; empty without a profile
};

struct ScorerContext {
    const MethodSettings& settings;
    bool worst_case = false;  // worst_case() is asked for, not score()
    bool refined = false;     // by `critical`, which brings the values' norms in
};

using ScorerFactory = std::function<std::unique_ptr<Scorer>(const ScorerContext&)>;
using AllocatorFactory = std::function<std::unique_ptr<Allocator>(const AllocatorContext&)>;

// A part of methods, as `holdfast methods` lists it.
struct MethodPart {
    std::string name;
    std::string description;
    std::string source;                        // paper
    std::string cost;                          // in time and memory
    std::vector<std::string> parameters = {};  // that it reads from the settings
};

struct ScorerPart : MethodPart {
    ScorerFactory make;
    bool sees_queries = false;  // has worst_case()
    bool attention = false;     // importance is an attention weight, so `critical` can weigh it by norms
    bool compares = true;       // importance can be compared between heads
};

struct AllocatorPart : MethodPart {
    AllocatorFactory make;  // none for `layer`, which chooses from the whole model
    bool by_score = false;  // compares scores of heads
};

// Makes a part known under a new name; throws Error (usage) for a name that is taken or has a "+" in it, and
// for a part without `make`.
HOLDFAST_API void register_scorer(ScorerPart part);
HOLDFAST_API void register_allocator(AllocatorPart part);

// How several queries' scores become one: in the order of aggregation_parts().
enum class Aggregation { mean, worst_case, defensive };
enum class Critical { none, two_stage, mass };

// One eviction method with its parameters.
class HOLDFAST_API Method {
  public:
    // name: one of named_methods(), or parts: scorer[+aggregation][+critical][+allocation].
    // settings: "window=64" and so on. Throws Error (usage) that says what is unknown, makes no sense
    // together, or is a parameter that the method doesn't use.
    static Method parse(const std::string& name, const std::vector<std::string>& settings = {});
    static Method full();  // keeps everything

    const std::string& name() const { return name_; }
    bool keeps_all() const { return scorer_ == nullptr; }
    std::string parts() const;    // written out: "snapkv+mean+critical+ada"
    std::string explain() const;  // several lines: parts, and every parameter with its value

    const MethodSettings& settings() const { return settings_; }
    const ScorerPart& scorer() const { return *scorer_; }
    Aggregation aggregation() const { return aggregation_; }
    bool worst_case() const { return aggregation_ != Aggregation::mean; }
    Critical critical() const { return critical_; }
    const AllocatorPart& allocator() const { return *allocator_; }
    bool whole_model() const { return !allocator_->make; }
    bool needs_profile() const;  // its allocator reads `profile`
    // Weighs by Gram norms of values.
    bool needs_grams() const { return critical_ != Critical::none && settings_.vnorm == ValueNorm::gram; }

  private:
    friend struct ParameterTable;
    std::string name_;
    std::shared_ptr<const ScorerPart> scorer_;
    Aggregation aggregation_ = Aggregation::mean;
    Critical critical_ = Critical::none;
    std::shared_ptr<const AllocatorPart> allocator_;
    MethodSettings settings_;
};

struct NamedMethod {
    std::string name;
    std::string parts;
    std::string source;
};

HOLDFAST_API const std::vector<NamedMethod>& named_methods();
HOLDFAST_API std::vector<ScorerPart> scorer_parts();  // built in and registered
HOLDFAST_API std::vector<MethodPart> aggregation_parts();
HOLDFAST_API std::vector<MethodPart> refinement_parts();
HOLDFAST_API std::vector<AllocatorPart> allocator_parts();
HOLDFAST_API std::vector<std::string> parameter_help();  // one line a parameter

}  // namespace holdfast
