// The norm of the model's gradient counts every distinct element once, whatever the mesh holds several times.
#include "trainer/plan/gradient_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel/runtime/random.h"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft {
namespace {

constexpr std::int64_t matrix_rows = 13, matrix_columns = 6, norm_rows = 6, expert_rows = 7, experts = 4;

double gradient_at(const std::string& name, std::int64_t index) {
  return static_cast<float>(RandomStream(3, name).normal(static_cast<std::uint64_t>(index)));
}

double square_sum_of(const std::string& name, std::int64_t elements) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < elements; ++i) sum += gradient_at(name, i) * gradient_at(name, i);
  return sum;
}

ParameterSpec parameter(const std::string& name, Family family, std::int64_t rows, std::int64_t columns) {
  return whole_parameter(name, family, rows, columns, Initializer::normal);
}

void split_rows(ParameterSpec& spec, int parts, int index) {
  const Range rows = balanced_part(spec.global_rows, parts, index);
  spec.row_begin = rows.begin;
  spec.rows = rows.count;
}

// The units of a rank's stage: a dense one, an expert one and the replicated routing helpers.
std::vector<PlannedUnit> units_at(const Mesh& mesh, const Coordinates& at, bool whole) {
  const Degrees& degrees = mesh.degrees();
  const std::string stage = fmt::format("stage {} ", at.pp);
  PlannedUnit dense, expert, routing;
  dense.plan.family = Family::dense;
  ParameterSpec norm = parameter(stage + "norm", Family::dense, norm_rows, 1);
  norm.tensor_replicated = true;
  ParameterSpec matrix = parameter(stage + "matrix", Family::dense, matrix_rows, matrix_columns);
  split_rows(matrix, degrees.tensor, at.tp);
  dense.layout = lay_out_unit(std::vector{norm, matrix}, whole ? 1 : degrees.data_shard);

  expert.plan.family = Family::experts;
  expert.shard_group = Group::edp_shard;
  expert.replicate_group = Group::edp_replicate;
  std::vector<ParameterSpec> bank;
  const Range own = balanced_part(experts, degrees.expert, at.ep);
  for (std::int64_t e = own.begin; e < own.begin + own.count; ++e) {
    bank.push_back(parameter(fmt::format("{}expert {}", stage, e), Family::experts, expert_rows, matrix_columns));
    split_rows(bank.back(), degrees.expert_tensor, at.etp);
  }
  expert.layout = lay_out_unit(bank, whole ? 1 : degrees.expert_data() / mesh.expert_replicas());

  routing.plan.family = Family::routing;
  routing.plan.parameters = {parameter(stage + "router", Family::routing, experts, matrix_columns)};
  return {dense, expert, routing};
}

double expected_square_sum(const Degrees& degrees) {
  double sum = 0.0;
  for (int s = 0; s < degrees.pipeline; ++s) {
    const std::string stage = fmt::format("stage {} ", s);
    sum += square_sum_of(stage + "norm", norm_rows) + square_sum_of(stage + "matrix", matrix_rows * matrix_columns) +
           square_sum_of(stage + "router", experts * matrix_columns);
    for (std::int64_t e = 0; e < experts; ++e) {
      sum += square_sum_of(fmt::format("{}expert {}", stage, e), expert_rows * matrix_columns);
    }
  }
  return sum;
}

// Rows of a unit as a rank owns them, with every element's gradient decided by its name and global place.
struct OwnedGradients {
  OwnedGradients(const PlannedUnit& unit, const Mesh& mesh, int rank) {
    std::vector<RowBlock> blocks;
    const std::vector<ParameterSpec>& specs = unit.plan.replicated() ? unit.plan.parameters : unit.layout.parameters;
    if (unit.plan.replicated()) {
      for (std::size_t p = 0; p < specs.size(); ++p) blocks.push_back({p, 0, specs[p].rows, 0});
    } else {
      const std::vector<int> members = mesh.group_of(unit.shard_group, rank);
      const auto position = std::find(members.begin(), members.end(), rank) - members.begin();
      blocks = unit.layout.rows_of_shard(unit.layout.shards == 1 ? 0 : position);
    }
    for (const RowBlock& block : blocks) {
      const ParameterSpec& spec = specs[block.parameter];
      std::vector<float>& values = storage.emplace_back();
      for (std::int64_t i = 0; i < block.rows * spec.columns; ++i) {
        const std::int64_t first = (spec.row_begin + block.row_begin) * spec.columns;
        values.push_back(static_cast<float>(gradient_at(spec.name, first + i)));
      }
      rows.push_back({&spec,
                      spec.row_begin + block.row_begin,
                      block.rows,
                      {},
                      view_of(std::span(values), block.rows, spec.columns),
                      block.offset});
    }
  }
  std::vector<std::vector<float>> storage;  // moving a vector of elements keeps them in place, so the views stay valid
  std::vector<OwnedRows> rows;
};

