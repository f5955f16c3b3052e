// Plans of who orthogonalises what: every row travels once, the work is balanced, and what cannot be is refused.
#include "trainer/optimizer/muon_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/range.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/optimizer/update_plan.h"

namespace weft {
namespace {

// Two matrices over three ranks: "a" in uneven parts with nothing on rank 1, and again on rank 2; "b" on rank 1 alone.
std::vector<HeldRows> small_stage() {
  return {{0, "a", 7, 4, false, 0, 5, true},
          {2, "a", 7, 4, false, 5, 2, true},
          {2, "a", 7, 4, false, 0, 5, false},
          {1, "b", 3, 9, true, 0, 3, true}};
}

std::vector<std::int64_t> flops_of_ranks(const MatrixPlan& plan) {
  std::vector<std::int64_t> flops(static_cast<std::size_t>(plan.ranks), 0);
  for (const PlannedMatrix& matrix : plan.matrices) flops[static_cast<std::size_t>(matrix.owner)] += matrix.flops;
  return flops;
}

// The largest of flops_of_ranks() over their mean; 1 without matrices.
double imbalance(const MatrixPlan& plan) {
  const std::vector<std::int64_t> flops = flops_of_ranks(plan);
  const auto sum = static_cast<double>(std::accumulate(flops.begin(), flops.end(), std::int64_t{0}));
  return sum == 0.0 ? 1.0 : static_cast<double>(*std::max_element(flops.begin(), flops.end())) * plan.ranks / sum;
}

// Runs of rows. require_exact() demands that each run begins at the end of the run before.
class Cover {
 public:
  Cover(const PlannedMatrix& matrix, std::string what) : matrix_(matrix), what_(std::move(what)) {}
  void add(std::int64_t row_begin, std::int64_t rows) { runs_.emplace_back(row_begin, row_begin + rows); }
  void require_exact(std::int64_t begin, std::int64_t end) {
    std::sort(runs_.begin(), runs_.end());
    for (const auto& [first, last] : runs_) {
      if (first > begin) fail("rows {} to {} of {} {} by no rank", begin, first, matrix_.name, what_);
      if (first < begin) fail("rows {} to {} of {} {} twice", first, std::min(begin, last), matrix_.name, what_);
      begin = last;
    }
    if (begin < end) fail("rows {} to {} of {} {} by no rank", begin, end, matrix_.name, what_);
    if (begin > end) fail("rows {} to {} of {} {} beyond its end", end, begin, matrix_.name, what_);
  }

