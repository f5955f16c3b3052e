// `weft bench timing --json`, of its smallest cases, against the solver and the fixed policies asked directly.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "parallel/pipeline/timing/fixed.h"
#include "parallel/pipeline/timing/solve.h"
#include "tests/tools/program.h"
#include "tools/bench/timing_cases.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

std::optional<double> best_fixed(const TimingProblem& problem) {
  const auto fixed = best_fixed_timing(problem, false, 32, std::numeric_limits<double>::infinity());
  return fixed ? std::optional(fixed->makespan) : std::nullopt;
}

class BenchTiming : public ProgramTest {
 protected:
  // Parsing refuses anything beside the one document.
  SortedJson document() const {
    const auto result = weft("bench timing --json --microbatches 8");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return SortedJson::parse(result.output);
  }
};

// Numbers are printed with all their digits: they are the same doubles.
TEST_F(BenchTiming, SaysWhatTheSolverSays) {
  const SortedJson report = document();
  const SortedJson& rows = report.at("budgets");
  ASSERT_EQ(rows.size(), 3u * 5u);
  std::size_t next = 0;
  double bound = 0;
  for (const auto& [schedule, chunks] : {std::pair("1f1b", 1), std::pair("interleaved", 2), std::pair("zbv", 2)}) {
    for (const std::int64_t budget : {8, 10, 12, 14, 17}) {
      const SortedJson& row = rows[next++];
      SCOPED_TRACE(row.dump());
      EXPECT_EQ(row.at("schedule"), schedule);
      EXPECT_EQ(row.at("chunks"), chunks);
      EXPECT_EQ(row.at("microbatches"), 8);
      EXPECT_EQ(row.at("budget"), budget);
      const TimingProblem problem =
          timing_problem({.schedule = schedule, .input = {4, chunks, 8}, .budget = 10 * budget});
      const TimingSolution solution = solve_timing(problem, {.fixed_policies = false});
      EXPECT_EQ(row.at("solved").get<double>(), solution.makespan);
      const auto fixed = best_fixed(problem);
      EXPECT_EQ(row.at("fixed").is_null(), !fixed);
      if (fixed) {
        EXPECT_EQ(row.at("fixed").get<double>(), *fixed);
      }
      // The table has one bound a row: that of the smallest budget.
      if (budget == 8) bound = solution.lower_bound;
      EXPECT_EQ(row.at("bound").get<double>(), bound);
      EXPECT_EQ(row.at("compute").get<double>(), solution.compute_makespan);
      EXPECT_GE(solution.lower_bound, solution.compute_makespan);
    }
  }
  EXPECT_TRUE(report.at("solving").empty());  // of 128 microbatches
}

TEST_F(BenchTiming, CountsTheGridBySchedule) {
  const SortedJson rows = document().at("grid");
  std::vector<TimingCase> shapes;
  for (const TimingCase& shape : timing_grid()) {
    if (shape.input.microbatches <= 8) shapes.push_back(shape);
  }
  ASSERT_GT(shapes.size(), 50u);
  const SortedJson& all = rows.back();
  EXPECT_EQ(all.at("schedule"), "all");
  EXPECT_TRUE(all.at("chunks").is_null());
  EXPECT_EQ(all.at("problems"), shapes.size());
  for (const char* key : {"problems", "better", "equal", "worse", "only_solved"}) {
    int sum = 0;
    for (std::size_t row = 0; row + 1 < rows.size(); ++row) sum += rows[row].at(key).get<int>();
    EXPECT_EQ(all.at(key), sum) << key;
  }
  for (const char* key : {"most_gain", "most_loss"}) {
    double most = 0;
    for (std::size_t row = 0; row + 1 < rows.size(); ++row) most = std::max(most, rows[row].at(key).get<double>());
    EXPECT_EQ(all.at(key).get<double>(), most) << key;
  }

  // One schedule counted anew.
  int problems = 0, alone = 0, better = 0, worse = 0;
  double most_gain = 0;
  for (const TimingCase& shape : shapes) {
    if (shape.schedule != "zbv") continue;
    ++problems;
    const TimingProblem problem = timing_problem(shape);
    const double solved = solve_timing(problem, {.fixed_policies = false}).makespan;
    const auto fixed = best_fixed(problem);
    alone += !fixed;
    if (!fixed) continue;
    better += solved < *fixed * (1 - 1e-9);
    worse += solved > *fixed * (1 + 1e-9);
    most_gain = std::max(most_gain, 1 - solved / *fixed);
  }
  const auto row = std::ranges::find_if(rows, [](const SortedJson& one) { return one.at("schedule") == "zbv"; });
  ASSERT_NE(row, rows.end());
  EXPECT_EQ(row->at("chunks"), 2);
  EXPECT_EQ(row->at("problems"), problems);
  EXPECT_EQ(row->at("only_solved"), alone);
  EXPECT_EQ(row->at("better"), better);
  EXPECT_EQ(row->at("worse"), worse);
  EXPECT_EQ(row->at("equal"), problems - alone - better - worse);
  EXPECT_EQ(row->at("most_gain").get<double>(), most_gain);
  EXPECT_GT(better, 0);
}

TEST_F(BenchTiming, IsOneDocumentOrTables) {
  EXPECT_EQ(weft("bench timing --json --markdown").exit_code, 2);
  EXPECT_EQ(weft("bench timing --microbatches 0").exit_code, 2);
}

}  // namespace
}  // namespace weft