std::vector<Degrees> gradient_norm_meshes() {
  std::vector<Degrees> all(8);
  all[1].data_shard = 4;
  all[2].data_replicate = 2;
  all[2].data_shard = 3;
  all[3].tensor = 3;
  all[4].data_replicate = all[4].data_shard = all[4].tensor = 2;
  all[5] = {.pipeline = 2, .data_replicate = 2, .data_shard = 2, .context = 1, .tensor = 2, .expert = 2};
  all[6] = {.data_shard = 4, .expert = 4};
  all[7] = {.data_replicate = 2, .data_shard = 4, .tensor = 2, .expert = 2, .expert_tensor = 2};
  return all;
}

// All sums are of squares, in double: n additions in any order are within n 2^-53 of the sum, here n < 2000.
TEST(GradientNorm, CountsEveryDistinctElementOnce) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("compute");
  for (const Degrees& degrees : gradient_norm_meshes()) {
    const Mesh mesh(degrees);
    for (const bool whole : {false, true}) {
      double sum = 0.0;
      for (int rank = 0; rank < mesh.world(); ++rank) {
        for (const PlannedUnit& unit : units_at(mesh, mesh.coordinates(rank), whole)) {
          const OwnedGradients owned(unit, mesh, rank);
          add_counted_squares(*stream, unit, owned.rows, mesh, rank, TensorView(&sum, DType::float64, 1, 1));
        }
      }
      const double expected = expected_square_sum(degrees);
      EXPECT_LE(std::abs(sum - expected), 2000 * 0x1p-53 * expected)
          << "world " << mesh.world() << (whole ? ", whole" : ", sharded");
    }
  }
}

TEST(GradientNorm, ClipsDownToTheLargestNormAndNeverUp) {
  EXPECT_EQ(gradient_factor(16.0, 1.0, 1.0), 0.25);
  EXPECT_EQ(gradient_factor(1.0, 1.0, 1.0), 1.0);
  EXPECT_EQ(gradient_factor(0.25, 1.0, 1.0), 1.0);
  EXPECT_EQ(gradient_factor(0.0, 1.0, 1.0), 1.0);
  // Zero means that nothing is clipped.
  EXPECT_EQ(gradient_factor(1e60, 0.0, 1.0), 1.0);
}

// The same in device memory, from the square of the norm; rounded once to float32.
TEST(GradientNorm, TheClipScaleIsTheClipFactorOfTheRootAndTheInverseLossScale) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("compute");
  SumLimits void_above;
  const auto clip_scale = [&](double square_sum, double largest, double inverse_loss_scale = 1.0) {
    float scale = std::numeric_limits<float>::quiet_NaN();
    double sums[] = {square_sum, 2.5};
    cpu_optimizer_kernels().clip_scale(*stream, TensorView(sums, DType::float64, 2, 1),
                                       {largest, inverse_loss_scale, void_above},
                                       TensorView(&scale, DType::float32, 1, 1));
    return scale;
  };
  EXPECT_EQ(clip_scale(16.0, 1.0), 0.25f);
  EXPECT_EQ(clip_scale(16.0, 8.0), 1.0f);
  EXPECT_EQ(clip_scale(0.25, 1.0), 1.0f);
  EXPECT_EQ(clip_scale(0.0, 1.0), 1.0f);
  EXPECT_EQ(clip_scale(1e60, 0.0), 1.0f);
  EXPECT_EQ(clip_scale(2.0, 1.0), static_cast<float>(1.0 / std::sqrt(2.0)));
  // A norm beyond float32 still scales.
  EXPECT_EQ(clip_scale(0x1p200, 0x1p90), 0x1p-10f);
  // Of a loss scaled by 8: a norm of 32 is one of 4, which is clipped to 1, or left alone.
  EXPECT_EQ(clip_scale(1024.0, 1.0, 0.125), 0.25f * 0.125f);
  EXPECT_EQ(clip_scale(1024.0, 4.0, 0.125), 0.125f);
  EXPECT_EQ(clip_scale(1024.0, 0.0, 0.125), 0.125f);
  // What overflowed skips the step, clipped or not.
  for (const double square_sum : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const double largest : {0.0, 1.0}) EXPECT_TRUE(std::isnan(clip_scale(square_sum, largest, 0.125)));
  }
  // So does a sum above its limit, and not one at its limit.
  for (const double largest : {0.0, 1.0}) {
    void_above = {16.0, 2.5};
    EXPECT_EQ(clip_scale(16.0, largest), largest == 0.0 ? 1.0f : 0.25f);
    EXPECT_TRUE(std::isnan(clip_scale(16.0 * (1 + 0x1p-52), largest)));
    void_above.loss_sum = 2.5 * (1 - 0x1p-52);
    EXPECT_TRUE(std::isnan(clip_scale(1.0, largest)));
  }
}

}  // namespace
}  // namespace weft
