// Oracles for the kernels: the formulas in double, in plain loops, sharing no code with what they check; and what every
// kernel test needs around them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "layers/kernels/context.h"
#include "layers/kernels/matrix_products.h"
#include "layers/kernels/rotary.h"
#include "parallel/runtime/random.h"

namespace weft::reference {

// Half the distance from 1 to the next number: the relative error of one rounding.
inline double epsilon(DType dtype) {
  return dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-24;
}

class KernelTest : public testing::Test {
 protected:
  KernelTest() { use_one_library_thread(); }

  // Standard normal numbers, rounded to the dtype. Each name draws others.
  Tensor random(DType dtype, std::int64_t rows, std::int64_t columns, std::string_view name) {
    Tensor tensor = ledger.allocate(Bucket::activations, dtype, rows, columns);
    const RandomStream stream_of_name(20240, name);
    for (std::int64_t i = 0; i < tensor.view().size(); ++i) {
      const float value = static_cast<float>(stream_of_name.normal(static_cast<std::uint64_t>(i)));
      if (dtype == DType::bfloat16) {
        tensor.as<bfloat16>()[i] = bfloat16(value);
      } else {
        tensor.as<float>()[i] = value;
      }
    }
    return tensor;
  }
  // NaN everywhere: what a kernel leaves unwritten, or reads before writing, shows.
  Tensor poisoned(DType dtype, std::int64_t rows, std::int64_t columns) {
    Tensor tensor = ledger.allocate(Bucket::activations, dtype, rows, columns);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (dtype == DType::bfloat16) {
      std::ranges::fill(tensor.as<bfloat16>(), bfloat16(nan));
    } else {
      std::ranges::fill(tensor.as<float>(), nan);
    }
    return tensor;
  }

  std::unique_ptr<Device> device = make_cpu_device();
  MemoryLedger ledger{*device};
  PhaseClock clock;
  std::unique_ptr<Stream> stream = device->create_stream("compute");
  std::unique_ptr<MatrixProducts> products = make_cpu_matrix_products();
  KernelContext context{ledger, clock, *stream, *products};
};

inline std::vector<double> values(ConstTensorView tensor) {
  std::vector<double> result(static_cast<std::size_t>(tensor.size()));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] =
        tensor.dtype() == DType::bfloat16 ? static_cast<float>(tensor.as<bfloat16>()[i]) : tensor.as<float>()[i];
  }
  return result;
}

// Every element within `tolerance` of the reference; NaN is never near.
inline void expect_near(ConstTensorView result, const std::vector<double>& expected, double tolerance,
                        std::string_view what) {
  const std::vector<double> found = values(result);
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(std::abs(found[i] - expected[i]) <= tolerance)
        << what << " element " << i << ": " << found[i] << " for " << expected[i] << ", tolerance " << tolerance;
  }
}

inline double largest_magnitude(const std::vector<double>& numbers) {
  double largest = 0;
  for (double number : numbers) largest = std::max(largest, std::abs(number));
  return largest;
}
inline double inner_product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The columns of head h of q, k (after the query heads) or v (after the key heads) in row t of a fused qkv.
struct HeadLayout {
  HeadShape heads;

  std::size_t q(std::int64_t t, std::int64_t head) const { return at(t, head); }
  std::size_t k(std::int64_t t, std::int64_t head) const { return at(t, heads.query_heads + pair(head)); }
  std::size_t v(std::int64_t t, std::int64_t head) const {
    return at(t, heads.query_heads + heads.key_value_heads + pair(head));
  }
  std::size_t out(std::int64_t t, std::int64_t head) const {
    return static_cast<std::size_t>((t * heads.query_heads + head) * heads.head_dim);
  }
  std::size_t at(std::int64_t t, std::int64_t slot) const {
    return static_cast<std::size_t>(t * heads.columns() + slot * heads.head_dim);
  }
  std::int64_t pair(std::int64_t head) const { return head / (heads.query_heads / heads.key_value_heads); }
};

struct AttentionResult {
  std::vector<double> out, log_sum_exp;
};
// The full matrix of scores of each sequence and head.
AttentionResult attention(const HeadShape& heads, const std::vector<double>& qkv);
std::vector<double> attention_gradient(const HeadShape& heads, const std::vector<double>& qkv,
                                       const std::vector<double>& dout);

struct RotaryWeights {
  std::vector<double> q, k;  // empty without QK-norm
};
std::vector<double> rotary(const RotaryOptions& options, const std::vector<double>& qkv, const RotaryWeights& weights);

// Loss summed over tokens, and its gradient.
struct CrossEntropyResult {
  double loss = 0;
  std::vector<double> dlogits;
};
CrossEntropyResult cross_entropy(const std::vector<double>& logits, std::int64_t columns,
                                 const std::vector<std::int32_t>& targets);

}  // namespace weft::reference
