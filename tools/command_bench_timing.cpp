// `weft bench timing`: reshard timing solved under a memory budget against the fixed policies that fit the same budget,
// on simulated pipelines, and how long solving takes. Nothing runs but the solver.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>

#include "parallel/pipeline/timing/cases.h"
#include "parallel/pipeline/timing/solve.h"
#include "parallel/runtime/error.h"
#include "tools/bench_table.h"
#include "tools/commands.h"

namespace weft {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();
constexpr int most_buffers = 32;

// Without the fixed policies as candidates, so that the comparison says something.
TimingSolution solve_alone(const TimingProblem& problem) {
  TimingSolution solution = solve_timing(problem, {.fixed_policies = false});
  const auto faults = find_plan_faults(problem, solution.plan, false);
  if (!faults.empty()) fail("weft bench timing: {}", faults.front());
  return solution;
}

// Gathers and reductions take twice as long as the forward of their unit. Of 8 units a rank, parameters and gradients
// of each take 1, activations of each and a microbatch 0.1.
BenchTable bound_table() {
  constexpr std::int64_t budgets[] = {8, 10, 12, 14, 17};
  BenchTable table;
  table.header = {"schedule", "microbatches", "compute", "bound"};
  for (const std::int64_t budget : budgets) table.header.push_back(fmt::format("budget {}", budget));
  struct Row {
    std::string_view schedule;
    int chunks = 1, microbatches = 8;
  };
  for (const Row& row :
       {Row{"1f1b", 1, 8}, Row{"1f1b", 1, 16}, Row{"1f1b", 1, 32}, Row{"interleaved", 2, 8}, Row{"interleaved", 2, 16},
        Row{"interleaved", 2, 32}, Row{"interleaved", 4, 16}, Row{"zbv", 2, 8}, Row{"zbv", 2, 16}, Row{"zbv", 2, 32}}) {
    std::vector<std::string> cells{fmt::format("{} x {}", row.schedule, row.chunks), std::to_string(row.microbatches)};
    for (const std::int64_t budget : budgets) {
      const TimingProblem problem =
          timing_problem({.schedule = row.schedule, .input = {4, row.chunks, row.microbatches}, .budget = 10 * budget});
      const TimingSolution solution = solve_alone(problem);
      const auto fixed = best_fixed_timing(problem, false, most_buffers, unbounded);
      if (cells.size() == 2) {
        cells.push_back(fmt::format("{:g}", solution.compute_makespan));
        cells.push_back(fmt::format("{:g}", solution.lower_bound - solution.compute_makespan));
      }
      const std::string by_rule = fixed ? fmt::format("{:g}", fixed->makespan - solution.compute_makespan) : "none";
      cells.push_back(fmt::format("{} / {:g}", by_rule, solution.makespan - solution.compute_makespan));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

BenchTable grid_table() {
  struct Counts {
    int problems = 0, better = 0, equal = 0, worse = 0, alone = 0;
    double most_gain = 0, most_loss = 0;
  };
  const auto cells = [](std::string name, const Counts& counts) {
    return std::vector<std::string>{std::move(name),
                                    std::to_string(counts.problems),
                                    std::to_string(counts.better),
                                    std::to_string(counts.equal),
                                    std::to_string(counts.worse),
                                    std::to_string(counts.alone),
                                    fmt::format("{:.1f}", 100 * counts.most_gain),
                                    fmt::format("{:.1f}", 100 * counts.most_loss)};
  };
  BenchTable table;
  table.header = {"schedule", "problems", "better", "equal", "worse", "only solved", "most gain %", "most loss %"};
  Counts all, one;
  std::string name;
  const auto close_row = [&] {
    if (one.problems > 0) table.rows.push_back(cells(name, one));
    one = {};
  };
  for (const TimingCase& shape : timing_grid()) {
    const std::string schedule = fmt::format("{} x {}", shape.schedule, shape.input.chunks);
    if (schedule != name) close_row();
    name = schedule;
    const TimingProblem problem = timing_problem(shape);
    const TimingSolution solution = solve_alone(problem);
    const auto fixed = best_fixed_timing(problem, false, most_buffers, unbounded);
    for (Counts* counts : {&one, &all}) {
      ++counts->problems;
      if (!fixed) {
        ++counts->alone;
        continue;
      }
      const double gain = 1 - solution.makespan / fixed->makespan;
      ++(gain > 1e-12 ? counts->better : gain < -1e-12 ? counts->worse : counts->equal);
      counts->most_gain = std::max(counts->most_gain, gain);
      counts->most_loss = std::max(counts->most_loss, -gain);
    }
  }
  close_row();
  table.rows.push_back(cells("all", all));
  return table;
}

BenchTable seconds_table() {
  BenchTable table;
  table.header = {"pipeline", "ops", "budget", "seconds", "compute", "bound", "beyond compute"};
  struct Size {
    TimingCase shape;
    double share = 0;
  };
  const TimingCase one{.schedule = "1f1b", .input = {16, 1, 128}, .units = 64};
  const TimingCase interleaved{.schedule = "interleaved", .input = {16, 4, 128}, .units = 64};
  const TimingCase long_one{.schedule = "1f1b", .input = {1024, 1, 128}, .units = 4};
  for (const auto& [shape, share] : {Size{one, 0.1}, Size{one, 0.3}, Size{one, 0.6}, Size{interleaved, 0.1},
                                     Size{interleaved, 0.3}, Size{long_one, 0.1}, Size{long_one, 0.3}}) {
    const TimingProblem problem = timing_problem(with_budget(shape, share));
    std::size_t ops = 0;
    for (const TimingRank& rank : problem.ranks) ops += rank.ops.size();
    const auto begin = std::chrono::steady_clock::now();
    const TimingSolution solution = solve_timing(problem);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    table.rows.push_back({fmt::format("{}, {} ranks x {} units x {} microbatches", shape.schedule, shape.input.ranks,
                                      shape.units, shape.input.microbatches),
                          std::to_string(ops), fmt::format("{:.0f} %", 100 * share),
                          fmt::format("{:.2f}", seconds.count()), fmt::format("{:g}", solution.compute_makespan),
                          fmt::format("{:g}", solution.lower_bound - solution.compute_makespan),
                          fmt::format("{:g}", solution.makespan - solution.compute_makespan)});
  }
  return table;
}

}  // namespace

void add_bench_timing_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("timing", "reshard timing solved under a budget, against fixed policies");
  const auto markdown = std::make_shared<bool>(false);
  command->add_flag("--markdown", *markdown, "print the tables as the documents have them");
  command->callback([markdown] {
    const auto text = *markdown ? markdown_text : aligned_text;
    fmt::print(
        "Time beyond that of the schedule alone, best fixed policy that fits / solved, in forwards of a unit (4 ranks "
        "x "
        "8 units):\n\n{}\n",
        text(bound_table()));
    std::fflush(stdout);
    fmt::print("Solved against the best fixed policy that fits the same budget:\n\n{}\n", text(grid_table()));
    std::fflush(stdout);
    fmt::print("Solving, on one thread; the budget between the smallest possible and what keeps everything:\n\n{}",
               text(seconds_table()));
  });
}

}  // namespace weft
