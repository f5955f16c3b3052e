// Initial weights are a function of seed, name and global place alone: any layout begins with the same model.
#include "trainer/rank/initialize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "parallel/runtime/random.h"

namespace weft {
namespace {

constexpr std::uint64_t seed = 1234;

ParameterSpec matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
  return whole_parameter(name, Family::dense, rows, columns, Initializer::normal, 0.02);
}

std::vector<float> initialized(const ParameterSpec& parameter, const Initialization& how = {seed}) {
  std::vector<float> values(static_cast<std::size_t>(parameter.size()), std::numeric_limits<float>::quiet_NaN());
  OwnedRows rows;
  rows.parameter = &parameter;
  rows.row_begin = parameter.row_begin;
  rows.rows = parameter.rows;
  rows.values = view_of(std::span(values), parameter.rows, parameter.columns);
  const auto device = make_cpu_device();
  initialize_rows(*device->create_stream("compute"), rows, how);
  return values;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// Row and column boxes as tensor ranks hold them, each cut into shards, written over a matrix of NaN.
std::vector<float> assembled(const ParameterSpec& whole, std::int64_t row_parts, std::int64_t column_parts,
                             std::int64_t shards) {
  constexpr std::uint32_t untouched = 0x7fc0dead;
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("compute");
  std::vector<float> values(static_cast<std::size_t>(whole.size()), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t part = 0; part < row_parts * column_parts; ++part) {
    const Range rows = balanced_part(whole.global_rows, row_parts, part / column_parts);
    const Range columns = balanced_part(whole.global_columns, column_parts, part % column_parts);
    ParameterSpec spec = whole;
    spec.row_begin = rows.begin;
    spec.rows = rows.count;
    spec.column_begin = columns.begin;
    spec.columns = columns.count;
    const ParameterSpec norm = whole_parameter("norm", Family::dense, 5, 1, Initializer::ones);
    const UnitLayout layout = lay_out_unit(std::vector{norm, spec}, shards);
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      std::vector<float> buffer(static_cast<std::size_t>(layout.shard_size), std::bit_cast<float>(untouched));
      std::size_t written = 0;
      for (const RowBlock& block : layout.rows_of_shard(shard)) {
        const ParameterSpec& owner = layout.parameters[block.parameter];
        const auto count = static_cast<std::size_t>(block.rows * owner.columns);
        OwnedRows owned;
        owned.parameter = &owner;
        owned.row_begin = owner.row_begin + block.row_begin;
        owned.rows = block.rows;
        const std::span<float> own = std::span(buffer).subspan(static_cast<std::size_t>(block.offset), count);
        owned.values = view_of(own, block.rows, owner.columns);
        initialize_rows(*stream, owned, {seed});
        written += count;
        if (owner.name == norm.name) continue;
        for (std::size_t i = 0; i < count; ++i) {
          const auto row = owned.row_begin + static_cast<std::int64_t>(i) / owner.columns;
          const auto column = owner.column_begin + static_cast<std::int64_t>(i) % owner.columns;
          values[static_cast<std::size_t>(row * whole.global_columns + column)] = own[i];
        }
      }
      // Nothing but the owned rows is written.
      std::size_t left = 0;
      for (const std::uint32_t bits : bits_of(buffer)) left += bits == untouched ? 1 : 0;
      EXPECT_EQ(left, buffer.size() - written);
    }
  }
  return values;
}

TEST(Initialize, AnySplitBeginsWithTheSameWeights) {
  const ParameterSpec whole = matrix("blocks.0.mlp.up_proj.weight", 23, 17);
  const std::vector<std::uint32_t> expected = bits_of(initialized(whole));
  for (const std::int64_t row_parts : {1, 2, 3, 4}) {
    for (const std::int64_t column_parts : {1, 2, 5}) {
      for (const std::int64_t shards : {1, 2, 3, 8}) {
        EXPECT_EQ(bits_of(assembled(whole, row_parts, column_parts, shards)), expected)
            << row_parts << " x " << column_parts << " boxes, " << shards << " shards";
      }
    }
  }
}

TEST(Initialize, AnElementIsTheScaledNormalOfItsGlobalPlace) {
  const ParameterSpec whole = matrix("head.weight", 9, 6);
  const RandomStream random(seed, "head.weight");
  const std::vector<float> values = initialized(whole);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(0.02 * random.normal(i)));
}

