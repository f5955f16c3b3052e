#include "trainer/data/megatron_blend.h"

#include <algorithm>
#include <cmath>

#include "parallel/runtime/error.h"
#include "trainer/data/numpy_random.h"

namespace weft {
namespace {

constexpr std::size_t most_blended = 32766;
constexpr double blend_surplus = 0.005;  // mid_level_dataset_surplus of Megatron

std::vector<double> divide_by_sum(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> divided(weights.begin(), weights.end());
  for (double& weight : divided) weight /= sum;
  return divided;
}

// A product rounded to float64. Fused with the difference that follows it would be more exact, and where two datasets
// are equally far behind, the other would be drawn. The compiler may not look through a volatile object.
double rounded_product(double a, double b) {
  const volatile double product = a * b;
  return product;
}

}  // namespace

BlendPlan plan_blend(std::span<const double> weights, std::int64_t samples) {
  require(samples >= 0, "a blend has samples");
  if (weights.empty() || weights.size() > most_blended) {
    fail_request("a blend of {} datasets; Megatron blends 1 to {}", weights.size(), most_blended);
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (std::isfinite(weights[i]) && weights[i] >= 0) continue;
    fail_request("weight {} of the blend is {}; weights are 0 or more and finite", i, weights[i]);
  }
  const double sum = numpy_sum(weights);
  if (!std::isfinite(sum) || sum <= 0) {
    fail_request("the weights of the blend have the sum {}; give at least one dataset a weight above 0", sum);
  }
  BlendPlan plan;
  const std::vector<double> parts = divide_by_sum(weights);
  for (const double part : parts) {
    const double share = std::ceil(static_cast<double>(samples) * part);
    plan.requests.push_back(static_cast<std::int64_t>(std::ceil(share * (1 + blend_surplus))));
    plan.samples += static_cast<std::int64_t>(share);
  }
  plan.weights = divide_by_sum(parts);
  return plan;
}

MegatronBlend blend_samples(std::span<const double> weights, std::int64_t samples) {
  require(!weights.empty() && weights.size() <= most_blended && samples >= 0, "a blend has datasets and samples");
  MegatronBlend blend;
  blend.dataset.reserve(static_cast<std::size_t>(samples));
  blend.sample.reserve(static_cast<std::size_t>(samples));
  std::vector<std::int64_t> drawn(weights.size());
  for (std::int64_t k = 0; k < samples; ++k) {
    const auto behind = [&, step = static_cast<double>(std::max<std::int64_t>(k, 1))](std::size_t dataset) {
      return rounded_product(weights[dataset], step) - static_cast<double>(drawn[dataset]);
    };
    std::size_t furthest = 0;
    double most = behind(0);
    for (std::size_t dataset = 1; dataset < weights.size(); ++dataset) {
      const double distance = behind(dataset);
      if (distance <= most) continue;
      most = distance;
      furthest = dataset;
    }
    blend.dataset.push_back(static_cast<std::int16_t>(furthest));
    blend.sample.push_back(drawn[furthest]++);
  }
  return blend;
}

}  // namespace weft
