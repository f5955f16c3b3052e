// Products in 8 bits against a sum in double of factors that the test rounds itself, by the values of all 256 codes.
#include <bit>

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
double scale_of(const std::vector<double>& values, const Format& format) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  double scale = 0x1p-100;
  while (largest / scale > format.largest) scale *= 2;
  return scale;
}

class Float8Rounding : public ProductKernelTest {
 protected:
  struct Rounded {
    Tensor elements, scales;
  };
  Rounded round(ConstTensorView source, Transpose transpose, DType dtype, std::int64_t columns) {
    const bool turned = transpose == Transpose::yes;
    Rounded rounded{poisoned(dtype, turned ? source.columns() : source.rows(), columns),
                    poisoned(DType::float32, 1, float8_scale_columns)};
    const Float8Factor factor{source, transpose, rounded.elements};
    round_to_float8(context, {&factor, 1}, rounded.scales);
    return rounded;
  }
};

TEST_F(Float8Rounding, RoundsWithTheLeastScale) {
  for (const Format& format : {e4m3_format, e5m2_format}) {
    for (const DType dtype : float_types) {
      for (const auto& [rows, columns] : {std::pair(1, 16), std::pair(5, 48), std::pair(129, 80), std::pair(70, 272)}) {
        const Tensor x = random("rounded", dtype, rows, columns);
        const std::vector<double> values = doubles(x);
        const double scale = scale_of(values, format);
        Rounded straight = round(x, Transpose::no, format.dtype, columns);
        ASSERT_EQ(doubles(straight.scales)[0], scale);
        const std::vector<double> elements = doubles(straight.elements);
        for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(elements[i], nearest(values[i] / scale, format));
        const std::int64_t padded = (rows + 15) / 16 * 16;
        Rounded turned = round(x, Transpose::yes, format.dtype, padded);
        ASSERT_EQ(doubles(turned.scales)[0], scale);
        const std::vector<double> turned_elements = doubles(turned.elements);
        for (std::int64_t column = 0; column < columns; ++column) {
          for (std::int64_t row = 0; row < padded; ++row) {
            const double expected = row < rows ? elements[static_cast<std::size_t>(row * columns + column)] : 0.0;
            ASSERT_EQ(turned_elements[static_cast<std::size_t>(column * padded + row)], expected);
          }
        }
      }
    }
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
        const Rounded rounded = round(x, Transpose::no, format.dtype, 16);
        EXPECT_EQ(doubles(rounded.scales)[0], std::max(factor * (past > 1.0 ? 2.0 : 1.0), 0x1p-100));
      }
    }
  }
  const Rounded zero = round(zeros(DType::bfloat16, 2, 16), Transpose::no, DType::float8_e4m3, 16);
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
      const Rounded rounded = round(x, transpose, DType::float8_e5m2, 16);
      for (const double value : doubles(rounded.elements)) EXPECT_TRUE(std::isnan(value));
      Tensor c = poisoned(DType::float32, 16, 16);
      const Product product{x, Transpose::no, x, Transpose::yes, c};
      multiply(context, ProductFormat::float8, product);
      for (const double value : doubles(c)) EXPECT_TRUE(std::isnan(value));
    }
  }
}

