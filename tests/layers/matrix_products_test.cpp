#include "tests/layers/matrix_products_fixture.h"

namespace weft {
namespace {

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

// The reference is the product alone and the addition in double. The product and the sum may each be rounded to the
// result's dtype, and the float32 sum of 48 terms may begin with the addend.
TEST_F(MatrixProductsTest, AddsOntoAnotherMatrix) {
  for (const Dtypes& dtypes : all_dtypes) {
    const Tensor a = random("a", dtypes.factors, 100, 48), b = random("b", dtypes.factors, 48, 80);
    const Tensor addend = random("x", dtypes.result, 100, 80);
    Tensor product = poisoned(DType::float32, 100, 80), onto = poisoned(dtypes.result, 100, 80);
    products->multiply(a, Transpose::no, b, Transpose::no, product, false);
    const std::vector<double> x = doubles(addend);
    products->run({a, Transpose::no, b, Transpose::no, onto, false, addend});
    std::vector<double> expected = doubles(product), error;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error.push_back(roundoff(dtypes.result) * std::abs(expected[i]) +
                      sum_additions(49) * float_roundoff * (std::abs(expected[i]) + std::abs(x[i]) + 48.0));
      expected[i] += x[i];
    }
    expect_close(onto, expected, error);
    EXPECT_EQ(doubles(addend), x);
  }
}

TEST_F(MatrixProductsTest, GivesTheSameBitsForManyAtOnce) {
  for (const Dtypes& dtypes : all_dtypes) {
    std::vector<Tensor> factors, alone, together;
    std::vector<Product> all;
    const Tensor b = random("b", dtypes.factors, 80, 48);
    for (std::int64_t rows : {5, 0, 64, 17, 1, 100, 33}) {
      factors.push_back(random("a", dtypes.factors, rows, 48));
      alone.push_back(poisoned(dtypes.result, rows, 80));
      together.push_back(poisoned(dtypes.result, rows, 80));
      products->multiply(factors.back(), Transpose::no, b, Transpose::yes, alone.back(), false);
    }
    for (std::size_t i = 0; i < factors.size(); ++i) {
      all.push_back({factors[i], Transpose::no, b, Transpose::yes, together[i].view(), false, {}});
    }
    products->run_all(all);
    for (std::size_t i = 0; i < factors.size(); ++i) EXPECT_EQ(doubles(together[i]), doubles(alone[i])) << i;
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
