#include "tests/layers/reference.h"

#include <iterator>
#include <limits>

namespace weft::reference {
namespace {

// Probabilities of query t of its sequence over keys 0..t, zero for those outside its window, and their log-sum-exp.
// `first` is the sequence's first row.
std::vector<double> probabilities(const HeadLayout& layout, const std::vector<double>& qkv, std::int64_t first,
                                  std::int64_t t, std::int64_t head, double& log_sum_exp) {
  const std::int64_t head_dim = layout.heads.head_dim, window = layout.heads.first_key.window;
  std::vector<double> row(static_cast<std::size_t>(t + 1), -std::numeric_limits<double>::infinity());
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t s = 0; s <= t; ++s) {
    if (window > 0 && t - s >= window) continue;
    double score = 0;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      score += qkv[layout.q(first + t, head) + i] * qkv[layout.k(first + s, head) + i];
    }
    row[s] = score / std::sqrt(static_cast<double>(head_dim));
    maximum = std::max(maximum, row[s]);
  }
  for (double score : row) sum += std::exp(score - maximum);
  log_sum_exp = maximum + std::log(sum);
  for (double& score : row) score = std::exp(score - log_sum_exp);
  return row;
}

}  // namespace

AttentionResult attention(const HeadShape& heads, const std::vector<double>& qkv) {
  const HeadLayout layout{heads};
  const std::int64_t tokens = std::ssize(qkv) / layout.columns();
  AttentionResult result;
  result.out.assign(static_cast<std::size_t>(tokens * heads.query_heads * heads.value_dim), 0.0);
  result.log_sum_exp.assign(static_cast<std::size_t>(tokens * heads.query_heads), 0.0);
  for (std::int64_t row = 0; row < tokens; ++row) {
    const std::int64_t t = row % heads.sequence_length, first = row - t;
    for (std::int64_t head = 0; head < heads.query_heads; ++head) {
      const std::vector<double> p =
          probabilities(layout, qkv, first, t, head, result.log_sum_exp[row * heads.query_heads + head]);
      for (std::int64_t s = 0; s <= t; ++s) {
        for (std::int64_t i = 0; i < heads.value_dim; ++i) {
          result.out[layout.out(row, head) + i] += p[s] * qkv[layout.v(first + s, head) + i];
        }
      }
    }
  }
  return result;
}

std::vector<double> attention_gradient(const HeadShape& heads, const std::vector<double>& qkv,
                                       const std::vector<double>& dout) {
  const HeadLayout layout{heads};
  const std::int64_t tokens = std::ssize(qkv) / layout.columns();
  const double scale = 1.0 / std::sqrt(static_cast<double>(heads.head_dim));
  std::vector<double> gradient(qkv.size(), 0.0);
  for (std::int64_t row = 0; row < tokens; ++row) {
    const std::int64_t t = row % heads.sequence_length, first = row - t;
    for (std::int64_t head = 0; head < heads.query_heads; ++head) {
      double log_sum_exp = 0;
      const std::vector<double> p = probabilities(layout, qkv, first, t, head, log_sum_exp);
      std::vector<double> dp(p.size(), 0.0);
      for (std::int64_t s = 0; s <= t; ++s) {
        for (std::int64_t i = 0; i < heads.value_dim; ++i) {
          const double output_gradient = dout[layout.out(row, head) + i];
          dp[s] += output_gradient * qkv[layout.v(first + s, head) + i];
          gradient[layout.v(first + s, head) + i] += p[s] * output_gradient;
        }
      }
      const double mean = inner_product(p, dp);
      for (std::int64_t s = 0; s <= t; ++s) {
        const double dscore = scale * p[s] * (dp[s] - mean);
        for (std::int64_t i = 0; i < heads.head_dim; ++i) {
          gradient[layout.q(row, head) + i] += dscore * qkv[layout.k(first + s, head) + i];
          gradient[layout.k(first + s, head) + i] += dscore * qkv[layout.q(row, head) + i];
        }
      }
    }
  }
  return gradient;
}

std::vector<double> rotary(const RotaryOptions& options, const std::vector<double>& qkv, const RotaryWeights& weights) {
  const HeadShape& heads = options.heads;
  const HeadLayout layout{heads};
  const std::int64_t tokens = std::ssize(qkv) / layout.columns(), head_dim = heads.head_dim, half = head_dim / 2;
  std::vector<double> result = qkv;
  for (std::int64_t row = 0; row < tokens; ++row) {
    for (std::int64_t slot = 0; slot < heads.query_heads + heads.key_value_heads; ++slot) {
      const double* x = qkv.data() + layout.at(row, slot);
      double* y = result.data() + layout.at(row, slot);
      std::vector<double> normal(x, x + head_dim);
      const std::vector<double>& weight = slot < heads.query_heads ? weights.q : weights.k;
      if (!weight.empty()) {
        double square = 0;
        for (double element : normal) square += element * element;
        const double inverse = 1.0 / std::sqrt(square / static_cast<double>(head_dim) + options.eps);
        for (std::int64_t i = 0; i < head_dim; ++i) normal[i] *= inverse * weight[i];
      }
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(row % heads.sequence_length) *
                             std::pow(options.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        y[i] = normal[i] * std::cos(angle) - normal[i + half] * std::sin(angle);
        y[i + half] = normal[i + half] * std::cos(angle) + normal[i] * std::sin(angle);
      }
    }
  }
  return result;
}

CrossEntropyResult cross_entropy(const std::vector<double>& logits, std::int64_t columns,
                                 const std::vector<std::int32_t>& targets) {
  CrossEntropyResult result;
  result.dlogits = logits;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    double* row = result.dlogits.data() + static_cast<std::int64_t>(t) * columns;
    double sum = 0;
    const double target = row[targets[t]], maximum = *std::max_element(row, row + columns);
    for (std::int64_t i = 0; i < columns; ++i) sum += std::exp(row[i] - maximum);
    result.loss += maximum + std::log(sum) - target;
    for (std::int64_t i = 0; i < columns; ++i) row[i] = std::exp(row[i] - maximum) / sum;
    row[targets[t]] -= 1.0;
  }
  return result;
}

}  // namespace weft::reference