 private:
  const PlannedMatrix& matrix_;
  std::string what_;
  std::vector<std::pair<std::int64_t, std::int64_t>> runs_;
};

// (rank, matrix, row_begin, rows) of held rows and of moved rows, compared as sets.
using RowsOfRank = std::tuple<int, std::string, std::int64_t, std::int64_t>;

std::string to_text(const RowsOfRank& rows) {
  const auto& [rank, matrix, begin, count] = rows;
  return fmt::format("rows {} to {} of {} on rank {}", begin, begin + count, matrix, rank);
}

// Checks a plan against the held rows, without code of plan_matrices(). A rank that holds a row sends it to the owner
// of its matrix, each row exactly once. The owner sends each row exactly once to each holder. Throws Error naming
// matrix and rows.
void check_plan(const MatrixPlan& plan, std::span<const HeldRows> held) {
  const auto moved = [&](int rank, const RowMove& move) {
    require(move.matrix < plan.matrices.size(), "a move is of a matrix of the plan");
    return RowsOfRank(rank, plan.matrices[move.matrix].name, move.row_begin, move.rows);
  };
  std::vector<RowsOfRank> held_rows, sent_back;
  for (const HeldRows& rows : held) held_rows.emplace_back(rows.rank, rows.matrix, rows.row_begin, rows.rows);
  std::sort(held_rows.begin(), held_rows.end());

  std::vector<Cover> sent;
  for (const PlannedMatrix& matrix : plan.matrices) sent.emplace_back(matrix, "are sent to their owner");
  for (const RowMove& move : plan.to_owners) {
    const RowsOfRank rows = moved(move.from, move);
    if (move.to != plan.matrices[move.matrix].owner)
      fail("{} are sent to rank {}, not to the owner", to_text(rows), move.to);
    if (!std::binary_search(held_rows.begin(), held_rows.end(), rows)) fail("{} are sent but not held", to_text(rows));
    sent[move.matrix].add(move.row_begin, move.rows);
  }
  for (std::size_t m = 0; m < sent.size(); ++m) sent[m].require_exact(0, plan.matrices[m].rows);

  for (const RowMove& move : plan.to_holders) {
    const RowsOfRank rows = moved(move.to, move);
    if (move.from != plan.matrices[move.matrix].owner)
      fail("{} come from rank {}, not from the owner", to_text(rows), move.from);
    sent_back.push_back(rows);
  }
  std::sort(sent_back.begin(), sent_back.end());
  for (const auto* rows : {&held_rows, &sent_back}) {
    for (std::size_t i = 1; i < rows->size(); ++i) {
      const auto& [rank, matrix, begin, count] = (*rows)[i - 1];
      const auto& [next_rank, next_matrix, next_begin, next_count] = (*rows)[i];
      if (rank == next_rank && matrix == next_matrix && next_begin < begin + count) {
        fail("{} overlap {}", to_text((*rows)[i]), to_text((*rows)[i - 1]));
      }
    }
  }
  std::vector<RowsOfRank> differing;
  std::set_symmetric_difference(held_rows.begin(), held_rows.end(), sent_back.begin(), sent_back.end(),
                                std::back_inserter(differing));
  if (!differing.empty()) fail("{} do not come back as they are held", to_text(differing.front()));
}

TEST(MuonPlan, SaysWhoSendsWhichRowsWhere) {
  const MatrixPlan plan = plan_matrices(small_stage(), 3);
  // "a" costs 5 (4 16 7 + 2 64) = 2880, "b" 5 (4 9 9 + 2 27) = 1890.
  const std::vector<PlannedMatrix> matrices = {{"a", 7, 4, false, 0, 2880}, {"b", 3, 9, true, 1, 1890}};
  const std::vector<RowMove> to_owners = {{0, 0, 0, 0, 5}, {1, 1, 1, 0, 3}, {2, 0, 0, 5, 2}};
  const std::vector<RowMove> to_holders = {{0, 0, 0, 0, 5}, {0, 2, 0, 0, 5}, {0, 2, 0, 5, 2}, {1, 1, 1, 0, 3}};
  EXPECT_EQ(plan.matrices, matrices);
  EXPECT_EQ(plan.to_owners, to_owners);
  EXPECT_EQ(plan.to_holders, to_holders);
  EXPECT_EQ(flops_of_ranks(plan), (std::vector<std::int64_t>{2880, 1890, 0}));
  EXPECT_DOUBLE_EQ(imbalance(plan), 2880.0 * 3 / (2880 + 1890));
}

TEST(MuonPlan, DoesNotDependOnTheOrderOfWhatIsHeld) {
  std::vector<HeldRows> held = small_stage();
  const MatrixPlan plan = plan_matrices(held, 3);
  std::mt19937 generator(3);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(held.begin(), held.end(), generator);
    EXPECT_EQ(plan_matrices(held, 3), plan);
  }
}

TEST(MuonPlan, OfNoMatricesIsEmpty) {
  const MatrixPlan plan = plan_matrices({}, 4);
  EXPECT_TRUE(plan.to_owners.empty() && plan.to_holders.empty());
  EXPECT_EQ(imbalance(plan), 1.0);
}

// Largest first to the least loaded: when the fullest rank took its last matrix it had at most the mean.
TEST(MuonPlan, BalancesTheWork) {
  std::mt19937 generator(4);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = std::uniform_int_distribution(1, 9)(generator);
    std::uniform_int_distribution<std::int64_t> sizes(1, 300);
    std::vector<HeldRows> held;
    for (int m = std::uniform_int_distribution(1, 60)(generator); m > 0; --m) {
      const std::int64_t rows = sizes(generator), columns = sizes(generator);
      for (int rank = 0; rank < ranks; ++rank) {
        const Range part = balanced_part(rows, ranks, rank);
        if (part.count == 0) continue;
        held.push_back({rank, fmt::format("matrix {}", m), rows, columns, false, part.begin, part.count, true});
      }
    }
    const MatrixPlan plan = plan_matrices(held, ranks);
    check_plan(plan, held);
    double sum = 0.0, largest = 0.0;
    for (const PlannedMatrix& matrix : plan.matrices) {
      sum += static_cast<double>(matrix.flops);
      largest = std::max(largest, static_cast<double>(matrix.flops));
    }
    EXPECT_LE(imbalance(plan), (1 + largest / (sum / ranks)) * (1 + 1e-12));
    const std::vector<std::int64_t> flops = flops_of_ranks(plan);
    EXPECT_LE(static_cast<double>(*std::max_element(flops.begin(), flops.end())),
              (sum / ranks + largest) * (1 + 1e-12));
  }
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MuonPlan, RefusesRowsThatDoNotMakeTheMatrix) {
  struct Fault {
    std::function<void(std::vector<HeldRows>&)> make;
    std::string expected;
  };
  const std::vector<Fault> faults = {
      {[](auto& held) { held.erase(held.begin() + 1); }, "rows 5 to 7 of a are sent to their owner by no rank"},
      {[](auto& held) { held.erase(held.begin()); }, "rows 0 to 5 of a are sent to their owner by no rank"},
      {[](auto& held) { held[1] = {2, "a", 7, 4, false, 6, 1, true}; },
       "rows 5 to 6 of a are sent to their owner by no rank"},
      {[](auto& held) { held[2].first = true; }, "rows 0 to 5 of a are sent to their owner twice"},
      {[](auto& held) { held[1] = {2, "a", 7, 4, false, 4, 3, true}; },
       "rows 4 to 5 of a are sent to their owner twice"},
      {[](auto& held) { held[3].first = false; }, "rows 0 to 3 of b are sent to their owner by no rank"},
  };
  for (const Fault& fault : faults) {
    std::vector<HeldRows> held = small_stage();
    fault.make(held);
    EXPECT_EQ(message_of([&] { plan_matrices(held, 3); }), fault.expected);
  }
}

