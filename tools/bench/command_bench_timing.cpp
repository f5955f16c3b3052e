// `weft bench timing`: reshard timing solved under a memory budget against fixed policies within the same budget, on
// simulated pipelines, and the time that solving takes. Only the solver runs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>

#include "parallel/pipeline/timing/fixed.h"
#include "parallel/pipeline/timing/solve.h"
#include "parallel/runtime/phase_clock.h"
#include "tools/bench/timing_cases.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"

namespace weft {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();
constexpr int most_buffers = 32;
constexpr std::int64_t bound_budgets[] = {8, 10, 12, 14, 17};

// Solves without the fixed policies as candidates, so that the result can be compared with them.
TimingSolution solve_alone(const TimingProblem& problem) {
  return solve_timing(problem, {.fixed_policies = false});
}

// Step times of a problem under one budget, in forwards of a unit. `fixed` is absent if no fixed policy fits.
struct BudgetResult {
  std::int64_t budget = 0;  // of 8 units with parameters and gradients of 1 each
  std::optional<double> fixed;
  double solved = 0;
};

struct BoundRow {
  std::string_view schedule;
  int chunks = 1, microbatches = 8;
  double compute = 0, bound = 0;  // of the schedule alone, and a lower bound for all plans
  std::vector<BudgetResult> budgets = {};
};

// A gather or reduction takes twice as long as the forward of its unit. A rank has 8 units; parameters and gradients of
// each take 1, activations of each and a microbatch 0.1.
std::vector<BoundRow> bound_rows(int most_microbatches) {
  std::vector<BoundRow> rows = {
      {"1f1b", 1, 8},         {"1f1b", 1, 16},        {"1f1b", 1, 32}, {"interleaved", 2, 8}, {"interleaved", 2, 16},
      {"interleaved", 2, 32}, {"interleaved", 4, 16}, {"zbv", 2, 8},   {"zbv", 2, 16},        {"zbv", 2, 32}};
  std::erase_if(rows, [&](const BoundRow& row) { return row.microbatches > most_microbatches; });
  for (BoundRow& row : rows) {
    for (const std::int64_t budget : bound_budgets) {
      const TimingProblem problem =
          timing_problem({.schedule = row.schedule, .input = {4, row.chunks, row.microbatches}, .budget = 10 * budget});
      const TimingSolution solution = solve_alone(problem);
      const auto fixed = best_fixed_timing(problem, false, most_buffers, unbounded);
      if (row.budgets.empty()) {
        row.compute = solution.compute_makespan;
        row.bound = solution.lower_bound;
      }
      row.budgets.push_back({budget, std::nullopt, solution.makespan});
      if (fixed) row.budgets.back().fixed = fixed->makespan;
    }
  }
  return rows;
}

BenchTable bound_table(const std::vector<BoundRow>& rows) {
  BenchTable table{{"schedule", "microbatches", "compute", "bound"}};
  for (const std::int64_t budget : bound_budgets) table.header.push_back(fmt::format("budget {}", budget));
  for (const BoundRow& row : rows) {
    auto& cells = table.add(fmt::format("{} x {}", row.schedule, row.chunks), row.microbatches,
                            fmt::format("{:g}", row.compute), fmt::format("{:g}", row.bound - row.compute));
    for (const BudgetResult& result : row.budgets) {
      const std::string by_rule = result.fixed ? fmt::format("{:g}", *result.fixed - row.compute) : "none";
      cells.push_back(fmt::format("{} / {:g}", by_rule, result.solved - row.compute));
    }
  }
  return table;
}

struct GridRow {
  std::string_view schedule;  // "all" for the sums
  int chunks = 0;
  int problems = 0, better = 0, equal = 0, worse = 0, alone = 0;
  double most_gain = 0, most_loss = 0;  // relative to the fixed policy's time

