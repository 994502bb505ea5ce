#include "holdfast/method.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>

#include "holdfast/error.hpp"
#include "evict/allocators.hpp"
#include "evict/scorers.hpp"

namespace holdfast {

namespace {

[[noreturn]] void refuse(const std::string& why) {
    throw Error(why, Error::Kind::usage);
}

template <class Part>
class Registry {
  public:
    explicit Registry(std::vector<Part> parts) : parts_(std::move(parts)) {}
    std::shared_ptr<const Part> find(const std::string& name) const {
        for (const Part& part : parts_)
            if (part.name == name) return std::make_shared<const Part>(part);
        return nullptr;
    }
    void add(Part part) { parts_.push_back(std::move(part)); }
    const std::vector<Part>& parts() const { return parts_; }

  private:
    std::vector<Part> parts_;
};

Registry<ScorerPart>& scorers() {
    static Registry<ScorerPart> registry(builtin_scorers());
    return registry;
}

Registry<AllocatorPart>& allocators() {
    static Registry<AllocatorPart> registry(builtin_allocators());
    return registry;
}

template <class Part>
std::string names_of(const std::vector<Part>& parts) {
    std::string names;
    for (const Part& part : parts) names += (names.empty() ? "" : ", ") + part.name;
    return names;
}

void check_new(const std::string& name) {
    if (name.empty() || name.find_first_of("+= ") != std::string::npos)
        refuse("'" + name + "' can't name a part of a method");
    const auto taken = [&](const auto& parts) {
        return std::ranges::any_of(parts, [&](const auto& part) { return part.name == name; });
    };
    if (taken(scorers().parts()) || taken(allocators().parts()) || taken(aggregation_parts()) ||
        taken(refinement_parts()) || taken(named_methods()))
        refuse("the name '" + name + "' is taken");
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> pieces;
    std::istringstream stream(text);
    for (std::string piece; std::getline(stream, piece, separator);) pieces.push_back(piece);
    if (text.ends_with(separator)) pieces.emplace_back();
    return pieces;
}

}  // namespace

void register_scorer(ScorerPart part) {
    check_new(part.name);
    if (!part.make) refuse("the scorer '" + part.name + "' has nothing to make it");
    scorers().add(std::move(part));
}

void register_allocator(AllocatorPart part) {
    check_new(part.name);
    if (!part.make) refuse("the allocator '" + part.name + "' has nothing to make it");
    allocators().add(std::move(part));
}

std::vector<ScorerPart> scorer_parts() {
    return scorers().parts();
}

std::vector<AllocatorPart> allocator_parts() {
    return allocators().parts();
}

std::vector<MethodPart> aggregation_parts() {
    return {
        {"mean", "the mean over the observed queries", "", "none"},
        {"worst-case", "their worst case", "DefensiveKV", "n per observed query; n"},
        {"defensive", "their worst case, and no less than the head's mean token", "DefensiveKV",
         "n per observed query; n"},
    };
}

namespace {

std::optional<Aggregation> find_aggregation(const std::string& name) {
    const std::vector<MethodPart> parts = aggregation_parts();
    for (std::size_t i = 0; i < parts.size(); ++i)
        if (parts[i].name == name) return Aggregation(i);
    return {};
}

}  // namespace

std::vector<MethodPart> refinement_parts() {
    return {{"critical", "by the norms of the values' part in the output, in two stages",
             "CriticalKV (arXiv 2502.03805)", "n·d·D per query head (exact) or n·d² (gram); n"}};
}

const std::vector<NamedMethod>& named_methods() {
    static const std::vector<NamedMethod> methods = {
        {"full", "", "everything is kept"},
        {"snapkv", "snapkv+mean+uniform", "SnapKV"},
        {"pyramidkv", "snapkv+mean+pyramid", "PyramidKV"},
        {"adakv", "snapkv+mean+ada", "AdaKV"},
        {"headkv", "snapkv+mean+headkv", "HeadKV"},
        {"critical-snapkv", "snapkv+mean+critical+uniform", "CriticalKV"},
        {"critical-pyramidkv", "snapkv+mean+critical+pyramid", "CriticalKV"},
        {"critical-adakv", "snapkv+mean+critical+ada", "CriticalKV"},
        {"critical-headkv", "snapkv+mean+critical+headkv", "CriticalKV"},
        {"defensive", "snapkv+defensive+critical+joint", "DefensiveKV"},
        {"layer-defensive", "snapkv+defensive+critical+layer", "DefensiveKV"},
    };
    return methods;
}

// Every parameter: who uses it, how it is written and read.
struct ParameterTable {
    struct Row {
        std::string name, meaning;
        std::function<bool(const Method&)> used;
        std::function<std::string(const Method&)> show;
        std::function<bool(Method&, const std::string&)> set;  // false: not a value it can have
        std::string range;
    };

