#include "cli/method_options.hpp"

#include <fmt/format.h>

#include "holdfast/error.hpp"

namespace holdfast {

void MethodOptions::add(CLI::App* command) {
    budget_option_ =
        command
            ->add_option("--budget", budget,
                         "Kept share of the context (20%), or tokens per KV head on average (1024)")
            ->capture_default_str();
    command
        ->add_option("--method", method,
                     "How to choose what is kept: a name or a composition of `holdfast methods`")
        ->capture_default_str();
    command->add_option("--set", settings, "A parameter of the method, name=value")->allow_extra_args(false);
    command->add_flag("--explain", explain, "Say what the method consists of, and stop");
}

MethodOptions::Parsed MethodOptions::parse() const {
    Parsed parsed{Method::parse(method, settings), Budget::parse(budget)};
    if (parsed.method.keeps_all() && budget_option_->count() > 0)
        throw Error("--method full keeps everything: --budget has no effect with it", Error::Kind::usage);
    return parsed;
}

bool MethodOptions::explained() const {
    if (explain) fmt::print("{}", parse().method.explain());
    return explain;
}

void RequestOptions::add(CLI::App* command) {
    command->add_option("--methods", methods, "Methods, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
    command->add_option("--budgets", budgets, "Budgets, separated by commas")
        ->delimiter(',')
        ->capture_default_str();
}

std::vector<CompressionRequest> RequestOptions::parse() const {
    std::vector<CompressionRequest> requests;
    const auto add = [&](const Method& method, const Budget& budget) {
        for (const CompressionRequest& r : requests)
            if (r.method.name() == method.name() && r.budget.name() == budget.name()) return;
        requests.push_back({method, budget});
    };
    for (const std::string& name : methods) {
        const Method method = Method::parse(name);
        if (method.keeps_all())
            add(method, Budget::everything());
        else
            for (const std::string& budget : budgets) add(method, Budget::parse(budget));
    }
    return requests;
}

}  // namespace holdfast
