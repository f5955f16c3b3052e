// Muon on any layout is Muon on one rank: the same weights, to the bit.
#include "trainer/optimizer/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "parallel/comm/local.h"
#include "parallel/comm/lone_communicator.h"
#include "tests/parallel/cpu_rank.h"
#include "tests/trainer/muon_reference.h"
#include "tests/trainer/muon_run.h"
#include "trainer/optimizer/update_plan.h"

namespace weft {
namespace {

using muon_reference::Matrix;

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

bool same_bits(const WholeMatrices& a, const WholeMatrices& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& left, const auto& right) {
           return left.first == right.first && left.second.size() == right.second.size() &&
                  std::memcmp(left.second.data(), right.second.data(), left.second.size() * sizeof(float)) == 0;
         });
}

// pp, dp_replicate, dp_shard, cp, tp, ep, etp. One unit's 4 x 24 + 3 x 28 rows of 20 over 3, 4 or 8 shards: cuts fall
// inside matrices, and most ranks have nothing of most of them.
std::vector<TinyLayout> muon_layouts() {
  const std::string mixed = "d e";
  return {{.name = "shard4", .layers = mixed, .degrees = {1, 1, 4, 1, 1, 1, 1}},
          {.name = "tensor4", .layers = mixed, .degrees = {1, 1, 1, 1, 4, 1, 1}},
          {.name = "replicate4", .layers = mixed, .degrees = {1, 4, 1, 1, 1, 1, 1}},
          {.name = "shard2_tensor2", .layers = mixed, .degrees = {1, 1, 2, 1, 2, 1, 1}},
          {.name = "shard3", .layers = mixed, .degrees = {1, 1, 3, 1, 1, 1, 1}},
          {.name = "shard4_expert2_etp2", .layers = mixed, .degrees = {1, 1, 4, 1, 1, 2, 2}},
          {.name = "shard2_replicate2_no_shard",
           .layers = mixed,
           .degrees = {1, 2, 2, 1, 1, 1, 1},
           .strategy = ShardStrategy::no_shard},
          {.name = "shard8", .layers = mixed, .degrees = {1, 1, 8, 1, 1, 1, 1}},
          {.name = "shard2_tensor2_replicate2", .layers = mixed, .degrees = {1, 2, 2, 1, 2, 1, 1}},
          {.name = "shard2_tensor2_replicate2_expert2", .layers = mixed, .degrees = {1, 2, 2, 1, 2, 2, 1}},
          {.name = "shard2_context2_tensor2_expert2_etp2", .layers = mixed, .degrees = {1, 1, 2, 2, 2, 2, 2}},
          {.name = "dense_replicate2_shard4", .layers = "d", .degrees = {1, 2, 4, 1, 1, 1, 1}}};
}

class MuonLayouts : public ::testing::TestWithParam<TinyLayout> {};