// The check stands alone: plans that nobody made from these rows.
TEST(MuonPlan, TheCheckSeesEveryMoveThatIsWrong) {
  struct Fault {
    std::function<void(MatrixPlan&)> make;
    std::string expected;
  };
  const std::vector<Fault> faults = {
      {[](auto& plan) { plan.to_owners.erase(plan.to_owners.begin()); },
       "rows 0 to 5 of a are sent to their owner by no rank"},
      {[](auto& plan) { plan.to_owners.push_back(plan.to_owners[0]); },
       "rows 0 to 5 of a are sent to their owner twice"},
      {[](auto& plan) { plan.to_owners[0].to = 1; }, "rows 0 to 5 of a on rank 0 are sent to rank 1, not to the owner"},
      {[](auto& plan) { plan.to_owners[0].from = 1; }, "rows 0 to 5 of a on rank 1 are sent but not held"},
      {[](auto& plan) { plan.to_holders.erase(plan.to_holders.begin() + 1); },
       "rows 0 to 5 of a on rank 2 do not come back as they are held"},
      {[](auto& plan) { plan.to_holders.push_back(plan.to_holders[0]); },
       "rows 0 to 5 of a on rank 0 overlap rows 0 to 5 of a on rank 0"},
      {[](auto& plan) { plan.to_holders[0].from = 2; },
       "rows 0 to 5 of a on rank 0 come from rank 2, not from the owner"},
      {[](auto& plan) { plan.to_holders[0].rows = 4; }, "rows 0 to 4 of a on rank 0 do not come back as they are held"},
      {[](auto& plan) { plan.matrices[0].rows = 6; }, "rows 6 to 7 of a are sent to their owner beyond its end"},
  };
  const MatrixPlan right = plan_matrices(small_stage(), 3);
  EXPECT_EQ(message_of([&] { check_plan(right, small_stage()); }), "no error");
  for (const Fault& fault : faults) {
    MatrixPlan plan = right;
    fault.make(plan);
    EXPECT_EQ(message_of([&] { check_plan(plan, small_stage()); }), fault.expected);
  }
}

