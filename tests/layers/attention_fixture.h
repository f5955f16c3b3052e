// Attention over whole sequences of fused q, k and v, and how far it may be off.
#pragma once

#include "layers/kernels/attention.h"
#include "tests/layers/kernel_fixture.h"
#include "tests/layers/reference.h"

namespace weft {

// One call of the forward and the backward on fresh inputs, with the reference of the rounded inputs.
class AttentionTest : public ProductKernelTest {
 protected:
  struct Run {
    Tensor qkv, dout, out, log_sum_exp, dqkv;
  };

  // Where the document of each position begins, for sequences whose documents begin at `starts`.
  static std::vector<double> document_begins(const std::vector<std::vector<std::int64_t>>& starts,
                                             std::int64_t length) {
    std::vector<double> begins;
    for (const std::vector<std::int64_t>& of_sequence : starts) {
      std::int64_t begin = 0;
      for (std::int64_t p = 0; p < length; ++p) {
        if (std::ranges::find(of_sequence, p) != of_sequence.end()) begin = p;
        begins.push_back(static_cast<double>(begin));
      }
    }
    return begins;
  }

  // `begins`: one document a sequence if empty.
  Run run(DType dtype, const HeadShape& heads, std::int64_t sequences, const std::vector<double>& begins = {}) {
    const std::int64_t tokens = sequences * heads.sequence_length, out_columns = heads.output_columns();
    Run result{random("qkv", dtype, tokens, heads.columns()), random("dout", dtype, tokens, out_columns),
               poisoned(dtype, tokens, out_columns), poisoned(DType::float32, tokens, heads.query_heads),
               poisoned(dtype, tokens, heads.columns())};
    const Range runs[] = {{0, heads.sequence_length}};
    AttentionInputs inputs = fused_heads(heads, ConstTensorView(result.qkv));
    Tensor documents;
    if (!begins.empty()) inputs.document_begins = documents = tensor_of(DType::int32, tokens, 1, begins);
    attention_forward(context, heads, runs, inputs, result.out, result.log_sum_exp);
    attention_backward(context, heads, runs, result.dout, inputs, result.out, result.log_sum_exp,
                       fused_heads(heads, result.dqkv.view()));
    return result;
  }

  static double widest(const HeadShape& heads) {
    return static_cast<double>(std::max(heads.head_dim, heads.value_dim));
  }

  // Let e be the rounding of the factors: float32, or 16 bits for probabilities and dscores between products.
  // Scores q.k / sqrt(d) of normal inputs stay below 6 and are up to e_32 d sqrt(d) off, and so are the exponents. A
  // probability errs by that times itself. `out`, a mean of values below 5, errs by 5 (e_32 (d sqrt(d) + keys) + 2 e).
  // Its sums over keys are weighted by probabilities that add up to one. The stored result is rounded once more, which
  // the 2 e holds.
  double out_tolerance(DType dtype, const HeadShape& heads) {
    const double d = widest(heads), keys = static_cast<double>(heads.sequence_length);
    return 5 * (roundoff(DType::float32) * (d * std::sqrt(d) + keys) + 2 * roundoff(dtype));
  }
  // A gradient sums dscore * q or p * dout over rows. `mass`, the reference's largest element, bounds what well-mixed
  // signs leave. group * sqrt(keys) is how many roundings of size e add up at random. dscore holds p (dp - product), a
  // difference of terms near 5 sqrt(d) with the error of `out` in the product.
  double gradient_tolerance(DType dtype, const HeadShape& heads, double mass) {
    const double d = widest(heads), keys = static_cast<double>(heads.sequence_length);
    const double group = static_cast<double>(heads.query_heads) / static_cast<double>(heads.key_value_heads);
    const double relative = roundoff(DType::float32) * (d * std::sqrt(d) + keys) + 2 * roundoff(dtype);
    return relative * (mass + 5 * std::sqrt(d) + group * std::sqrt(keys));
  }

  void check(DType dtype, const HeadShape& heads, std::int64_t sequences) {
    const std::string what = fmt::format("{} heads {}/{} of {} and {}, {} sequences of {}, window {}", name_of(dtype),
                                         heads.query_heads, heads.key_value_heads, heads.head_dim, heads.value_dim,
                                         sequences, heads.sequence_length, heads.first_key.window);
    const Run found = run(dtype, heads, sequences);
    const std::vector<double> qkv = doubles(found.qkv);
    const reference::AttentionResult expected = reference::attention(heads, qkv);
    reference::expect_near(doubles(found.out), expected.out, out_tolerance(dtype, heads), "out of " + what);
    // Probabilities are rounded after their sum is taken, so the log-sum-exp has float32 errors in either dtype.
    reference::expect_near(doubles(found.log_sum_exp), expected.log_sum_exp, out_tolerance(DType::float32, heads),
                           "log-sum-exp of " + what);
    const std::vector<double> gradient = reference::attention_gradient(heads, qkv, doubles(found.dout));
    reference::expect_near(doubles(found.dqkv), gradient,
                           gradient_tolerance(dtype, heads, reference::largest_magnitude(gradient)),
                           "gradient of " + what);
  }
};

}  // namespace weft
