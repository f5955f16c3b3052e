// Products in 8 bits against a sum in double of factors that the test rounds itself, by the values of all 256 codes.
#include <bit>
#include <map>
#include <utility>

#include "layers/kernels/float8.h"
#include "layers/kernels/multiply.h"
#include "tests/layers/kernel_fixture.h"
#include "tests/layers/reference.h"

namespace weft {
namespace {

// The value of a code, from the specification's table: sign, exponent with its bias, mantissa.
double value_of(unsigned code, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned mantissa = code & ((1u << mantissa_bits) - 1), exponent = (code & 0x7fu) >> mantissa_bits;
  const double fraction = static_cast<double>(mantissa) / (1 << mantissa_bits);
  const double sign = (code & 0x80u) != 0 ? -1.0 : 1.0;
  if (exponent_bits == 4 && (code & 0x7fu) == 0x7fu) return std::nan("");
  if (exponent_bits == 5 && exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, static_cast<int>(exponent) - bias);
}

struct Format {
  DType dtype;
  int exponent_bits;
  double largest;
};
constexpr Format e4m3_format{DType::float8_e4m3, 4, 448.0}, e5m2_format{DType::float8_e5m2, 5, 57344.0};

// The nearest finite value, the one of the even code if two are as near.
double nearest(double value, const Format& format) {
  double best = 0.0, distance = HUGE_VAL;
  unsigned best_code = 0;
  for (unsigned code = 0; code < 128; ++code) {
    const double candidate = value_of(code, format.exponent_bits);
    if (!std::isfinite(candidate)) continue;
    const double away = std::abs(std::abs(value) - candidate);
    if (away < distance || (away == distance && code % 2 == 0 && best_code % 2 != 0)) {
      best = candidate;
      best_code = code;
      distance = away;
    }
  }
  return std::copysign(best, value);
}

template <typename F>
void expect_format(const Format& format) {
  for (unsigned code = 0; code < 256; ++code) {
    F number;
    number.bits = static_cast<std::uint8_t>(code);
    const double expected = value_of(code, format.exponent_bits);
    const auto value = static_cast<double>(static_cast<float>(number));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, expected) << code;
    }
    // Back to itself, except an infinity, which saturates.
    if (std::isfinite(expected)) {
      EXPECT_EQ(F(static_cast<float>(value)).bits, code);
    }
  }
  // Floats at and around halves of neighbours, over the whole range and beyond both ends.
  for (double scale = 0x1p-30; scale < 0x1p20; scale *= 2) {
    for (int step = 0; step < 64; ++step) {
      for (int nudge = -1; nudge <= 1; ++nudge) {
        const auto middle = static_cast<float>(scale * (1.0 + step / 64.0));
        const float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(middle) + static_cast<unsigned>(nudge));
        EXPECT_EQ(static_cast<float>(F(value)), nearest(value, format)) << value;
        EXPECT_EQ(static_cast<float>(F(-value)), nearest(-value, format)) << -value;
      }
    }
  }
  EXPECT_EQ(static_cast<float>(F(HUGE_VALF)), format.largest);
  EXPECT_TRUE(std::isnan(static_cast<float>(F(std::nanf("")))));
}

TEST(Float8, HasTheValuesOfItsSpecification) {
  expect_format<e4m3>(e4m3_format);
  expect_format<e5m2>(e5m2_format);
}

// The least power of two, at least 2^-100, with which nothing exceeds the largest number.
double scale_of(double largest, const Format& format) {
  double scale = 0x1p-100;
  while (largest / scale > format.largest) scale *= 2;
  return scale;
}

// A matrix in double, its elements one row after another.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;
  double& at(std::int64_t row, std::int64_t column) { return values[static_cast<std::size_t>(row * columns + column)]; }
  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};
Matrix transposed(const Matrix& matrix) {
  Matrix turned{matrix.columns, matrix.rows, std::vector<double>(matrix.values.size())};
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t column = 0; column < matrix.columns; ++column) turned.at(column, row) = matrix.at(row, column);
  }
  return turned;
}