// Real stages: every rank's rows from coordinates alone.

std::vector<TinyLayout> stages() {
  // pp, dp_replicate, dp_shard, cp, tp, ep, etp
  return {{.name = "one", .layers = "d e", .degrees = {}},
          {.name = "shard4", .layers = "d e", .degrees = {1, 1, 4, 1, 1, 1, 1}},
          {.name = "pp2_shard3_tp2", .layers = "d e d e", .degrees = {2, 1, 3, 1, 2, 1, 1}},
          {.name = "replicate2_shard2_tp2_ep2", .layers = "d e", .degrees = {1, 2, 2, 1, 2, 2, 1}},
          {.name = "shard2_cp2_tp2_ep2_etp2", .layers = "d e", .degrees = {1, 1, 2, 2, 2, 2, 2}},
          {.name = "shard4_ep2_etp2", .layers = "d e", .degrees = {1, 1, 4, 1, 1, 2, 2}},
          {.name = "replicate2_shard2_ep4", .layers = "d e", .degrees = {1, 2, 2, 1, 1, 4, 1}},
          {.name = "no_shard_2_tp2",
           .layers = "d e",
           .degrees = {1, 1, 2, 1, 2, 1, 1},
           .strategy = ShardStrategy::no_shard}};
}

TEST(MuonRows, AreAllMatricesBetweenHiddenStatesOnce) {
  for (const TinyLayout& layout : stages()) {
    SCOPED_TRACE(layout.name);
    const Config config = config_of(layout);
    const Mesh mesh(config.parallelism);
    std::map<std::string, std::int64_t> first_rows, size;
    for (int stage = 0; stage < config.parallelism.pipeline; ++stage) {
      const std::vector<HeldRows> held = matrix_rows_of(config, mesh, stage);
      EXPECT_NO_THROW(check_plan(plan_matrices(held, config.parallelism.stage_ranks()), held));
      for (const HeldRows& rows : held) {
        if (rows.first) first_rows[rows.matrix] += rows.rows;
        size[rows.matrix] = rows.matrix_rows;
      }
    }
    EXPECT_EQ(first_rows, size);
    // q, k, v, o of every block; gate, up, down of the dense ones and of each of four experts of the others.
    std::set<std::string> expected;
    for (std::size_t block = 0; block < config.model.blocks.size(); ++block) {
      for (const char* which : {"q", "k", "v", "o"}) {
        expected.insert(fmt::format("blocks.{}.attention.{}_proj.weight", block, which));
      }
      const bool dense = config.model.blocks[block] == BlockKind::dense;
      for (const char* which : {"gate", "up", "down"}) {
        if (dense) expected.insert(fmt::format("blocks.{}.mlp.{}_proj.weight", block, which));
        for (int e = 0; e < 4 && !dense; ++e) {
          expected.insert(fmt::format("blocks.{}.experts.{}.{}_proj.weight", block, e, which));
        }
      }
    }
    std::set<std::string> found;
    for (const auto& [name, rows] : size) found.insert(name);
    EXPECT_EQ(found, expected);
  }
}

TEST(MuonRows, LeaveVectorsTablesAndTheRouterAlone) {
  ParameterSpec vector = whole_parameter("norm", Family::dense, 8, 1, Initializer::ones);
  ParameterSpec router = whole_parameter("router", Family::routing, 4, 8, Initializer::normal);
  ParameterSpec table = whole_parameter("embedding", Family::embedding, 64, 8, Initializer::normal);
  ParameterSpec head = whole_parameter("head", Family::head, 64, 8, Initializer::normal);
  for (const ParameterSpec& spec : {vector, router, table, head}) EXPECT_FALSE(takes_muon(spec)) << spec.name;
  EXPECT_TRUE(takes_muon(whole_parameter("q", Family::dense, 64, 8, Initializer::normal)));
  EXPECT_TRUE(takes_muon(whole_parameter("up", Family::experts, 64, 8, Initializer::normal)));
}

}  // namespace
}  // namespace weft