    template <class Number>
    static std::string show(Number value) {
        std::ostringstream out;
        out << value;
        return out.str();
    }
    template <class Number>
    static bool read(const std::string& text, Number least, Number most, Number& to) {
        Number value{};
        const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc() || stop != text.data() + text.size() || !(value >= least && value <= most))
            return false;
        to = value;
        return true;
    }
    template <class Number>
    static Row number(std::string name, std::string meaning, std::function<bool(const Method&)> used,
                      Number MethodSettings::*field, Number least, Number most) {
        return {
            std::move(name),
            std::move(meaning),
            std::move(used),
            [field](const Method& m) { return show(m.settings_.*field); },
            [=](Method& m, const std::string& text) { return read(text, least, most, m.settings_.*field); },
            "from " + show(least) + " to " + show(most)};
    }

    static const std::vector<Row>& rows() {
        using S = MethodSettings;
        const auto reads = [](const MethodPart& part, const std::string& name) {
            return std::ranges::count(part.parameters, name) > 0;
        };
        const auto part = [reads](const std::string& name) {
            return [=](const Method& m) { return reads(*m.scorer_, name) || reads(*m.allocator_, name); };
        };
        const auto headkv = [](const Method& m) { return m.allocator_->name == "headkv"; };
        const auto own_beta = [=](const Method& m) { return part("beta")(m) && !headkv(m); };
        const auto kernel = [=](const Method& m) { return part("kernel")(m) || m.worst_case(); };
        const auto critical = [](Critical form) {
            return [form](const Method& m) { return m.critical_ == form; };
        };
        const auto window = [part](const Method& m) {
            return m.critical_ == Critical::mass || m.worst_case() || part("window")(m);
        };
        const auto any_critical = [](const Method& m) { return m.critical_ != Critical::none; };
        constexpr std::uint32_t many = 1u << 20;
        static const std::vector<Row> table = {
            number<std::uint32_t>("window", "last queries, observed and kept (w)", window, &S::window, 1,
                                  4096),
            {"kernel", "neighbours averaged by pooling, odd (κ)", kernel,
             [](const Method& m) { return show(m.settings_.kernel); },
             [](Method& m, const std::string& text) {
                 int value = 0;
                 if (!read(text, 1, 255, value) || value % 2 == 0) return false;
                 m.settings_.kernel = value;
                 return true;
             },
             "odd, from 1 to 255"},
            number<std::uint32_t>("sinks", "first tokens, always kept", part("sinks"), &S::sinks, 0, many),
            number<std::uint32_t>("future", "positions of the future queries", part("future"), &S::future, 1,
                                  many),
            number<std::uint64_t>("seed", "of the random numbers", part("seed"), &S::seed, 0,
                                  std::uint64_t(1) << 53),
            {"form", "of critical: two-stage, or mass", any_critical,
             [](const Method& m) { return m.critical_ == Critical::mass ? "mass" : "two-stage"; },
             [](Method& m, const std::string& text) {
                 if (text != "mass" && text != "two-stage") return false;
                 m.critical_ = text == "mass" ? Critical::mass : Critical::two_stage;
                 return true;
             },
             "two-stage or mass"},
            number<double>("first-stage", "share of the budget chosen by score alone",
                           critical(Critical::two_stage), &S::first_stage, 0, 1),
            number<double>("epsilon", "added to scores before they meet the norms",
                           critical(Critical::two_stage), &S::epsilon, 0, 1),
            number<double>("mass", "attention that the first stage secures", critical(Critical::mass),
                           &S::mass, 0, 1),
            {"reference", "the published code's window mass", critical(Critical::mass),
             [](const Method& m) { return m.settings_.reference ? "on" : "off"; },
             [](Method& m, const std::string& text) {
                 if (text != "on" && text != "off") return false;
                 m.settings_.reference = text == "on";
                 return true;
             },
             "on or off"},
            {"vnorm", "norms of projected values: L1 exactly, or L2 by Gram matrices", any_critical,
             [](const Method& m) { return m.settings_.vnorm == ValueNorm::gram ? "gram" : "exact"; },
             [](Method& m, const std::string& text) {
                 if (text != "exact" && text != "gram") return false;
                 m.settings_.vnorm = text == "gram" ? ValueNorm::gram : ValueNorm::exact;
                 return true;
             },
             "exact or gram"},
            number<double>("alpha", "ada: share of a head's even budget that is its own (α)", part("alpha"),
                           &S::alpha, 0, 1),
            number<double>("beta", "pyramid: how steeply budgets fall (β)", own_beta, &S::slope, 1, 1e6),
            number<double>("beta", "headkv: 1/β of the budget goes by importance (β)", headkv, &S::pool, 1,
                           1e6),
            {"profile", "headkv: file of `holdfast profile-heads`", part("profile"),
             [](const Method& m) {
                 return m.settings_.profile.empty() ? std::string("(of the default model)")
                                                    : m.settings_.profile;
             },
             [](Method& m, const std::string& text) {
                 m.settings_.profile = text;
                 return !text.empty();
             },
             "a file"},
        };
        return table;
    }

