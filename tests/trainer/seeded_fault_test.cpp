// Faults known from other trainers, made on purpose: the comparison that guards each of them must see it. A fault is
// seen when it stands out of the tolerance of layout parity by at least a factor of ten.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"
#include "tests/trainer/step_copy.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// That of parity_test.cpp, where it is derived.
constexpr double seeded_fault_tolerance = 1e-5;
constexpr double visible = 10 * seeded_fault_tolerance;

const TinyLayout faulty_layout{.layers = "d e d e",
                               .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}};

RunDifference against_one_rank(const TinyLayout& layout, const StepCopy& copy) {
  return difference(learn_by_copy(config_of(layout), copy), learn(tiny_config(layout.layers)));
}

// What is changed below is the fault and nothing else.
TEST(SeededFault, TheCopyWithoutAFaultIsTheTrainer) {
  const LearnedRun copy = learn_by_copy(config_of(faulty_layout)), trainer = learn(config_of(faulty_layout));
  EXPECT_TRUE(copy.faults.empty());
  EXPECT_TRUE(difference(copy, trainer).bitwise_equal);
  EXPECT_EQ(copy.gradient_norms, trainer.gradient_norms);
  const RunDifference apart = against_one_rank(faulty_layout, {});
  EXPECT_LT(apart.loss, seeded_fault_tolerance);
  EXPECT_LT(apart.gradient_norm, seeded_fault_tolerance);
  EXPECT_LT(apart.weights, seeded_fault_tolerance);
}

TEST(SeededFault, ExpertGradientsMultipliedByTheExpertDegree) {
  const TinyLayout layout{.layers = "e*4", .degrees = {.data_shard = 2, .expert = 2}};
  StepCopy copy;
  copy.after_reduction = [](Stream& stream, RankStages& stage) {
    for (std::size_t u = 0; u < stage.planned_units().size(); ++u) {
      if (stage.planned_units()[u]->plan.family != Family::experts) continue;
      for (const OwnedRows& rows : stage.owned_rows(u)) {
        combine(stream, 1.0f, rows.gradients, 1.0f, rows.gradients);  // twice as much
      }
    }
  };
  const RunDifference apart = against_one_rank(layout, copy);
  EXPECT_GT(apart.gradient_norm, visible);
  EXPECT_GT(apart.weights, visible);
  EXPECT_NE(apart.worst_parameter.find("experts"), std::string::npos) << apart.worst_parameter;
}

// The coefficient stands for its gradient: 0 drops it, a multiple by the number of microbatches is the mean taken once
// too rarely.
TEST(SeededFault, AuxiliaryLossDroppedOrScaledUnderPipelining) {
  const TinyLayout layout{.layers = "e*4", .degrees = {.pipeline = 2}};
  const LearnedRun one = learn(tiny_config(layout.layers));
  for (const double factor : {0.0, static_cast<double>(config_of(layout).microbatches())}) {
    Config config = config_of(layout);
    config.model.moe.router_aux_loss_coef *= factor;
    const LearnedRun faulty = learn(config);
    const RunDifference apart = difference(faulty, one);
    EXPECT_GT(apart.weights, visible) << factor;
    EXPECT_NE(apart.worst_parameter.find("router"), std::string::npos) << apart.worst_parameter;
    const double reported = faulty.result.steps.front().moe.front().auxiliary_loss;
    const double right = one.result.steps.front().moe.front().auxiliary_loss;
    EXPECT_GT(std::abs(reported - right), visible * right) << factor;
  }
}

// Adam is almost blind to the scale of all gradients, which is how this one stays hidden elsewhere. The norm that is
// reported is the one before clipping, so that only weights can show it.
TEST(SeededFault, ClippingByTheSquareOfTheNorm) {
  StepCopy copy;
  copy.clip = [](double norm, double largest) { return norm > largest ? largest / (norm * norm) : 1.0; };
  Config config = config_of(faulty_layout);
  config.training.max_grad_norm = 0.3;
  const LearnedRun faulty = learn_by_copy(config, copy);
  Config one = tiny_config(faulty_layout.layers);
  one.training.max_grad_norm = 0.3;
  const LearnedRun right = learn(one);
  for (double norm : right.gradient_norms) EXPECT_GT(norm, 0.3);  // every step clips
  EXPECT_GT(difference(faulty, right).weights, visible);
  // Clipping itself is visible in the same way.
  one.training.max_grad_norm = 0.0;
  EXPECT_GT(difference(learn(one), right).weights, visible);
}