// An element of the update is a function of its own gradients. The owner puts the same matrix together whoever sent its
// rows, so products and norm add the same numbers in the same order. A weight is a function of its own direction.
TEST_P(MuonLayouts, EqualOneRankToTheBit) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (DType kept : {DType::float32, DType::bfloat16}) {
      SCOPED_TRACE(fmt::format("{}, momentum in {}", name_of(dtype), name_of(kept)));
      const MuonCase one{tiny_config(GetParam().layers), {.newton_schulz = dtype}, kept},
          many{config_of(GetParam()), {.newton_schulz = dtype}, kept};
      const MuonRun expected = run_muon(one), found = run_muon(many);
      ASSERT_TRUE(found.faults.empty()) << found.faults.front() << " and " << found.faults.size() - 1 << " more";
      ASSERT_TRUE(expected.faults.empty()) << expected.faults.front();
      EXPECT_TRUE(same_bits(found.weights, expected.weights));
      EXPECT_TRUE(same_bits(found.momentum, expected.momentum));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MuonLayouts, ::testing::ValuesIn(muon_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// More ranks than matrices, and the last shards are padding alone.
TEST(Muon, TakesRanksWithoutRows) {
  MuonCase one{tiny_config("d"), {}};
  one.config.model.hidden_size = 4;
  one.config.model.num_attention_heads = one.config.model.num_key_value_heads = 1;
  one.config.model.head_dim = 2;
  one.config.model.intermediate_size = 3;
  MuonCase many = one;
  many.config.parallelism.data_shard = 16;
  const std::vector<HeldRows> held = matrix_rows_of(many.config, Mesh(many.config.parallelism), 0);
  EXPECT_LT(std::ranges::max(held, {}, &HeldRows::rank).rank, 15);
  const MuonRun found = run_muon(many);
  ASSERT_TRUE(found.faults.empty()) << found.faults.front();
  EXPECT_TRUE(same_bits(found.weights, run_muon(one).weights));
}

// The formula in double. In float32 momentum and update are off by 3 roundings of their terms a step at most. The
// direction is off by what newton_schulz_error expects, twice, and the weights by one rounding each of three terms.
TEST(Muon, IsItsFormula) {
  for (MuonScale scale : {MuonScale::match_adamw, MuonScale::aspect}) {
    MuonCase the_case{tiny_config("d e"), {.muon_scale = scale}};
    const MuonRun found = run_muon(the_case);
    EXPECT_EQ(found.weights.size(), 4u + 3 + 4 + 3 * 4);
    for (const auto& [name, weights] : found.weights) {
      const std::int64_t columns = the_case.config.model.hidden_size;
      Matrix expected{std::ssize(weights) / columns, columns, {}};
      for (std::int64_t i = 0; i < std::ssize(weights); ++i) {
        expected.values.push_back(static_cast<float>(first_weight(name, i)));
      }
      Matrix momentum = expected, update = expected;
      std::ranges::fill(momentum.values, 0.0);
      // o_proj and down_proj are kept turned: what they map to has `columns` numbers.
      const bool turned = name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
      const auto rows = static_cast<double>(expected.rows), wide = static_cast<double>(columns);
      const double factor = scale == MuonScale::match_adamw
                                ? 0.2 * std::sqrt(std::max(rows, wide))
                                : std::sqrt(std::max(1.0, turned ? wide / rows : rows / wide));
      double allowed = 0.0;
      for (std::size_t step = 0; step < the_case.gradient_scales.size(); ++step) {
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const double gradient = the_case.gradient_scales[step] *
                                  static_cast<float>(gradient_of_step(name, step, static_cast<std::int64_t>(i)));
          momentum.values[i] = 0.95 * momentum.values[i] + gradient;
          update.values[i] = gradient + 0.95 * momentum.values[i];
        }
        const Matrix direction = muon_reference::newton_schulz(update);
        for (std::size_t i = 0; i < weights.size(); ++i) {
          expected.values[i] -= 0.01 * (factor * direction.values[i] + 0.1 * expected.values[i]);
        }
        allowed += 0.01 * factor * 2 * muon_reference::newton_schulz_error(update, 0x1p-22) +
                   3 * 0x1p-24 * muon_reference::norm(expected);
      }
      const Matrix result{expected.rows, columns, {weights.begin(), weights.end()}};
      EXPECT_LE(muon_reference::distance(result, expected), allowed) << name;
      EXPECT_LE(allowed, 1e-4 * muon_reference::norm(expected)) << name;
    }
  }
}

// The momentum of 30 steps in double. bfloat16 has 8 significant bits. Rounded to the nearest, a number is off by 2^-8
// of itself at most. The error of a step before goes on times the rate. Float32 adds 3 roundings of 2^-24. The update
// is made of the momentum before it is rounded, so it lacks the last step's 2^-8.
TEST(Muon, RoundsMomentumInBfloat16ToTheNearest) {
  constexpr std::int64_t size = 501;
  constexpr double rate = 0.95, scale = 0.5, narrow = 0x1p-8, wide = 3 * 0x1p-24;
  CpuRank rank;
  const auto allocate = [&](DType dtype, std::int64_t count) {
    return rank.ledger.allocate(Bucket::workspace, dtype, count, 1);
  };
  Tensor gradients = allocate(DType::float32, size), momentum = allocate(DType::bfloat16, size),
         alone = allocate(DType::bfloat16, size), update = allocate(DType::float32, size),
         factor = allocate(DType::float32, 1);
  factor.as<float>()[0] = scale;
  std::ranges::fill(momentum.as<bfloat16>(), bfloat16(0.0f));
  std::ranges::fill(alone.as<bfloat16>(), bfloat16(0.0f));
  std::vector<double> exact(size, 0.0), bound(size, 0.0);
  double most = 0.0;  // of the errors over their bounds
  for (std::size_t step = 0; step < 30; ++step) {
    for (std::int64_t i = 0; i < size; ++i) {
      gradients.as<float>()[static_cast<std::size_t>(i)] = static_cast<float>(gradient_of_step("momentum", step, i));
    }
    const MuonKernels kernels = cpu_muon_kernels();
    kernels.momentum(rank.stream, {gradients, factor, static_cast<float>(rate), momentum, update});
    kernels.momentum(rank.stream, {gradients, factor, static_cast<float>(rate), alone, update.view().rows_from(0, 0)});
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double gradient = scale * static_cast<double>(gradients.as<float>()[i]);
      exact[i] = static_cast<double>(static_cast<float>(rate)) * exact[i] + gradient;
      // Of the momentum before it is rounded.
      const double carried = rate * bound[i] + wide * (std::abs(exact[i]) + std::abs(gradient) + bound[i]);
      bound[i] = carried + narrow * (std::abs(exact[i]) + carried);
      const double found = static_cast<float>(momentum.as<bfloat16>()[i]);
      EXPECT_LE(std::abs(found - exact[i]), bound[i]) << "step " << step << ", element " << i;
      if (step == 0) most = std::max(most, std::abs(found - exact[i]) / bound[i]);
      const double nesterov = gradient + static_cast<double>(static_cast<float>(rate)) * exact[i];
      EXPECT_LE(std::abs(static_cast<double>(update.as<float>()[i]) - nesterov),
                rate * carried + wide * (std::abs(nesterov) + std::abs(gradient)))
          << "step " << step << ", element " << i;
      EXPECT_EQ(alone.as<bfloat16>()[i].bits, momentum.as<bfloat16>()[i].bits);
    }
  }
  EXPECT_GT(most, 0.5) << "the first step's errors reach half of their bound";
}