    static void set(Method& method, const std::string& setting) {
        const std::size_t equals = setting.find('=');
        if (equals == std::string::npos) refuse("'" + setting + "' isn't a parameter: write name=value");
        const std::string name = setting.substr(0, equals), value = setting.substr(equals + 1);
        bool known = false;
        for (const Row& row : rows()) {
            if (row.name != name) continue;
            known = true;
            if (method.keeps_all() || !row.used(method)) continue;
            if (!row.set(method, value))
                refuse("'" + value + "' isn't a value of " + row.name + ", which is " + row.range);
            return;
        }
        std::string names;
        for (const Row& row : rows())
            if (!method.keeps_all() && row.used(method)) names += (names.empty() ? "" : ", ") + row.name;
        if (names.empty()) names = "none";
        if (known) refuse("the method " + method.name() + " doesn't use " + name + "; it uses: " + names);
        refuse("no parameter '" + name + "'; the method " + method.name() + " uses: " + names);
    }

    // Fills in what stands between the "+" signs.
    static void compose(Method& method, const std::string& parts) {
        std::optional<Aggregation> aggregation;
        bool refined = false;
        const auto once = [&](bool already, const char* kind) {
            if (already) refuse("'" + method.name_ + "' names more than one " + kind);
        };
        for (const std::string& part : split(parts, '+')) {
            if (auto scorer = scorers().find(part); scorer && method.scorer_ == nullptr) {
                method.scorer_ = scorer;
            } else if (auto found = find_aggregation(part)) {
                once(aggregation.has_value(), "aggregation");
                aggregation = found;
            } else if (part == "critical") {
                once(refined, "refinement");
                refined = true;
            } else if (auto allocator = allocators().find(part)) {
                once(method.allocator_ != nullptr, "allocation");
                method.allocator_ = allocator;
            } else {
                once(scorer != nullptr, "scorer");
                std::string named;
                for (const NamedMethod& known : named_methods()) named += ", " + known.name;
                refuse("no method '" + method.name_ + "': '" + part +
                       "' is unknown. Methods: " + named.substr(2) +
                       ". Or scorer[+aggregation][+critical][+allocation], of the scorers " +
                       names_of(scorers().parts()) + "; the aggregations " + names_of(aggregation_parts()) +
                       "; the allocations " + names_of(allocators().parts()));
            }
        }
        if (method.scorer_ == nullptr)
            refuse("'" + method.name_ + "' names no scorer; there are: " + names_of(scorers().parts()));
        method.aggregation_ = aggregation.value_or(Aggregation::mean);
        if (method.allocator_ == nullptr) method.allocator_ = allocators().find("uniform");
        if (refined)
            method.critical_ = method.worst_case() || method.allocator_->name == "layer"
                                   ? Critical::mass
                                   : Critical::two_stage;
    }

