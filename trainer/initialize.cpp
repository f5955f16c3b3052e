#include "trainer/initialize.h"

#include <vector>

#include "parallel/runtime/random.h"
#include "parallel/runtime/staging.h"

namespace weft {

void initialize_rows(Stream& stream, const OwnedRows& rows, std::uint64_t seed) {
  const ParameterSpec& parameter = *rows.parameter;
  if (parameter.initializer != Initializer::normal) {
    fill(stream, rows.values, parameter.initializer == Initializer::ones ? 1.0f : 0.0f);
    return;
  }
  const RandomStream random(seed, parameter.name);
  std::vector<float> values(static_cast<std::size_t>(rows.values.size()));
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int64_t first = (rows.row_begin + row) * parameter.global_columns + parameter.column_begin;
    for (std::int64_t column = 0; column < parameter.columns; ++column) {
      values[static_cast<std::size_t>(row * parameter.columns + column)] =
          static_cast<float>(parameter.standard_deviation * random.normal(static_cast<std::uint64_t>(first + column)));
    }
  }
  if (rows.values.dtype() == DType::float32) return write<float>(stream, values, rows.values);
  write<bfloat16>(stream, std::vector<bfloat16>(values.begin(), values.end()), rows.values);
}

}  // namespace weft
