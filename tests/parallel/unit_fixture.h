// The common parts of the tests of shard units at run time. They are a small awkward set of parameters, the values and
// gradients of any rank, and the groups of a rank.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/random.h"
#include "parallel/shard/unit.h"
#include "tests/parallel/cpu_rank.h"

namespace weft {

inline constexpr UnitPrecision float32_precision, bfloat16_compute{.compute = DType::bfloat16};

inline ParameterSpec box(const std::string& name, std::int64_t row_begin, std::int64_t rows, std::int64_t columns,
                         bool tensor_replicated = false) {
  ParameterSpec spec = whole_parameter(name, Family::dense, row_begin + rows + 2, columns, Initializer::normal);
  spec.row_begin = row_begin;
  spec.rows = rows;
  spec.tensor_replicated = tensor_replicated;
  return spec;
}

// Rows that no group divides, boxes that begin below the first global row, columns that need gaps between parameters.
// They have 78 elements up to the last, cut at multiples of 12. Of eight shards the last holds padding only.
inline std::vector<ParameterSpec> awkward_parameters() {
  return {box("up", 3, 7, 4), box("bias", 0, 3, 1), box("down", 5, 5, 4), box("norm", 0, 5, 1, true),
          box("mixer", 10, 3, 6)};
}

// The stored value at a global place of a parameter: irregular, so that neither order nor rounding goes unseen.
inline float value_at(const ParameterSpec& parameter, std::int64_t global_row, std::int64_t column) {
  const auto index = static_cast<std::uint64_t>(global_row * parameter.global_columns + column);
  return static_cast<float>(RandomStream(7, parameter.name).normal(index));
}

// Gradient of element `index` of a rank's box in one microbatch.
inline float gradient_at(const ParameterSpec& parameter, int rank, int microbatch, std::int64_t index) {
  const auto seed = static_cast<std::uint64_t>(1000 + 100 * rank + microbatch);
  return static_cast<float>(RandomStream(seed, parameter.name).normal(static_cast<std::uint64_t>(index)));
}

// rank = (replica x shard ranks + shard rank) x tensor ranks + tensor rank.
struct RankGrid {
  int shard = 1, replicate = 1, tensor = 1;
  int world() const { return shard * replicate * tensor; }
  int rank_at(int replica, int shard_rank, int tensor_rank) const {
    return (replica * shard + shard_rank) * tensor + tensor_rank;
  }
  std::string description() const {
    return fmt::format("{} shard ranks, {} replicas, {} tensor ranks", shard, replicate, tensor);
  }
};

// One rank of a grid and its groups.
struct UnitRank : CpuRank {
  UnitRank(Communicator& world_group, const RankGrid& grid)
      : world(world_group),
        tensor_rank(world.rank() % grid.tensor),
        shard_rank(world.rank() / grid.tensor % grid.shard),
        replica(world.rank() / grid.tensor / grid.shard),
        gather(world.split(replica * grid.tensor + tensor_rank, shard_rank, "shard", lanes[Lane::gather])),
        shard(world.split(replica * grid.tensor + tensor_rank, shard_rank, "shard", lanes[Lane::reduce])),
        replicate(world.split(shard_rank * grid.tensor + tensor_rank, replica, "replicate", lanes[Lane::reduce])),
        tensor(world.split(replica * grid.shard + shard_rank, tensor_rank, "tensor", lanes[Lane::reduce])) {}

  UnitGroups groups() const {
    return {.gather = gather.get(), .shard = shard.get(), .replicate = replicate.get(), .tensor = tensor.get()};
  }

  // Blocks that a unit will take were written to before: what it reads without writing first is NaN.
  void poison_free_blocks(const UnitLayout& layout) {
    std::vector<Tensor> blocks;
    for (const std::int64_t size : {layout.unsharded_size(), layout.shard_size}) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        for (int block = 0; block < 3; ++block) {
          blocks.push_back(ledger.allocate(Bucket::workspace, dtype, size, 1));
          fill(stream, blocks.back(), std::numeric_limits<float>::quiet_NaN());
        }
      }
    }
  }

  Communicator& world;
  int tensor_rank, shard_rank, replica;
  std::unique_ptr<Communicator> gather, shard, replicate, tensor;
  ReduceInputs reduce_inputs{0, stream, lanes[Lane::reduce]};
};

// Any owner of rows: a shard unit or replicated parameters.
template <typename Owner>
void store_values(Owner& owner) {
  for (const OwnedRows& owned : owner.owned_rows()) {
    const std::int64_t columns = owned.parameter->columns;
    const std::span<float> values = owned.values.as<float>();
    for (std::int64_t i = 0; i < owned.rows * columns; ++i) {
      values[static_cast<std::size_t>(i)] = value_at(*owned.parameter, owned.row_begin + i / columns, i % columns);
    }
  }
}

// The elements of a gradient on the CPU, to be added to.
inline std::span<float> elements_of(Gradient gradient) {
  const std::span<float> elements = gradient.view.as<float>();
  if (gradient.fresh) std::ranges::fill(elements, 0.0f);
  return elements;
}

// What the weight gradient of one microbatch does.
template <typename Owner>
void accumulate(Owner& owner, const std::vector<ParameterSpec>& parameters, int rank, int microbatch) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto gradient = elements_of(owner.gradient(p));
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] += gradient_at(parameters[p], rank, microbatch, static_cast<std::int64_t>(i));
    }
  }
}

// The sum of an element's gradients over ranks and microbatches [0, microbatches) in double, and of their magnitudes.
struct GradientSum {
  double sum = 0.0, magnitude = 0.0;
};
inline GradientSum gradient_sum(const ParameterSpec& parameter, const std::vector<int>& ranks, int microbatches,
                                std::int64_t index) {
  GradientSum total;
  for (const int rank : ranks) {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      const double gradient = gradient_at(parameter, rank, microbatch, index);
      total.sum += gradient;
      total.magnitude += std::abs(gradient);
    }
  }
  return total;
}

// n numbers added in float32, in whatever tree, pass at most n - 1 roundings each, of relative size u = 2^-24. The
// error is at most (n-1) u / (1 - (n-1) u) times the sum of magnitudes, and n u bounds that factor for n < 1000.
inline double float32_bound(const GradientSum& expected, std::size_t terms) {
  return static_cast<double>(terms) * 0x1p-24 * expected.magnitude;
}

// Elements of the unsharded parameters that are not the global values, or not their rounding to the compute dtype.
inline int wrong_values(const ShardUnit& unit, DType compute) {
  int wrong = 0;
  for (std::size_t p = 0; p < unit.layout().parameters.size(); ++p) {
    const ParameterSpec& spec = unit.layout().parameters[p];
    const ConstTensorView view = unit.parameter(p);
    wrong += view.dtype() != compute || view.rows() != spec.rows || view.columns() != spec.columns ? 1 : 0;
    for (std::int64_t i = 0; i < spec.size(); ++i) {
      const float value = value_at(spec, spec.row_begin + i / spec.columns, i % spec.columns);
      const auto at = static_cast<std::size_t>(i);
      if (compute == DType::float32) {
        wrong += view.as<float>()[at] != value ? 1 : 0;
      } else {
        wrong += view.as<bfloat16>()[at].bits != bfloat16(value).bits ? 1 : 0;
      }
    }
  }
  return wrong;
}

// What `body` throws, in words.
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace weft
