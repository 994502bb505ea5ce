// Options that the commands share to say how a context is compressed.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "evict/compression.hpp"
#include "holdfast/budget.hpp"
#include "holdfast/method.hpp"

namespace holdfast {

struct MethodOptions {
    std::string budget = "20%";
    std::string method = "layer-defensive";
    std::vector<std::string> settings;
    bool explain = false;

    void add(CLI::App* command);

    // What was asked for; throws Error (usage) for what can't be meant.
    struct Parsed {
        Method method;
        Budget budget;
    };
    Parsed parse() const;
    // With --explain: prints what the method consists of, and is true.
    bool explained() const;

  private:
    CLI::Option* budget_option_ = nullptr;
};

// Several methods, each that compresses at several budgets: --methods and --budgets.
struct RequestOptions {
    std::vector<std::string> methods;
    std::vector<std::string> budgets = {"20%"};

    void add(CLI::App* command);
    // In the order of the methods; throws Error (usage) for what can't be meant.
    std::vector<CompressionRequest> parse() const;
};

}  // namespace holdfast
