// Mean scores, losses and differences of methods over tasks, with bootstrap intervals.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/results.hpp"

namespace holdfast {

struct Interval {
    double mean = 0, low = 0, high = 0;
};

// A method with its budget.
struct Column {
    std::string method, budget;
    bool operator==(const Column&) const = default;
    // "full", "snapkv 20%"
    std::string name() const { return method == "full" ? method : method + " " + budget; }
};

// Scores here are 0 to 100. A mean over tasks is the mean of the tasks' means. Intervals are 95%: percentiles
// of 2,000 bootstrap draws, samples drawn within each task, always the same draws.
class Summary {
  public:
    explicit Summary(std::vector<SampleResult> results);

    const std::vector<std::string>& tasks() const { return tasks_; }  // in the order of the results
    const std::vector<Column>& columns() const { return columns_; }   // in the order of the results
    const std::vector<SampleResult>& results() const { return results_; }
    const Column* full() const;  // null if it wasn't run

    // Of a task, over the samples that it has for this column; nothing if there are none.
    std::optional<double> mean(const std::string& task, const Column& column) const;
    std::size_t samples(const std::string& task, const Column& column) const;
    // Whether every column has all samples.
    bool complete() const;

    // Over tasks.
    double mean(const Column& column) const;
    Interval mean_interval(const Column& column) const;
    // a's mean less b's over the samples that both have.
    Interval difference(const Column& a, const Column& b) const;
    // How much less than the full cache's, in per cent of it, over the samples that both have.
    Interval loss(const Column& column) const;

    // "RULER average" if every column has all of its tasks, otherwise "mean of N".
    std::string mean_name() const;

  private:
    // Scores of a task's samples, by sample.
    using Scores = std::map<std::string, double>;
    const Scores& scores(const std::string& task, const Column& column) const;
    template <typename Statistic>
    Interval bootstrap(const Column& a, const Column& b, const Statistic& statistic) const;

    std::vector<SampleResult> results_;
    std::vector<std::string> tasks_;
    std::vector<Column> columns_;
    std::map<std::pair<std::string, std::string>, Scores> scores_;  // by task and column's name
};

}  // namespace holdfast