    static void check(const Method& method) {
        const ScorerPart& scorer = *method.scorer_;
        if (method.worst_case() && !scorer.sees_queries)
            refuse("'" + method.name_ + "' makes no sense: " + scorer.name +
                   " gives a token one number, not one a query, so there is no worst case over queries");
        if (method.critical_ != Critical::none && !scorer.attention)
            refuse("'" + method.name_ +
                   "' makes no sense: critical weighs attention by the values' norms, and " + scorer.name +
                   "'s scores aren't attention");
        if (method.allocator_->by_score && !scorer.compares)
            refuse("'" + method.name_ + "' makes no sense: " + scorer.name +
                   " scores all heads alike, so there is nothing for " + method.allocator_->name +
                   " to compare");
        if (method.critical_ == Critical::two_stage && method.whole_model())
            refuse(
                "form=two-stage needs a budget for each head before it chooses, and layer has none; use "
                "form=mass");
    }
};

Method Method::full() {
    Method method;
    method.name_ = "full";
    return method;
}

Method Method::parse(const std::string& name, const std::vector<std::string>& settings) {
    Method method = full();
    method.name_ = name;
    if (name != "full") {
        std::string parts = name;
        for (const NamedMethod& known : named_methods())
            if (known.name == name) parts = known.parts;
        ParameterTable::compose(method, parts);
    }
    // The form decides which other parameters there are.
    for (const bool forms : {true, false})
        for (const std::string& setting : settings)
            if (setting.starts_with("form=") == forms) ParameterTable::set(method, setting);
    if (!method.keeps_all()) ParameterTable::check(method);
    return method;
}

bool Method::needs_profile() const {
    return allocator_ != nullptr && std::ranges::count(allocator_->parameters, "profile") > 0;
}

std::string Method::parts() const {
    if (keeps_all()) return "full";
    return scorer_->name + "+" + aggregation_parts()[std::size_t(aggregation_)].name +
           (critical_ == Critical::none ? "" : "+critical") + "+" + allocator_->name;
}

std::string Method::explain() const {
    if (keeps_all()) return "full: every entry is kept; there are no parameters\n";
    std::string text = name_ + " = " + parts() + "\n";
    const auto line = [&](const std::string& kind, const MethodPart& part) {
        std::string row = "  " + kind;
        row.resize(16, ' ');
        row += part.name;
        row.resize(std::max<std::size_t>(36, row.size() + 2), ' ');
        text += row + part.description + (part.source.empty() ? "" : "; " + part.source) + "\n";
    };
    line("scorer", *scorer_);
    line("aggregation", aggregation_parts()[std::size_t(aggregation_)]);
    if (critical_ != Critical::none) line("refinement", refinement_parts()[0]);
    line("allocation", *allocator_);
    const Method plain = parse(name_);
    for (const ParameterTable::Row& row : ParameterTable::rows()) {
        if (!row.used(*this)) continue;
        std::string entry = "  " + row.name + "=" + row.show(*this);
        if (row.show(plain) != row.show(*this)) entry += " (default " + row.show(plain) + ")";
        entry.resize(std::max<std::size_t>(36, entry.size() + 2), ' ');
        text += entry + row.meaning + "\n";
    }
    return text;
}

std::vector<std::string> parameter_help() {
    std::vector<std::string> lines;
    for (const ParameterTable::Row& row : ParameterTable::rows())
        lines.push_back(row.name + ": " + row.meaning + "; " + row.range);
    return lines;
}

}  // namespace holdfast
