#include "layers/kernels/matrix_products.h"

#include "layers/kernels/cpu/library_products.h"
#include "parallel/runtime/elementwise.h"
#include "tests/layers/reference.h"

namespace weft {
namespace {

struct Dtypes {
  DType factors, result;
};
constexpr Dtypes all_dtypes[] = {
    {DType::float32, DType::float32}, {DType::bfloat16, DType::bfloat16}, {DType::bfloat16, DType::float32}};

class MatrixProductsTest : public ProductKernelTest {
 protected:
  // Compares one product with the sum in double. Products of k normal numbers sum to about sqrt(k); the float32 sum of
  // k terms errs by at most k epsilon times the sum of magnitudes, which is under k for normal factors (mean |xy| is 2
  // / pi; the margin covers short sums). The result is then rounded once to its dtype, at most 5 sqrt(k) + 5 large.
  void check(MatrixProducts& under_test, Dtypes dtypes, std::int64_t m, std::int64_t n, std::int64_t k, bool turned_a,
             bool turned_b, bool accumulate) {
    const auto named = [&](std::string_view factor) { return fmt::format("{} {} {} {}", factor, m, n, k); };
    const Tensor a = random(named("a"), dtypes.factors, turned_a ? k : m, turned_a ? m : k);
    const Tensor b = random(named("b"), dtypes.factors, turned_b ? n : k, turned_b ? k : n);
    Tensor c = accumulate ? random(named("c"), dtypes.result, m, n) : poisoned(dtypes.result, m, n);
    std::vector<double> expected = accumulate ? doubles(c) : std::vector<double>(static_cast<std::size_t>(m * n), 0.0);
    const std::vector<double> a_values = doubles(a), b_values = doubles(b);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t l = 0; l < k; ++l) {
          expected[i * n + j] +=
              a_values[turned_a ? l * m + i : i * k + l] * b_values[turned_b ? j * k + l : l * n + j];
        }
      }
    }
    under_test.multiply(a, turned_a ? Transpose::yes : Transpose::no, b, turned_b ? Transpose::yes : Transpose::no, c,
                        accumulate);
    const double terms = static_cast<double>(k) + 4;
    const double tolerance =
        terms * terms * roundoff(DType::float32) + (5 * std::sqrt(terms) + 5) * roundoff(dtypes.result);
    reference::expect_near(c, expected, tolerance,
                           fmt::format("{} x {} x {}, transposes {} {}, {} to {}, accumulate {}", m, n, k, turned_a,
                                       turned_b, name_of(dtypes.factors), name_of(dtypes.result), accumulate));
  }
  void check_all_layouts(MatrixProducts& under_test, std::int64_t m, std::int64_t n, std::int64_t k) {
    for (const Dtypes& dtypes : all_dtypes) {
      for (int layout = 0; layout < 8; ++layout) {
        check(under_test, dtypes, m, n, k, (layout & 1) != 0, (layout & 2) != 0, (layout & 4) != 0);
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_F(MatrixProductsTest, AgreesWithTheSumInEveryLayout) {
  check_all_layouts(*products, 1, 1, 1);
  check_all_layouts(*products, 7, 5, 3);
  check_all_layouts(*products, 64, 64, 64);
  check_all_layouts(*products, 33, 96, 17);
}

TEST_F(MatrixProductsTest, CutsTokensIntoBlocksAndARest) {
  check_all_layouts(*products, 131, 24, 40);   // tokens are rows
  check_all_layouts(*products, 24, 40, 193);   // tokens are summed over
  check_all_layouts(*products, 160, 32, 129);  // the same, and so tall that float32 takes another way
}

TEST_F(MatrixProductsTest, WidensBfloat16WhereTheProcessorLacksIt) {
  const std::unique_ptr<MatrixProducts> widening = make_library_products(false);
  check_all_layouts(*widening, 7, 5, 3);
  check_all_layouts(*widening, 131, 24, 40);
}

TEST_F(MatrixProductsTest, GivesTheSameBitsForEachCallOfAShape) {
  for (const Dtypes& dtypes : all_dtypes) {
    const Tensor a = random("a", dtypes.factors, 100, 48), b = random("b", dtypes.factors, 80, 48);
    Tensor first = poisoned(dtypes.result, 100, 80), second = poisoned(dtypes.result, 100, 80);
    products->multiply(a, Transpose::no, b, Transpose::yes, first, false);
    products->multiply(a, Transpose::no, b, Transpose::yes, second, false);
    EXPECT_EQ(doubles(first), doubles(second));
  }
}

TEST_F(MatrixProductsTest, TreatsEmptySumsAsZero) {
  for (const Dtypes& dtypes : all_dtypes) {
    const Tensor a = random("a", dtypes.factors, 3, 0), b = random("b", dtypes.factors, 0, 4);
    Tensor c = poisoned(dtypes.result, 3, 4);
    products->multiply(a, Transpose::no, b, Transpose::no, c, false);
    EXPECT_EQ(doubles(c), std::vector<double>(12, 0.0));

    Tensor kept = random("c", dtypes.result, 3, 4);
    const std::vector<double> before = doubles(kept);
    products->multiply(a, Transpose::no, b, Transpose::no, kept, true);
    EXPECT_EQ(doubles(kept), before);
  }
}

TEST_F(MatrixProductsTest, DoesNothingForAnEmptyResult) {
  for (const Dtypes& dtypes : all_dtypes) {
    const Tensor a = random("a", dtypes.factors, 0, 5), b = random("b", dtypes.factors, 5, 4);
    Tensor c = poisoned(dtypes.result, 0, 4);
    EXPECT_NO_THROW(products->multiply(a, Transpose::no, b, Transpose::no, c, false));
  }
}

TEST_F(MatrixProductsTest, RefusesShapesThatDoNotMeet) {
  const Tensor a = random("a", DType::float32, 3, 5), b = random("b", DType::float32, 4, 6);
  Tensor c = poisoned(DType::float32, 3, 6);
  EXPECT_THROW(products->multiply(a, Transpose::no, b, Transpose::no, c, false), Error);
}

}  // namespace
}  // namespace weft
