// The description of one parameter before any memory is allocated: its global name and shape, its family, and its box
// on a rank. A tensor- or expert-parallel rank holds the box; the family decides its shard unit. Layers declare the
// parameters; shard units lay them out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "parallel/runtime/enum_names.h"

namespace weft {

// Families of shard units. Two are exceptions: every rank of a stage has them whole, in float32, and they belong to no
// unit. `routing`: weights of routers. `helpers`: state of routers that no gradient changes but a rule of its own.
enum class Family : std::uint8_t { dense, experts, embedding, head, root, routing, helpers };
constexpr auto enum_names(Family) {
  return name_list("dense", "experts", "embedding", "head", "root", "routing", "helpers");
}
constexpr bool is_replicated(Family family) {
  return family == Family::routing || family == Family::helpers;
}

// The part of a model that a segment is. merge and predict: the ends of a predictor (layers/prediction.h).
enum class PartKind : std::uint8_t { embedding, attention, state_space, mlp, experts, merge, predict, head, passage };
constexpr auto enum_names(PartKind) {
  return name_list("embedding", "attention", "state_space", "mlp", "experts", "merge", "predict", "head", "passage");
}
struct ModelPart {
  PartKind kind = PartKind::passage;
  std::optional<int> block = {};  // of the model; embedding, head and passage have none
  bool operator==(const ModelPart&) const = default;
};

// decay_logs and step_biases: rates of a state space's heads (trainer/rank/initialize.h).
enum class Initializer : std::uint8_t { normal, ones, zeros, decay_logs, step_biases };

struct ParameterSpec {
  std::string name;  // global: "blocks.3.attention.q_proj.weight"
  Family family = Family::root;
  std::int64_t global_rows = 0, global_columns = 0;
  // The box this rank holds, in global rows and columns. A vector of n elements is n rows of one column.
  std::int64_t row_begin = 0, rows = 0;
  std::int64_t column_begin = 0, columns = 0;
  Initializer initializer = Initializer::normal;
  double standard_deviation = 0.0;
  // Every tensor-parallel rank holds the same values but processes other tokens (sequence parallelism) or other heads.
  // The gradient is therefore a partial sum over the tensor group.
  bool tensor_replicated = false;
  // Rows and columns are those of the transpose of the literature's matrix. Projections into the hidden width (o_proj,
  // down_proj) are stored this way. Every matrix of a block then has hidden_size columns, and tensor parallelism always
  // splits rows. A shard cut between rows wastes less than one row a rank.
  bool transposed = false;
  // One product reads the rows behind those of the parameter declared before it, so that the two touch in memory.
  bool stacked = false;

  std::int64_t size() const { return rows * columns; }
  std::int64_t global_size() const { return global_rows * global_columns; }
  bool operator==(const ParameterSpec&) const = default;
};

// Elements of all boxes together.
inline std::int64_t parameter_elements(std::span<const ParameterSpec> parameters) {
  std::int64_t elements = 0;
  for (const ParameterSpec& parameter : parameters) elements += parameter.size();
  return elements;
}

// A parameter that every rank of a tensor group holds whole.
inline ParameterSpec whole_parameter(std::string name, Family family, std::int64_t rows, std::int64_t columns,
                                     Initializer initializer, double standard_deviation = 0.0) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.family = family;
  spec.global_rows = spec.rows = rows;
  spec.global_columns = spec.columns = columns;
  spec.initializer = initializer;
  spec.standard_deviation = standard_deviation;
  return spec;
}

}  // namespace weft