class Float8Products : public Float8Rounding {
 protected:
  struct Shape {
    std::int64_t m, n, k;
  };
  // op(x), a x b, rounded to the format and scaled back.
  std::vector<double> rounded(const Tensor& x, const Format& format) {
    std::vector<double> values = doubles(x);
    const double scale = scale_of(values, format);
    for (double& value : values) value = nearest(value / scale, format) * scale;
    return values;
  }
  void check(const Shape& shape, bool turned_a, bool turned_b, GradientFactor gradient, DType result, bool accumulate,
             bool onto) {
    const auto& [m, n, k] = shape;
    SCOPED_TRACE(fmt::format("{} x {} x {}, transposes {} {}, accumulate {}", m, n, k, turned_a, turned_b, accumulate));
    const Tensor a = random("a", DType::bfloat16, turned_a ? k : m, turned_a ? m : k);
    const Tensor b = random("b", DType::bfloat16, turned_b ? n : k, turned_b ? k : n);
    const Tensor addend = random("addend", result, m, n);
    Tensor c = accumulate ? random("c", result, m, n) : poisoned(result, m, n);
    std::vector<double> expected = accumulate ? doubles(c) : onto ? doubles(addend) : std::vector<double>(m * n, 0.0);
    std::vector<double> error(expected.size());
    const auto format_of = [&](GradientFactor which) { return which == gradient ? e5m2_format : e4m3_format; };
    const std::vector<double> factors_a = rounded(a, format_of(GradientFactor::a));
    const std::vector<double> factors_b = rounded(b, format_of(GradientFactor::b));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double magnitudes = std::abs(expected[i * n + j]);
        for (std::int64_t l = 0; l < k; ++l) {
          const double term = factors_a[turned_a ? l * m + i : i * k + l] * factors_b[turned_b ? j * k + l : l * n + j];
          expected[i * n + j] += term;
          magnitudes += std::abs(term);
        }
        error[i * n + j] = float_roundoff * sum_additions(k + 1) * magnitudes;
        // The sum may be rounded before the addend comes.
        if (onto) error[i * n + j] += roundoff(result) * magnitudes;
      }
    }
    multiply(context, ProductFormat::float8,
             {a, turned_a ? Transpose::yes : Transpose::no, b, turned_b ? Transpose::yes : Transpose::no, c, accumulate,
              onto ? ConstTensorView(addend) : ConstTensorView(), gradient});
    expect_close(c, expected, error);
  }
};

TEST_F(Float8Products, AgreeWithTheSumOfRoundedFactors) {
  for (const Shape& shape : {Shape{1, 16, 16}, Shape{7, 32, 48}, Shape{130, 48, 64}}) {
    // Forward, with a weight stored either way; input gradient.
    for (const bool turned : {false, true}) {
      check(shape, false, turned, GradientFactor::none, DType::bfloat16, false, false);
      check(shape, false, turned, GradientFactor::none, DType::bfloat16, false, true);
      check(shape, false, turned, GradientFactor::a, DType::bfloat16, false, false);
    }
  }
  // Weight gradients: any number of tokens.
  for (const Shape& shape : {Shape{16, 32, 1}, Shape{32, 16, 17}, Shape{64, 48, 130}}) {
    check(shape, true, false, GradientFactor::a, DType::float32, true, false);
    check(shape, true, false, GradientFactor::b, DType::float32, false, false);
  }
}

TEST_F(Float8Products, RefusesAnInnerSizeThatIsNoMultipleOfSixteen) {
  const Tensor a = random("a", DType::bfloat16, 4, 24), b = random("b", DType::bfloat16, 8, 24);
  Tensor c = poisoned(DType::bfloat16, 4, 8);
  EXPECT_THROW(multiply(context, ProductFormat::float8, {a, Transpose::no, b, Transpose::yes, c}), Error);
}

// Many experts at once, some with few rows: more factors than a kernel takes, each with a scale of its own.
TEST_F(Float8Products, RoundEachExpertByItself) {
  std::vector<Tensor> a, b, c, alone;
  std::vector<Product> products;
  for (int e = 0; e < 40; ++e) {
    a.push_back(random(fmt::format("a{}", e), DType::bfloat16, 1 + e % 7, 32));
    b.push_back(tensor_of(DType::bfloat16, 48, 32, [&] {
      std::vector<double> values = doubles(random(fmt::format("b{}", e), DType::bfloat16, 48, 32));
      for (double& value : values) value *= std::ldexp(1.0, e - 20);
      return values;
    }()));
    c.push_back(poisoned(DType::bfloat16, 1 + e % 7, 48));
    alone.push_back(poisoned(DType::bfloat16, 1 + e % 7, 48));
    products.push_back({a.back(), Transpose::no, b.back(), Transpose::yes, c.back()});
  }
  const std::int64_t live = ledger.live().total();
  multiply_all(context, ProductFormat::float8, products, {.bucket = Bucket::moe_routing, .products = 64});
  EXPECT_EQ(ledger.live().total(), live);
  for (std::size_t e = 0; e < products.size(); ++e) {
    products[e].c = alone[e];
    multiply(context, ProductFormat::float8, products[e]);
    EXPECT_EQ(doubles(c[e]), doubles(alone[e])) << e;
  }
}

}  // namespace
}  // namespace weft
