// Options that the commands share to say how a context is compressed.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "holdfast/budget.hpp"
#include "holdfast/method.hpp"

namespace holdfast {

struct MethodOptions {
    std::string budget = "20%";
    std::string method = "layer-defensive";
    std::vector<std::string> settings;
    bool explain = false;

    // With --explain, add() alone prints and ends; read them when the command runs.
    void add(CLI::App* command);
    // Throw Error (usage) for what can't be meant.
    Method parse_method() const { return Method::parse(method, settings); }
    Budget parse_budget() const { return Budget::parse(budget); }
};

}  // namespace holdfast