// Every rank counts all rows it owns: replicas and tensor-replicated parameters enter several times.
TEST(SeededFault, HeldTwiceAndCountedTwiceInTheNorm) {
  const auto count_all = [](Stream& stream, const PlannedUnit&, std::span<const OwnedRows> rows, const Mesh&, int,
                            TensorView sum) {
    for (const OwnedRows& owned : rows) square_sum(stream, owned.gradients, sum);
  };
  // Routing helpers alone are enough, and so are norm weights alone.
  const auto count_routing = [&](Stream& stream, const PlannedUnit& unit, std::span<const OwnedRows> rows,
                                 const Mesh& mesh, int rank, TensorView sum) {
    if (unit.plan.replicated()) return count_all(stream, unit, rows, mesh, rank, sum);
    add_counted_squares(stream, unit, rows, mesh, rank, sum);
  };
  const auto count_tensor_replicated = [&](Stream& stream, const PlannedUnit& unit, std::span<const OwnedRows> rows,
                                           const Mesh& mesh, int rank, TensorView sum) {
    if (counts_unit(unit, mesh, rank)) count_all(stream, unit, rows, mesh, rank, sum);
  };
  const TinyLayout replicated{.degrees = {.data_replicate = 2}}, tensor{.degrees = {.tensor = 2}};
  const TinyLayout moe{.layers = "e*4", .degrees = {.data_shard = 2}};
  EXPECT_GT(against_one_rank(replicated, {.add_squares = count_all}).gradient_norm, visible);
  EXPECT_GT(against_one_rank(tensor, {.add_squares = count_tensor_replicated}).gradient_norm, visible);
  EXPECT_GT(against_one_rank(moe, {.add_squares = count_routing}).gradient_norm, visible);
}

TEST(SeededFault, ADataRankReadsTheSamplesOfAnother) {
  const TinyLayout layout{.degrees = {.data_shard = 4}};
  const RunDifference apart = against_one_rank(layout, {.data_rank = [](int own) { return own == 3 ? 2 : own; }});
  EXPECT_GT(apart.loss, visible);
  EXPECT_GT(apart.weights, visible);
  // An exchange of two ranks trains on the same batch: not a fault, and not taken for one.
  const RunDifference swapped = against_one_rank(layout, {.data_rank = [](int own) { return own ^ 1; }});
  EXPECT_LT(swapped.loss, seeded_fault_tolerance);
  EXPECT_LT(swapped.weights, seeded_fault_tolerance);
}

// Replicas must stay equal to the bit. One element of one rank off by the smallest amount is reported by name.
TEST(SeededFault, WeightsOfOneReplicaPerturbed) {
  for (const TinyLayout& layout : {TinyLayout{.degrees = {.data_replicate = 2}},
                                   TinyLayout{.degrees = {.data_shard = 2}, .strategy = ShardStrategy::no_shard}}) {
    RunObserver observer;
    std::string name;
    observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
      if (run.rank() != 1 || metrics.step != 10) return;
      const OwnedRows rows = run.stages().owned_rows(1).back();
      name = rows.parameter->name;
      const TensorView first = rows.values.reshaped(rows.values.size(), 1).rows_from(0, 1);
      const float perturbed = std::nextafter(read<float>(run.stream(), first).front(), 2.0f);
      write<float>(run.stream(), {&perturbed, 1}, first);
    };
    const LearnedRun faulty = learn(config_of(layout), observer);
    ASSERT_EQ(faulty.faults.size(), 1u);
    EXPECT_NE(faulty.faults.front().find(name + "["), std::string::npos) << faulty.faults.front();
    EXPECT_NE(faulty.faults.front().find("differs between its holders"), std::string::npos);
  }
}

StepCopy with_link(const LinkFaults& faults) {
  StepCopy copy;
  copy.link_faults = [faults] { return faults; };
  return copy;
}

// Each rank steps its router by the tokens it saw itself: replicas part, and none learns what one rank learns.
TEST(SeededFault, RoutingGradientsNotSummed) {
  const TinyLayout layout{.layers = "e*4", .degrees = {.data_shard = 2}};
  LinkFaults faults;
  faults.all_reduce = [](Communicator& group, TensorView data) {
    if (group.group() != "tokens") group.all_reduce(data);
  };
  const LearnedRun faulty = learn_by_copy(config_of(layout), with_link(faults));
  const RunDifference apart = difference(faulty, learn(tiny_config(layout.layers)));
  EXPECT_GT(apart.gradient_norm, visible);
  EXPECT_GT(apart.weights, visible);
  EXPECT_NE(apart.worst_parameter.find("router"), std::string::npos) << apart.worst_parameter;
  ASSERT_FALSE(faulty.faults.empty());
  EXPECT_NE(faulty.faults.front().find("router.weight["), std::string::npos) << faulty.faults.front();
}