  void add(const TimingSolution& solution, const std::optional<FixedTiming>& fixed) {
    ++problems;
    if (!fixed) {
      ++alone;
      return;
    }
    const double gain = 1 - solution.makespan / fixed->makespan;
    ++(gain > 1e-12 ? better : gain < -1e-12 ? worse : equal);
    most_gain = std::max(most_gain, gain);
    most_loss = std::max(most_loss, -gain);
  }
};

// One row per schedule, then one for all.
std::vector<GridRow> grid_rows(int most_microbatches) {
  std::vector<GridRow> rows;
  GridRow all{.schedule = "all"};
  for (const TimingCase& shape : timing_grid()) {
    if (shape.input.microbatches > most_microbatches) continue;
    if (rows.empty() || rows.back().schedule != shape.schedule || rows.back().chunks != shape.input.chunks) {
      rows.push_back({.schedule = shape.schedule, .chunks = shape.input.chunks});
    }
    const TimingProblem problem = timing_problem(shape);
    const TimingSolution solution = solve_alone(problem);
    const auto fixed = best_fixed_timing(problem, false, most_buffers, unbounded);
    rows.back().add(solution, fixed);
    all.add(solution, fixed);
  }
  rows.push_back(all);
  return rows;
}

BenchTable grid_table(const std::vector<GridRow>& rows) {
  BenchTable table{{"schedule", "problems", "better", "equal", "worse", "only solved", "most gain %", "most loss %"}};
  for (const GridRow& row : rows) {
    table.add(row.chunks == 0 ? std::string(row.schedule) : fmt::format("{} x {}", row.schedule, row.chunks),
              row.problems, row.better, row.equal, row.worse, row.alone, decimals(100 * row.most_gain, 1),
              decimals(100 * row.most_loss, 1));
  }
  return table;
}

struct SecondsRow {
  TimingCase shape;
  double share = 0;  // position of the budget from the smallest possible (0) to that which keeps everything (1)
  std::size_t ops = 0;
  double seconds = 0;
  TimingSolution solution = {};
};

std::vector<SecondsRow> seconds_rows(int most_microbatches) {
  const TimingCase one{.schedule = "1f1b", .input = {16, 1, 128}, .units = 64};
  const TimingCase interleaved{.schedule = "interleaved", .input = {16, 4, 128}, .units = 64};
  const TimingCase long_one{.schedule = "1f1b", .input = {1024, 1, 128}, .units = 4};
  std::vector<SecondsRow> rows = {{one, 0.1},         {one, 0.3},      {one, 0.6},     {interleaved, 0.1},
                                  {interleaved, 0.3}, {long_one, 0.1}, {long_one, 0.3}};
  std::erase_if(rows, [&](const SecondsRow& row) { return row.shape.input.microbatches > most_microbatches; });
  for (SecondsRow& row : rows) {
    const TimingProblem problem = timing_problem(with_budget(row.shape, row.share));
    for (const TimingRank& rank : problem.ranks) row.ops += rank.ops.size();
    const auto begin = std::chrono::steady_clock::now();
    row.solution = solve_timing(problem);
    row.seconds = seconds_since(begin);
  }
  return rows;
}

BenchTable seconds_table(const std::vector<SecondsRow>& rows) {
  BenchTable table{{"pipeline", "ops", "budget", "seconds", "compute", "bound", "beyond compute"}};
  for (const SecondsRow& row : rows) {
    const double compute = row.solution.compute_makespan;
    table.add(fmt::format("{}, {} ranks x {} units x {} microbatches", row.shape.schedule, row.shape.input.ranks,
                          row.shape.units, row.shape.input.microbatches),
              row.ops, fmt::format("{:.0f} %", 100 * row.share), decimals(row.seconds, 2), fmt::format("{:g}", compute),
              fmt::format("{:g}", row.solution.lower_bound - compute),
              fmt::format("{:g}", row.solution.makespan - compute));
  }
  return table;
}

// Times are totals in forwards of a unit; the tables show the time beyond that of the schedule alone.
Json json_of(const std::vector<BoundRow>& bounds, const std::vector<GridRow>& grid,
             const std::vector<SecondsRow>& sizes) {
  Json budgets = Json::array(), schedules = Json::array(), solving = Json::array();
  for (const BoundRow& row : bounds) {
    for (const BudgetResult& result : row.budgets) {
      budgets.push_back({{"schedule", row.schedule},
                         {"chunks", row.chunks},
                         {"microbatches", row.microbatches},
                         {"budget", result.budget},
                         {"compute", row.compute},
                         {"bound", row.bound},
                         {"fixed", or_null(result.fixed)},
                         {"solved", result.solved}});
    }
  }
  for (const GridRow& row : grid) {
    schedules.push_back({{"schedule", row.schedule},
                         {"chunks", row.chunks == 0 ? Json() : Json(row.chunks)},
                         {"problems", row.problems},
                         {"better", row.better},
                         {"equal", row.equal},
                         {"worse", row.worse},
                         {"only_solved", row.alone},
                         {"most_gain", row.most_gain},
                         {"most_loss", row.most_loss}});
  }
  for (const SecondsRow& row : sizes) {
    solving.push_back({{"schedule", row.shape.schedule},
                       {"ranks", row.shape.input.ranks},
                       {"chunks", row.shape.input.chunks},
                       {"units", row.shape.units},
                       {"microbatches", row.shape.input.microbatches},
                       {"budget_share", row.share},
                       {"ops", row.ops},
                       {"seconds", row.seconds},
                       {"compute", row.solution.compute_makespan},
                       {"bound", row.solution.lower_bound},
                       {"solved", row.solution.makespan}});
  }
  return {{"budgets", budgets}, {"grid", schedules}, {"solving", solving}};
}

struct TimingRequest {
  int microbatches = std::numeric_limits<int>::max();
  bool json = false, markdown = false;
};

void bench_timing(const TimingRequest& request) {
  const int most = request.microbatches;
  if (request.json) {
    return fmt::print("{}\n", json_of(bound_rows(most), grid_rows(most), seconds_rows(most)).dump());
  }
  const auto text = request.markdown ? markdown_text : aligned_text;
  fmt::print(
      "Time beyond that of the schedule alone, best fixed policy that fits / solved, in forwards of a unit (4 ranks x "
      "8 units):\n\n{}\n",
      text(bound_table(bound_rows(most))));
  std::fflush(stdout);
  fmt::print("Solved against the best fixed policy that fits the same budget:\n\n{}\n",
             text(grid_table(grid_rows(most))));
  std::fflush(stdout);
  fmt::print("Solving, on one thread; the budget between the smallest possible and the largest useful:\n\n{}",
             text(seconds_table(seconds_rows(most))));
}

}  // namespace

void add_bench_timing_command(CLI::App& bench) {
  const auto [command, request] = add_command<TimingRequest>(
      bench, "timing", "reshard timing solved under a budget, against fixed policies", bench_timing);
  command.add_option("--microbatches", request.microbatches, "leave out the cases of more microbatches than so many")
      ->check(positive());
  CLI::Option* json = command.add_flag("--json", request.json, "print one JSON document");
  command.add_flag("--markdown", request.markdown, "print the tables as the documents have them")->excludes(json);
}

}  // namespace weft
