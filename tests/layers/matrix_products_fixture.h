// Comparison of any matrix products with the sum in double.
#pragma once

#include <cstdint>

#include "tests/layers/kernel_fixture.h"
#include "tests/layers/reference.h"

namespace weft {

struct Dtypes {
  DType factors, result;
};
inline constexpr Dtypes all_dtypes[] = {{DType::float32, DType::float32},
                                        {DType::bfloat16, DType::bfloat16},
                                        {DType::bfloat16, DType::float32},
                                        {DType::float16, DType::float16},
                                        {DType::float16, DType::float32}};

class MatrixProductsTest : public ProductKernelTest {
 protected:
  // Compares one product with the sum in double. Products of k normal numbers sum to about sqrt(k). A float32 sum of k
  // terms errs by at most k epsilon times the sum of magnitudes. That is under k for normal factors (mean |xy| is
  // 2 / pi; the margin covers short sums). The result, at most 5 sqrt(k) + 5 large, is then rounded to its dtype. What
  // is added to c may be rounded before, because cuBLASLt's algorithms for Hopper leave the addition to the memory.
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
    const double tolerance = terms * terms * roundoff(DType::float32) +
                             (accumulate ? 2 : 1) * (5 * std::sqrt(terms) + 5) * roundoff(dtypes.result);
    reference::expect_near(doubles(c), expected, tolerance,
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

}  // namespace weft