// Reduced gradients are reduced once more. Over the replicas that doubles every gradient, and clipping and Adam hide it
// from the weights. Over the shard group it adds rows of other parameters.
TEST(SeededFault, GradientsReducedTwice) {
  const TinyLayout layout{.degrees = {.data_replicate = 2, .data_shard = 2}};
  LinkFaults over_replicas, over_shards;
  over_replicas.all_reduce = [](Communicator& group, TensorView data) {
    group.all_reduce(data);
    if (group.group() == "dp_replicate") group.all_reduce(data);
  };
  const RunDifference doubled = against_one_rank(layout, with_link(over_replicas));
  EXPECT_NEAR(doubled.gradient_norm, 1.0, 0.1);
  over_shards.reduce_scatter = [](Communicator& group, ConstTensorView input, TensorView output) {
    group.reduce_scatter(input, output);
    if (group.group() == "dp_shard") group.all_reduce(output);
  };
  const RunDifference mixed = against_one_rank(layout, with_link(over_shards));
  EXPECT_GT(mixed.gradient_norm, visible);
  EXPECT_GT(mixed.weights, visible);
}

// One rank gives the shard that it had a step before. Every unit is gathered once a step, so that the gathers of a step
// are known by their number.
TEST(SeededFault, AGatherOfTheLastStepsShard) {
  const TinyLayout layout{.degrees = {.data_shard = 4}, .residency = "step"};
  const Config config = config_of(layout);
  const Program program = step_program(ResolvedRun(config), {});
  const auto gathers = static_cast<std::size_t>(
      std::ranges::count_if(program.ranks.front(), [](const Action& action) { return is_gather(action.op); }));
  ASSERT_EQ(gathers, program.units.size());
  StepCopy copy;
  copy.link_faults = [gathers] {
    LinkFaults faults;
    faults.all_gather = [gathers, call = std::size_t{0}, last = std::vector<std::vector<float>>(gathers)](
                            Communicator& group, ConstTensorView input, TensorView output) mutable {
      if (group.group() != "dp_shard") return group.all_gather(input, output);
      std::vector<float>& shard = last[call++ % gathers];
      const std::vector<float> present = read<float>(group.stream(), input);
      const TensorView own = output.rows_from(group.rank() * input.size(), input.size());
      if (group.rank() == 1 && !shard.empty()) write<float>(group.stream(), shard, own);
      shard = present;
      group.all_gather(own, output);
    };
    return faults;
  };
  const RunDifference apart = against_one_rank(layout, copy);
  EXPECT_GT(apart.loss, visible);
  EXPECT_GT(apart.weights, visible);
  // The first step has no step before it.
  Config first = config;
  first.run.steps = 1;
  EXPECT_LT(difference(learn_by_copy(first, copy), learn(first)).weights, seeded_fault_tolerance);
}

// Ranks 0 and 2 hold the shards of experts 0 and 1, ranks 1 and 3 those of 2 and 3. Here each reduces with another rank
// of the dense group, which holds the other shard of other experts.
TEST(SeededFault, ExpertsReducedOverRanksOfTheDenseGroup) {
  const TinyLayout layout{.layers = "e*4", .degrees = {.data_shard = 4, .expert = 2}};
  ASSERT_EQ(Mesh(layout.degrees).group_of(Group::edp_shard, 0), (std::vector<int>{0, 2}));
  StepCopy copy;
  copy.link_faults = [] {
    LinkFaults faults;
    // Of the two communicators of the group the first gathers and the second reduces.
    faults.place = [made = 0](const Communicator& world, const std::string& name, int color, int key) mutable {
      const bool reduces = name == "edp_shard" && ++made == 2;
      const bool outer = world.rank() == 0 || world.rank() == 3;
      return reduces ? std::pair(outer ? 0 : 1, world.rank()) : std::pair(color, key);
    };
    return faults;
  };
  const RunDifference apart = against_one_rank(layout, copy);
  EXPECT_GT(apart.gradient_norm, visible);
  EXPECT_GT(apart.weights, visible);
  EXPECT_NE(apart.worst_parameter.find("experts"), std::string::npos) << apart.worst_parameter;
}

}  // namespace
}  // namespace weft