// The scale of each element of a factor, whose columns are the inner size.
Matrix scales_of(const Matrix& factor, ScaledBlock each, const Format& format) {
  std::map<std::pair<std::int64_t, std::int64_t>, double> largest;  // by the first element of the block
  const auto block = [&](std::int64_t row, std::int64_t column) -> double& {
    const std::int64_t top = each == ScaledBlock::row ? row : each == ScaledBlock::square ? row / 128 * 128 : 0;
    const std::int64_t left = each == ScaledBlock::all ? 0 : column / 128 * 128;
    return largest[{top, left}];
  };
  Matrix scales = factor;
  for (std::int64_t row = 0; row < factor.rows; ++row) {
    for (std::int64_t column = 0; column < factor.columns; ++column) {
      double& most = block(row, column);
      most = std::max(most, std::abs(factor.at(row, column)));
    }
  }
  for (std::int64_t row = 0; row < factor.rows; ++row) {
    for (std::int64_t column = 0; column < factor.columns; ++column) {
      scales.at(row, column) = scale_of(block(row, column), format);
    }
  }
  return scales;
}

class Float8Rounding : public ProductKernelTest {
 protected:
  struct Rounded {
    Tensor elements, scales;
  };
  Matrix matrix(const Tensor& tensor) { return {tensor.rows(), tensor.columns(), doubles(tensor)}; }
  // [rows, columns] rounded, of which the source or its transpose is a part.
  Rounded round(ConstTensorView source, Transpose transpose, DType dtype, std::int64_t rows, std::int64_t columns,
                ScaledBlock each = ScaledBlock::all) {
    const auto [scale_rows, scale_columns] = scale_shape(each, rows, columns);
    Rounded rounded{poisoned(dtype, rows, columns), poisoned(DType::float32, scale_rows, scale_columns)};
    const Float8Factor factor{source, transpose, rounded.elements, each, rounded.scales};
    round_to_float8(context, {&factor, 1});
    return rounded;
  }
  // The scale of an element, where the header says that it is.
  static double scale_at(const Matrix& scales, ScaledBlock each, std::int64_t row, std::int64_t column) {
    if (each == ScaledBlock::all) return scales.at(0, 0);
    return each == ScaledBlock::row ? scales.at(column / 128, row) : scales.at(row / 128, column / 128);
  }
  void check_rounding(const Format& format, DType dtype, std::int64_t rows, std::int64_t columns, bool turned,
                      ScaledBlock each) {
    SCOPED_TRACE(fmt::format("{} x {} of {}, transposed {}, scales {}", rows, columns, name_of(dtype), turned,
                             static_cast<int>(each)));
    // Rows and columns of all magnitudes, so that blocks have different scales.
    Matrix source = matrix(random("rounded", dtype, rows, columns));
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        source.at(row, column) *= std::ldexp(1.0, static_cast<int>((row * 7 + column / 128 * 3) % 11) - 5);
      }
    }
    const Tensor x = tensor_of(dtype, rows, columns, source.values);
    source = matrix(x);
    const Matrix factor = turned ? transposed(source) : source;
    // Padding: of the inner size to 16 if the source is transposed, else of rows.
    const std::int64_t padded_rows = turned || each == ScaledBlock::all ? factor.rows : (factor.rows + 3) / 4 * 4;
    const std::int64_t padded_columns = turned ? (factor.columns + 15) / 16 * 16 : factor.columns;
    const Rounded rounded =
        round(x, turned ? Transpose::yes : Transpose::no, format.dtype, padded_rows, padded_columns, each);
    const Matrix elements = matrix(rounded.elements), scales = matrix(rounded.scales);
    const Matrix expected = scales_of(factor, each, format);
    for (std::int64_t row = 0; row < padded_rows; ++row) {
      for (std::int64_t column = 0; column < padded_columns; ++column) {
        if (row >= factor.rows || column >= factor.columns) {
          ASSERT_EQ(elements.at(row, column), 0.0) << row << ", " << column;
          ASSERT_TRUE(std::isfinite(scale_at(scales, each, row, column)));
          continue;
        }
        const double scale = expected.at(row, column);
        ASSERT_EQ(scale_at(scales, each, row, column), scale) << row << ", " << column;
        ASSERT_EQ(elements.at(row, column), nearest(factor.at(row, column) / scale, format)) << row << ", " << column;
      }
    }
  }
};