// Halfway between two numbers the even one is taken: of 1 and 1 + 2^-7 the former, of 1 + 2^-7 and 1 + 2^-6 the latter.
TEST(Muon, RoundsMomentumHalfwayToEven) {
  CpuRank rank;
  Tensor gradients = rank.ledger.allocate(Bucket::workspace, DType::float32, 4, 1),
         momentum = rank.ledger.allocate(Bucket::workspace, DType::bfloat16, 4, 1),
         factor = rank.ledger.allocate(Bucket::workspace, DType::float32, 1, 1);
  factor.as<float>()[0] = 1.0f;
  std::ranges::fill(momentum.as<bfloat16>(), bfloat16(0.0f));
  std::ranges::copy(std::vector<float>{1 + 0x1p-8f, 1 + 0x3p-8f, -1 - 0x1p-8f, 1 + 0x1p-8f + 0x1p-20f},
                    gradients.as<float>().begin());
  cpu_muon_kernels().momentum(rank.stream, {gradients, factor, 0.95f, momentum, gradients.view().rows_from(0, 0)});
  const float expected[] = {1.0f, 1 + 0x1p-6f, -1.0f, 1 + 0x1p-7f};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(static_cast<float>(momentum.as<bfloat16>()[i]), expected[i]) << i;
}

// A step whose gradient scale is not finite never was: the other steps leave what they leave without it.
TEST(Muon, ChangesNothingWhenTheGradientScaleIsNotFinite) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    MuonCase the_case{config_of({.layers = "d e", .degrees = {1, 2, 2, 1, 1, 2, 1}}), {.newton_schulz = dtype}, dtype};
    the_case.gradient_scales = {};
    const MuonRun before = run_muon(the_case);
    the_case.gradient_scales = {nan, infinity, -infinity};
    const MuonRun after = run_muon(the_case);
    ASSERT_TRUE(after.faults.empty()) << after.faults.front();
    EXPECT_TRUE(same_bits(after.weights, before.weights));
    EXPECT_TRUE(same_bits(after.momentum, before.momentum));

    the_case.gradient_scales = {0.5f};
    const MuonRun without = run_muon(the_case);
    EXPECT_FALSE(same_bits(without.weights, before.weights));
    the_case.gradient_scales = {0.5f, nan};
    const MuonRun with = run_muon(the_case);
    EXPECT_TRUE(same_bits(with.weights, without.weights));
    EXPECT_TRUE(same_bits(with.momentum, without.momentum));
  }
}

