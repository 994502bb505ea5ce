#include "eval/summary.hpp"

#include <algorithm>
#include <random>

#include "eval/ruler.hpp"

namespace holdfast {

Summary::Summary(std::vector<SampleResult> results) : results_(std::move(results)) {
    for (const SampleResult& r : results_) {
        const Column column{r.method, r.budget};
        if (std::ranges::find(tasks_, r.task) == tasks_.end()) tasks_.push_back(r.task);
        if (std::ranges::find(columns_, column) == columns_.end()) columns_.push_back(column);
        scores_[{r.task, column.name()}][r.sample + " " + r.prompt] = 100 * r.score;
    }
}

const Column* Summary::full() const {
    const auto found = std::ranges::find(columns_, "full", &Column::method);
    return found == columns_.end() ? nullptr : &*found;
}

const Summary::Scores& Summary::scores(const std::string& task, const Column& column) const {
    static const Scores none;
    const auto found = scores_.find({task, column.name()});
    return found == scores_.end() ? none : found->second;
}

std::optional<double> Summary::mean(const std::string& task, const Column& column) const {
    const Scores& all = scores(task, column);
    if (all.empty()) return {};
    double sum = 0;
    for (const auto& [sample, score] : all) sum += score;
    return sum / double(all.size());
}

std::size_t Summary::samples(const std::string& task, const Column& column) const {
    return scores(task, column).size();
}

bool Summary::complete() const {
    return std::ranges::all_of(tasks_, [&](const std::string& task) {
        return std::ranges::all_of(columns_, [&](const Column& column) {
            return samples(task, column) == samples(task, columns_.front());
        });
    });
}

// statistic(mean of a over tasks, mean of b).
template <typename Statistic>
Interval Summary::bootstrap(const Column& a, const Column& b, const Statistic& statistic) const {
    std::vector<std::vector<std::pair<double, double>>> pairs;  // by task
    for (const std::string& task : tasks_) {
        const Scores &of_a = scores(task, a), &of_b = scores(task, b);
        std::vector<std::pair<double, double>> of_task;
        for (const auto& [sample, score] : of_a)
            if (const auto other = of_b.find(sample); other != of_b.end())
                of_task.emplace_back(score, other->second);
        if (!of_task.empty()) pairs.push_back(std::move(of_task));
    }
    if (pairs.empty()) return {};
    // choose(n): an index below n.
    const auto value = [&](const auto& choose) {
        double mean_a = 0, mean_b = 0;
        for (const auto& of_task : pairs) {
            double sum_a = 0, sum_b = 0;
            for (std::size_t i = 0; i < of_task.size(); ++i) {
                const auto& [score_a, score_b] = of_task[choose(i, of_task.size())];
                sum_a += score_a;
                sum_b += score_b;
            }
            mean_a += sum_a / double(of_task.size());
            mean_b += sum_b / double(of_task.size());
        }
        return statistic(mean_a / double(pairs.size()), mean_b / double(pairs.size()));
    };
    constexpr int draws = 2000;
    std::mt19937_64 random(1);
    std::vector<double> values;
    values.reserve(draws);
    for (int i = 0; i < draws; ++i)
        values.push_back(value([&](std::size_t, std::size_t n) { return std::size_t(random() % n); }));
    std::ranges::sort(values);
    return {value([](std::size_t i, std::size_t) { return i; }), values[draws / 40],
            values[draws - 1 - draws / 40]};
}

double Summary::mean(const Column& column) const {
    double sum = 0;
    int tasks = 0;
    for (const std::string& task : tasks_)
        if (const std::optional<double> of_task = mean(task, column)) {
            sum += *of_task;
            ++tasks;
        }
    return tasks == 0 ? 0 : sum / tasks;
}

Interval Summary::mean_interval(const Column& column) const {
    return bootstrap(column, column, [](double a, double) { return a; });
}

Interval Summary::difference(const Column& a, const Column& b) const {
    return bootstrap(a, b, [](double x, double y) { return x - y; });
}

Interval Summary::loss(const Column& column) const {
    return bootstrap(column, *full(), [](double x, double y) { return y == 0 ? 0 : 100 * (y - x) / y; });
}

std::string Summary::mean_name() const {
    const bool ruler = complete() && tasks_.size() == ruler_tasks().size() &&
                       std::ranges::all_of(ruler_tasks(), [&](const std::string& task) {
                           return std::ranges::find(tasks_, task) != tasks_.end();
                       });
    return ruler ? "RULER average" : "mean of " + std::to_string(tasks_.size());
}

}  // namespace holdfast