// More than one piece, the last of them shorter, and parts of a piece that begin within a row.
TEST(Initialize, AnyNumberOfThreadsDrawsTheSame) {
  const ParameterSpec whole = matrix("embedding.weight", 3001, 1003);
  const std::vector<float> values = initialized(whole);
  const RandomStream random(seed, whole.name);
  for (std::size_t i = 0; i < values.size(); i += 997) {
    ASSERT_EQ(values[i], static_cast<float>(0.02 * random.normal(i))) << i;
  }
  for (const int threads : {2, 3, 16}) EXPECT_EQ(bits_of(initialized(whole, {seed, threads})), bits_of(values));
}

// Values come from 53-bit draws rounded to 24 bits; among 10^4 pairs an accidental equal one has odds near 10^-3.
TEST(Initialize, DependsOnNameAndSeed) {
  const ParameterSpec parameter = matrix("a", 100, 100), other_name = matrix("b", 100, 100);
  const std::vector<float> values = initialized(parameter);
  EXPECT_EQ(bits_of(initialized(parameter)), bits_of(values));
  const std::vector<float> others[] = {initialized(other_name), initialized(parameter, {seed + 1})};
  for (const std::vector<float>& other : others) {
    std::size_t equal = 0;
    for (std::size_t i = 0; i < values.size(); ++i) equal += values[i] == other[i] ? 1 : 0;
    EXPECT_EQ(equal, 0U);
  }
}

// Of n independent draws from a normal distribution of deviation s, the mean deviates by s / sqrt(n). The mean square
// deviates by s^2 sqrt(2 / n), the mean product of draws at fixed distance by s^2 / sqrt(n). Five deviations are
// allowed: one wrong alarm in a million draws of a seed, and the seed is fixed. Rounding to float32 is 10^4 times
// smaller.
TEST(Initialize, HasTheMeanVarianceAndIndependenceAskedFor) {
  constexpr std::int64_t rows = 512, columns = 512;
  constexpr double deviation = 0.02, n = rows * columns;
  const std::vector<float> values = initialized(matrix("w", rows, columns));
  double sum = 0.0, squares = 0.0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_LE(std::abs(sum / n), 5.0 * deviation / std::sqrt(n));
  EXPECT_LE(std::abs(squares / n - deviation * deviation), 5.0 * deviation * deviation * std::sqrt(2.0 / n));
  for (const std::size_t distance : {std::size_t{1}, static_cast<std::size_t>(columns)}) {
    double products = 0.0;
    const std::size_t pairs = values.size() - distance;
    for (std::size_t i = 0; i < pairs; ++i) products += static_cast<double>(values[i]) * values[i + distance];
    const auto count = static_cast<double>(pairs);
    EXPECT_LE(std::abs(products / count), 5.0 * deviation * deviation / std::sqrt(count)) << "distance " << distance;
  }
}

// The rates of 4096 heads: decay rates even over [1, 16), steps log-even over [0.001, 0.1). The bounds are five
// deviations of a mean of even draws, (end - begin) / sqrt(12 n).
TEST(Initialize, DrawsTheRatesOfStateSpacesEvenly) {
  constexpr std::int64_t heads = 4096;
  const double bound = 5.0 / std::sqrt(12.0 * heads);
  double decays = 0.0, logs = 0.0;
  for (const float a_log : initialized(whole_parameter("a", Family::dense, heads, 1, Initializer::decay_logs))) {
    const double decay = std::exp(static_cast<double>(a_log));
    EXPECT_GE(decay, 1.0 - 1e-6);
    EXPECT_LE(decay, 16.0 + 1e-5);
    decays += decay / heads;
  }
  for (const float bias : initialized(whole_parameter("b", Family::dense, heads, 1, Initializer::step_biases))) {
    const double step = std::log1p(std::exp(static_cast<double>(bias)));
    EXPECT_GE(step, 0.001 * (1.0 - 1e-5));
    EXPECT_LE(step, 0.1 * (1.0 + 1e-5));
    logs += std::log(step) / heads;
  }
  EXPECT_NEAR(decays, 8.5, 15.0 * bound);
  EXPECT_NEAR(logs, 0.5 * (std::log(0.001) + std::log(0.1)), std::log(100.0) * bound);
}

TEST(Initialize, FillsOnesAndZeros) {
  const ParameterSpec ones = whole_parameter("norm", Family::dense, 7, 1, Initializer::ones, 0.02);
  const ParameterSpec zeros = whole_parameter("bias", Family::dense, 7, 1, Initializer::zeros, 0.02);
  EXPECT_EQ(bits_of(initialized(ones)), bits_of(std::vector<float>(7, 1.0F)));
  EXPECT_EQ(bits_of(initialized(zeros)), bits_of(std::vector<float>(7, 0.0F)));
}

}  // namespace
}  // namespace weft
