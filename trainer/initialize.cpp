#include "trainer/initialize.h"

#include <algorithm>

#include "parallel/runtime/random.h"

namespace weft {

void initialize_rows(const OwnedRows& rows, std::uint64_t seed) {
  const ParameterSpec& parameter = *rows.parameter;
  if (parameter.initializer != Initializer::normal) {
    std::fill(rows.values.begin(), rows.values.end(), parameter.initializer == Initializer::ones ? 1.0f : 0.0f);
    return;
  }
  const RandomStream random(seed, parameter.name);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const std::int64_t first = (rows.row_begin + row) * parameter.global_columns + parameter.column_begin;
    for (std::int64_t column = 0; column < parameter.columns; ++column) {
      rows.values[static_cast<std::size_t>(row * parameter.columns + column)] =
          static_cast<float>(parameter.standard_deviation * random.normal(static_cast<std::uint64_t>(first + column)));
    }
  }
}

}  // namespace weft
