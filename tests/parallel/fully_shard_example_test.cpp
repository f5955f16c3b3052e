// A model of one's own under shard units, without a configuration file: y = w2 tanh(w1 x) on four ranks. Each rank has
// its own sample, and the same model runs beside it whole on one rank.
#include "parallel/shard/fully_shard.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <span>

#include "parallel/comm/local.h"
#include "tests/parallel/unit_fixture.h"

namespace weft {
namespace {

constexpr std::size_t width = 3;
constexpr int samples = 4;

// What a segment declares: its place, its name and its parameters.
struct Layer {
  std::string scope() const { return label; }
  std::string name() const { return label; }
  const std::vector<ParameterSpec>& parameters() const { return declared; }
  std::string label;
  std::vector<ParameterSpec> declared;
};
std::vector<std::unique_ptr<Layer>> model() {
  std::vector<std::unique_ptr<Layer>> layers;
  for (const auto& [label, rows] : {std::pair("blocks.0", 3), {"blocks.1", 1}}) {
    const auto weight = whole_parameter(std::string(label) + ".weight", Family::dense, rows, 3, Initializer::normal);
    layers.push_back(std::make_unique<Layer>(label, std::vector{weight}));
  }
  return layers;
}

struct Gradients {
  std::array<double, width * width> first{};
  std::array<double, width> second{};
};
// Of (y - 1)^2 / 2 for sample `s`, whose elements are s + 1, s + 2, ... tenths.
Gradients gradients(std::span<const float> w1, std::span<const float> w2, int s) {
  std::array<double, width> x{}, hidden{};
  double y = 0.0;
  for (std::size_t i = 0; i < width; ++i) x[i] = static_cast<double>(static_cast<std::size_t>(s) + i + 1) / 10.0;
  for (std::size_t h = 0; h < width; ++h) {
    for (std::size_t i = 0; i < width; ++i) hidden[h] += w1[h * width + i] * x[i];
    hidden[h] = std::tanh(hidden[h]);
    y += w2[h] * hidden[h];
  }
  Gradients result;
  for (std::size_t h = 0; h < width; ++h) {
    result.second[h] = (y - 1.0) * hidden[h];
    for (std::size_t i = 0; i < width; ++i) {
      result.first[h * width + i] = (y - 1.0) * w2[h] * (1.0 - hidden[h] * hidden[h]) * x[i];
    }
  }
  return result;
}

// The example: wrap, gather, compute, reduce, step the rows that this rank owns.
void train(Communicator& world, int steps, std::vector<float>& last) {
  UnitRank rank(world, {.shard = samples});
  FullyShardPolicy policy;
  policy.shards = [](Family) { return samples; };
  const std::vector<FullyShardedUnit> wrapped = fully_shard(pieces_of(model()), 0, policy);
  std::vector<std::unique_ptr<ShardUnit>> units;
  for (const FullyShardedUnit& unit : wrapped) {
    UnitSetup setup{.layout = unit.layout, .precision = unit.precision, .frozen = unit.frozen};
    units.push_back(
        std::make_unique<ShardUnit>(std::move(setup), rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger));
    store_values(*units.back());
  }
  for (int step = 0; step < steps; ++step) {
    for (auto& unit : units) {
      unit->begin_step();
      unit->unshard();
      unit->wait_until_unsharded();
    }
    const Gradients of_sample =
        gradients(units[0]->parameter(0).as<float>(), units[1]->parameter(0).as<float>(), world.rank());
    std::ranges::copy(of_sample.first, units[0]->gradient(0).view.as<float>().begin());
    std::ranges::copy(of_sample.second, units[1]->gradient(0).view.as<float>().begin());
    for (auto& unit : units) {
      unit->reshard();
      unit->reduce_gradient();
      unit->wait_reduction();
      for (const OwnedRows& rows : unit->owned_rows()) {
        const auto values = rows.values.as<float>(), gradient = rows.gradients.as<float>();
        for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 0.1f * gradient[i];
      }
    }
  }
  for (auto& unit : units) {
    unit->unshard();
    unit->wait_until_unsharded();
    if (world.rank() == 0) {
      const auto values = unit->parameter(0).as<float>();
      last.insert(last.end(), values.begin(), values.end());
    }
  }
}

TEST(FullyShardExample, TrainsAModelOfItsOwnAsOneRankDoes) {
  constexpr int steps = 20;
  std::vector<float> sharded;
  run_local_ranks(samples, [&](Communicator& world) { train(world, steps, sharded); });

  std::vector<float> whole;
  for (const auto& layer : model()) {
    const ParameterSpec& weight = layer->declared[0];
    for (std::int64_t i = 0; i < weight.global_size(); ++i) whole.push_back(value_at(weight, i / 3, i % 3));
  }
  const std::vector<float> begun = whole;
  const std::span<float> w1(whole.data(), width * width), w2(whole.data() + width * width, width);
  for (int step = 0; step < steps; ++step) {
    Gradients sum;
    for (int s = 0; s < samples; ++s) {
      const Gradients one = gradients(w1, w2, s);
      for (std::size_t i = 0; i < sum.first.size(); ++i) sum.first[i] += one.first[i];
      for (std::size_t i = 0; i < sum.second.size(); ++i) sum.second[i] += one.second[i];
    }
    for (std::size_t i = 0; i < sum.first.size(); ++i) w1[i] -= 0.1f * static_cast<float>(sum.first[i]);
    for (std::size_t i = 0; i < sum.second.size(); ++i) w2[i] -= 0.1f * static_cast<float>(sum.second[i]);
  }
  ASSERT_EQ(sharded.size(), whole.size());
  // 20 steps of sums in float32 of values below 4.
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(sharded[i], whole[i], 20 * 4 * 6e-8 * 4);
  EXPECT_GT(std::abs(whole[0] - begun[0]) + std::abs(whole[9] - begun[9]), 1e-2);
}

// A family that nobody names: the root unit, and a warning.
TEST(FullyShard, PutsParametersWithoutAFamilyIntoTheRootUnitAndSaysSo) {
  std::vector<std::unique_ptr<Layer>> layers = model();
  layers[1]->declared.push_back(whole_parameter("blocks.1.adapter", Family::root, 2, 3, Initializer::zeros));
  layers[1]->declared.push_back(whole_parameter("blocks.1.router", Family::routing, 2, 3, Initializer::zeros));
  FullyShardPolicy policy;
  policy.shards = [](Family family) { return family == Family::root ? 2 : 4; };
  policy.frozen = {Family::root};
  policy.wrap.replicate = {"blocks.0.*"};
  policy.precision = [](Family) { return bfloat16_compute; };
  const std::vector<FullyShardedUnit> wrapped = fully_shard(pieces_of(layers), 1, policy);
  ASSERT_EQ(wrapped.size(), 4u);
  EXPECT_EQ(wrapped[0].plan.name, "blocks.1.dense");
  EXPECT_EQ(wrapped[0].layout.shards, 4);
  EXPECT_EQ(wrapped[0].precision, bfloat16_compute);
  EXPECT_EQ(wrapped[1].plan.name, "stage.1.root");
  EXPECT_EQ(wrapped[1].layout.shards, 2);
  EXPECT_TRUE(wrapped[1].frozen);
  // In no unit: as asked, to compute with in bfloat16, and the router.
  EXPECT_TRUE(wrapped[2].plan.replicated() && wrapped[3].plan.replicated());
  EXPECT_EQ(wrapped[2].precision.compute, DType::bfloat16);
  EXPECT_EQ(wrapped[3].precision, UnitPrecision());
  EXPECT_EQ(
      family_warning(wrapped[1].plan),
      "blocks.1.adapter is of no family that forms units: it lies in stage.1.root, gathered with all that it holds");
  EXPECT_EQ(family_warning(wrapped[0].plan), "");
}

// A parameter that is declared after its model was wrapped has no owner, and a name is declared once.
TEST(FullyShard, RefusesAParameterThatIsDeclaredTwiceByName) {
  std::vector<std::unique_ptr<Layer>> layers = model();
  layers[1]->declared.push_back(layers[0]->declared[0]);
  FullyShardPolicy policy;
  policy.shards = [](Family) { return 2; };
  try {
    fully_shard(pieces_of(layers), 0, policy);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "parameter blocks.0.weight is declared twice on stage 0");
  }
}

}  // namespace
}  // namespace weft