// What each rank would do alone with its rows is another optimizer: blocks of rows that are orthogonal each are not
// orthogonal to each other. 64 x 32 over 8 ranks.
TEST(Muon, IsNotMuonOfEachRanksRows) {
  constexpr std::int64_t rows = 64, columns = 32, ranks = 8;
  Matrix matrix{rows, columns, {}};
  for (std::int64_t i = 0; i < rows * columns; ++i) matrix.values.push_back(gradient_of_step("matrix", 0, i));
  CpuRank rank;
  const auto products = make_cpu_matrix_products();
  const auto orthogonalise = [&](std::int64_t begin, std::int64_t count) {
    const auto first = matrix.values.begin() + begin * columns;
    Tensor tensor = rank.ledger.allocate(Bucket::workspace, DType::float32, count, columns);
    std::copy_n(first, count * columns, tensor.as<float>().begin());
    NewtonSchulzSpace space(rank.ledger, count, columns, DType::float32);
    const ConstTensorView result = newton_schulz(rank.stream, *products, tensor, space);
    return std::vector<double>(result.as<float>().begin(), result.as<float>().end());
  };
  const Matrix whole{rows, columns, orthogonalise(0, rows)};
  Matrix local{rows, columns, {}};
  for (std::int64_t r = 0; r < ranks; ++r) {
    const std::vector<double> part = orthogonalise(r * rows / ranks, rows / ranks);
    local.values.insert(local.values.end(), part.begin(), part.end());
  }
  const double apart = muon_reference::distance(local, whole) / muon_reference::norm(whole);
  EXPECT_GT(apart, 0.3);
  EXPECT_GT(muon_reference::norm(local), 1.2 * muon_reference::norm(whole));
}

TEST(Muon, RefusesRowsThatThePlanDoesNotExpect) {
  CpuRank rank;
  CommunicationCounters counters;
  PhaseClock clock;
  LoneCommunicator stage("tokens", rank.stream, counters, clock);
  const auto products = make_cpu_matrix_products();
  const MatrixPlan plan = plan_matrices(std::vector<HeldRows>{{0, "a", 3, 2, false, 0, 3, true}}, 1);
  const ParameterSpec a = whole_parameter("a", Family::dense, 3, 2, Initializer::normal);
  const ParameterSpec b = whole_parameter("b", Family::dense, 3, 2, Initializer::normal);
  Tensor array = rank.ledger.allocate(Bucket::workspace, DType::float32, 3, 2);
  const MuonRows right{{&a, 0, 3, array, array, 0}, array};
  MuonRows other = right, short_rows = right, late = right;
  other.owned.parameter = &b;
  short_rows.momentum = array.view().rows_from(0, 2);
  late.owned.row_begin = 1;
  const auto message_of = [&](const std::vector<MuonRows>& rows) -> std::string {
    try {
      Muon muon(plan, {}, rows, stage, *products, cpu_muon_kernels(), rank.ledger);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string missing =
      "the plan expects rows 0 to 3 of a on rank 0, as float32 of 2 columns with gradient and momentum";
  EXPECT_EQ(message_of({right}), "no error");
  EXPECT_EQ(message_of({}), missing);
  EXPECT_EQ(message_of({short_rows}), missing);
  EXPECT_EQ(message_of({late}), missing);
  EXPECT_EQ(message_of({right, other}), "the plan knows nothing of the rows from 0 on of b on rank 0");
  EXPECT_EQ(message_of({right, right}), "rows from 0 on of a are given to Muon twice");
}

}  // namespace
}  // namespace weft