TEST_F(Float8Rounding, RoundsWithTheLeastScale) {
  for (const Format& format : {e4m3_format, e5m2_format}) {
    for (const DType dtype : float_types) {
      for (const auto& [rows, columns] : {std::pair(1, 16), std::pair(5, 48), std::pair(129, 80), std::pair(70, 272)}) {
        for (const bool turned : {false, true}) check_rounding(format, dtype, rows, columns, turned, ScaledBlock::all);
      }
    }
  }
}

TEST_F(Float8Rounding, ScalesEachBlockByItself) {
  for (const DType dtype : float_types) {
    for (const auto& [rows, columns] :
         {std::pair(1, 16), std::pair(130, 144), std::pair(128, 256), std::pair(259, 48)}) {
      for (const ScaledBlock each : {ScaledBlock::row, ScaledBlock::square}) {
        for (const bool turned : {false, true}) check_rounding(e4m3_format, dtype, rows, columns, turned, each);
      }
    }
  }
}

// Columns that cannot be read in vectors, as of a weight gradient's factors.
TEST_F(Float8Rounding, TakesAnyNumberOfColumnsTransposed) {
  for (const ScaledBlock each : {ScaledBlock::all, ScaledBlock::row, ScaledBlock::square}) {
    check_rounding(e4m3_format, DType::bfloat16, 150, 37, true, each);
  }
}

// At the edges of scales: the largest magnitude that a scale takes, and the next one.
TEST_F(Float8Rounding, TakesTheNextScaleBehindTheLargestNumber) {
  for (const Format& format : {e4m3_format, e5m2_format}) {
    for (const double factor : {0x1p-120, 0x1p-40, 1.0, 0x1p60}) {
      for (const double past : {1.0, 1.0 + 0x1p-23}) {
        std::vector<double> values(16, 0.0);
        values[7] = -format.largest * factor * past;
        const Tensor x = tensor_of(DType::float32, 1, 16, values);
        const Rounded rounded = round(x, Transpose::no, format.dtype, 1, 16);
        EXPECT_EQ(doubles(rounded.scales)[0], std::max(factor * (past > 1.0 ? 2.0 : 1.0), 0x1p-100));
      }
    }
  }
  const Rounded zero = round(zeros(DType::bfloat16, 2, 16), Transpose::no, DType::float8_e4m3, 2, 16);
  EXPECT_EQ(doubles(zero.scales)[0], 0x1p-100);
  EXPECT_EQ(doubles(zero.elements), std::vector<double>(32, 0.0));
}

