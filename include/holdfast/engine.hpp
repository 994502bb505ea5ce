// Reading documents and asking questions about them, in a few calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/budget.hpp"
#include "holdfast/method.hpp"

namespace holdfast {

// A document that was read and compressed. Copies share it.
class Reading {
  public:
    std::uint32_t tokens() const;
    int layers() const;
    int kv_heads() const;
    // Positions of the tokens that a head kept, rising.
    std::vector<std::uint32_t> kept(int layer, int kv_head) const;
    std::size_t bytes() const;  // of the kept keys and values

  private:
    friend class Engine;
    struct State;
    explicit Reading(std::shared_ptr<const State> state) : state_(std::move(state)) {}
    std::shared_ptr<const State> state_;
};

// A model with its vocabulary and threads. Everything throws holdfast::Error (a std::runtime_error) that says
// what was wrong and what to do.
class Engine {
  public:
    // model: a GGUF file; threads: 0 takes all processors.
    explicit Engine(const std::string& model, int threads = 0);
    ~Engine();

    Reading read(const std::string& document, const Method& method, const Budget& budget);
    // At most `most` tokens, the likeliest at each step. Questions don't see each other. The reading must be
    // of the same model.
    std::string answer(const Reading& reading, const std::string& question, int most = 256);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// The model that holdfast's set-up fetches.
std::string default_model_path();

}  // namespace holdfast
