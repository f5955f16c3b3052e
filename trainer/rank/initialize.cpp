#include "trainer/rank/initialize.h"

#include <algorithm>
#include <cmath>

#include "parallel/runtime/random.h"
#include "parallel/runtime/spread_work.h"
#include "parallel/runtime/staging.h"

namespace weft {
namespace {

constexpr std::int64_t piece_elements = std::int64_t{1} << 21;
// Numbers that are worth a thread. Drawing a number takes about 35 ns; starting a thread takes as long as a thousand
// numbers.
constexpr std::int64_t worth_a_thread = 16'384;

// Rates of a state space's heads are drawn as Mamba-2 draws them. Decay rates are even over [1, 16), and their
// logarithms are parameters. Logarithms of steps are even from 0.001 to 0.1. A step is the softplus of its bias.
double drawn(const RandomStream& random, const ParameterSpec& parameter, std::uint64_t index) {
  switch (parameter.initializer) {
    case Initializer::decay_logs:
      return std::log(1.0 + 15.0 * random.uniform(index));
    case Initializer::step_biases: {
      constexpr double least = 1e-3, most = 1e-1;
      const double step = least * std::pow(most / least, random.uniform(index));
      return std::log(std::expm1(step));
    }
    default:
      return parameter.standard_deviation * random.normal(index);
  }
}

// Draws elements [begin, end) of the rows of `parameter`; element 0 is the first of row `first_row`.
template <typename T>
void draw(const RandomStream& random, const ParameterSpec& parameter, std::int64_t first_row, std::int64_t begin,
          std::int64_t end, std::span<T> values) {
  std::int64_t column = begin % parameter.columns;
  std::int64_t row_index = (first_row + begin / parameter.columns) * parameter.global_columns + parameter.column_begin;
  for (std::int64_t i = begin; i < end; ++i) {
    const double value = drawn(random, parameter, static_cast<std::uint64_t>(row_index + column));
    values[i] = T(static_cast<float>(value));
    if (++column < parameter.columns) continue;
    column = 0;
    row_index += parameter.global_columns;
  }
}

template <typename T>
void draw_rows(const RandomStream& random, const ParameterSpec& parameter, std::int64_t first_row, std::span<T> values,
               int threads) {
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t parts = std::clamp<std::int64_t>(count / worth_a_thread, 1, threads);
  spread_work(static_cast<std::size_t>(parts), static_cast<std::size_t>(parts), [&](std::size_t part) {
    const auto p = static_cast<std::int64_t>(part);
    draw(random, parameter, first_row, count * p / parts, count * (p + 1) / parts, values);
  });
}

template <typename T>
void initialize_as(Stream& stream, const OwnedRows& rows, const Initialization& how) {
  const ParameterSpec& parameter = *rows.parameter;
  const RandomStream random(how.seed, parameter.name);
  const std::int64_t piece = std::clamp<std::int64_t>(piece_elements / parameter.columns, 1, rows.rows);
  Staging staging(stream.device(), dtype_of<T>, piece, parameter.columns);
  for (std::int64_t done = 0; done < rows.rows; done += piece) {
    const std::int64_t begin = std::min(done, rows.rows - piece);  // the last piece may overlap the one before
    draw_rows(random, parameter, rows.row_begin + begin, staging.as<T>(), how.threads);
    staging.upload(stream, rows.values.rows_from(begin, piece));
    staging.finish();
  }
}

}  // namespace

void initialize_rows(Stream& stream, const OwnedRows& rows, const Initialization& how) {
  const ParameterSpec& parameter = *rows.parameter;
  if (parameter.initializer == Initializer::ones || parameter.initializer == Initializer::zeros) {
    fill(stream, rows.values, parameter.initializer == Initializer::ones ? 1.0f : 0.0f);
  } else if (rows.values.size() > 0) {
    rows.values.dtype() == DType::float32 ? initialize_as<float>(stream, rows, how)
                                          : initialize_as<bfloat16>(stream, rows, how);
  }
}

}  // namespace weft