// A gradient that is not finite must stay visible: its norm decides whether a step counts.
TEST_F(Float8Rounding, TurnsAnInfinityOrNaNIntoNaNEverywhere) {
  for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    for (const Transpose transpose : {Transpose::no, Transpose::yes}) {
      std::vector<double> values(16 * 16, 1.0);
      values[200] = bad;
      const Tensor x = tensor_of(DType::bfloat16, 16, 16, values);
      const Rounded rounded = round(x, transpose, DType::float8_e5m2, 16, 16);
      for (const double value : doubles(rounded.elements)) EXPECT_TRUE(std::isnan(value));
      Tensor c = poisoned(DType::float32, 16, 16);
      const Product product{x, Transpose::no, x, Transpose::yes, c};
      multiply(context, ProductFormat::float8, product);
      for (const double value : doubles(c)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

// In blocks the rows of the result that read the block are NaN, or its columns, and no others.
TEST_F(Float8Rounding, TurnsABlockWithAnInfinityIntoNaN) {
  std::vector<double> ones(256 * 256, 1.0), bad = ones;
  bad[130 * 256 + 7] = HUGE_VAL;
  const Tensor good = tensor_of(DType::bfloat16, 256, 256, ones), x = tensor_of(DType::bfloat16, 256, 256, bad);
  Tensor c = poisoned(DType::float32, 256, 256);
  multiply(context, ProductFormat::float8_blocks, {x, Transpose::no, good, Transpose::yes, c});
  const Matrix by_row = matrix(c);
  multiply(context, ProductFormat::float8_blocks, {good, Transpose::no, x, Transpose::yes, c});
  const Matrix by_square = matrix(c);
  for (std::int64_t row = 0; row < 256; ++row) {
    for (std::int64_t column = 0; column < 256; ++column) {
      ASSERT_EQ(std::isnan(by_row.at(row, column)), row == 130) << row << ", " << column;
      ASSERT_EQ(std::isnan(by_square.at(row, column)), column >= 128) << row << ", " << column;
    }
  }
}

class Float8Products : public Float8Rounding {
 protected:
  struct Shape {
    std::int64_t m, n, k;
  };
  // The factor with the inner size as columns, rounded to the format and scaled back.
  Matrix rounded(const Tensor& x, bool turned, const Format& format, ScaledBlock each) {
    Matrix factor = matrix(x);
    if (turned) factor = transposed(factor);
    const Matrix scales = scales_of(factor, each, format);
    for (std::size_t i = 0; i < factor.values.size(); ++i) {
      factor.values[i] = nearest(factor.values[i] / scales.values[i], format) * scales.values[i];
    }
    return factor;
  }
  // The result may have `padding` rows more than a.
  void check(ProductFormat in, const Shape& shape, bool turned_a, bool turned_b, GradientFactor gradient, DType result,
             bool accumulate, bool onto, std::int64_t padding = 0) {
    const auto& [m, n, k] = shape;
    SCOPED_TRACE(fmt::format("{} {} x {} x {}, transposes {} {}, accumulate {}", name_of(in), m, n, k, turned_a,
                             turned_b, accumulate));
    const Tensor a = random("a", DType::bfloat16, turned_a ? k : m, turned_a ? m : k);
    const Tensor b = random("b", DType::bfloat16, turned_b ? n : k, turned_b ? k : n);
    const Tensor addend = random("addend", result, m, n);
    Tensor c = accumulate ? random("c", result, m + padding, n) : poisoned(result, m + padding, n);
    std::vector<double> expected = accumulate ? doubles(c)
                                   : onto     ? doubles(addend)
                                              : std::vector<double>((m + padding) * n, 0.0);
    std::vector<double> error(expected.size());
    const bool in_blocks = in == ProductFormat::float8_blocks;
    const auto format_of = [&](GradientFactor which) {
      return which == gradient && !in_blocks ? e5m2_format : e4m3_format;
    };
    const auto block = [&](ScaledBlock each) { return in_blocks ? each : ScaledBlock::all; };
    const Matrix rows = rounded(a, turned_a, format_of(GradientFactor::a), block(ScaledBlock::row));
    const Matrix columns =
        rounded(b, !turned_b, format_of(GradientFactor::b), block(turned_a ? ScaledBlock::row : ScaledBlock::square));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double magnitudes = std::abs(expected[i * n + j]);
        for (std::int64_t l = 0; l < k; ++l) {
          const double term = rows.at(i, l) * columns.at(j, l);
          expected[i * n + j] += term;
          magnitudes += std::abs(term);
        }
        error[i * n + j] = (float_roundoff * sum_additions(k + 1) + backend->float8_sum_error()) * magnitudes;
        // The sum may be rounded before the addend comes.
        if (onto) error[i * n + j] += roundoff(result) * magnitudes;
      }
    }
    multiply(context, in,
             {a, turned_a ? Transpose::yes : Transpose::no, b, turned_b ? Transpose::yes : Transpose::no, c, accumulate,
              onto ? ConstTensorView(addend) : ConstTensorView(), gradient});
    expect_close(c, expected, error);
  }
  void check_all(ProductFormat in, const std::vector<Shape>& shapes, const std::vector<Shape>& weight_gradients) {
    for (const Shape& shape : shapes) {
      // Forward, with a weight stored either way; input gradient.
      for (const bool turned : {false, true}) {
        check(in, shape, false, turned, GradientFactor::none, DType::bfloat16, false, false);
        check(in, shape, false, turned, GradientFactor::none, DType::bfloat16, false, true);
        check(in, shape, false, turned, GradientFactor::a, DType::bfloat16, false, false);
      }
    }
    // Weight gradients: any number of tokens.
    for (const Shape& shape : weight_gradients) {
      check(in, shape, true, false, GradientFactor::a, DType::float32, true, false);
      check(in, shape, true, false, GradientFactor::b, DType::float32, false, false);
    }
  }
};

TEST_F(Float8Products, AgreeWithTheSumOfRoundedFactors) {
  check_all(ProductFormat::float8, {{1, 16, 16}, {7, 32, 48}, {130, 48, 64}},
            {{16, 32, 1}, {32, 16, 17}, {64, 48, 130}});
}

TEST_F(Float8Products, AgreeWithTheSumOfFactorsRoundedInBlocks) {
  const ProductFormat blocks = ProductFormat::float8_blocks;
  check_all(blocks, {{4, 16, 16}, {12, 144, 272}, {132, 48, 128}}, {{16, 144, 1}, {144, 16, 17}, {64, 48, 130}});
  // Rows of padding become zero.
  for (const std::int64_t padding : {1, 2, 3}) {
    check(blocks, {8 - padding, 32, 144}, false, false, GradientFactor::none, DType::bfloat16, false, false, padding);
    check(blocks, {8 - padding, 32, 144}, false, true, GradientFactor::a, DType::bfloat16, false, false, padding);
  }
}

TEST_F(Float8Products, RefuseSizesThatAreNoMultiples) {
  const Tensor a = random("a", DType::bfloat16, 4, 24), b = random("b", DType::bfloat16, 8, 24);
  Tensor c = poisoned(DType::bfloat16, 4, 8);
  EXPECT_THROW(multiply(context, ProductFormat::float8, {a, Transpose::no, b, Transpose::yes, c}), Error);
  const Tensor odd = random("odd", DType::bfloat16, 6, 32), even = random("even", DType::bfloat16, 8, 32);
  Tensor six = poisoned(DType::bfloat16, 6, 8);
  EXPECT_THROW(multiply(context, ProductFormat::float8_blocks, {odd, Transpose::no, even, Transpose::yes, six}), Error);
  EXPECT_NO_THROW(multiply(context, ProductFormat::float8, {odd, Transpose::no, even, Transpose::yes, six}));
}

// Many experts at once, some with few rows: more factors than a kernel takes, each with a scale of its own.
TEST_F(Float8Products, RoundEachExpertByItself) {
  for (const ProductFormat format : {ProductFormat::float8, ProductFormat::float8_blocks}) {
    const std::int64_t unit = format == ProductFormat::float8 ? 1 : 4;
    std::vector<Tensor> a, b, c, alone;
    std::vector<Product> of_experts;
    for (int e = 0; e < 40; ++e) {
      const std::int64_t rows = unit * (1 + e % 7);
      a.push_back(random(fmt::format("a{}", e), DType::bfloat16, rows, 32));
      b.push_back(tensor_of(DType::bfloat16, 48, 32, [&] {
        std::vector<double> values = doubles(random(fmt::format("b{}", e), DType::bfloat16, 48, 32));
        for (double& value : values) value *= std::ldexp(1.0, e - 20);
        return values;
      }()));
      c.push_back(poisoned(DType::bfloat16, rows, 48));
      alone.push_back(poisoned(DType::bfloat16, rows, 48));
      of_experts.push_back({a.back(), Transpose::no, b.back(), Transpose::yes, c.back()});
    }
    const std::int64_t live = ledger.live().total();
    multiply_all(context, format, of_experts, {.bucket = Bucket::moe_routing});
    EXPECT_EQ(ledger.live().total(), live);
    for (std::size_t e = 0; e < of_experts.size(); ++e) {
      of_experts[e].c = alone[e];
      multiply(context, format, of_experts[e]);
      EXPECT_EQ(doubles(c[e]), doubles(alone[e])) << e;
    }
  }
}

}  // namespace
}  // namespace weft
