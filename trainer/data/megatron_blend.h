// The way in which Megatron blends several datasets by weights (megatron/core/datasets/blended_dataset.py, helpers.cpp
// and blended_megatron_dataset_builder.py).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

// Sample k of a blend is sample `sample[k]` of dataset `dataset[k]`. Memory: 10 bytes for each sample.
struct MegatronBlend {
  std::vector<std::int16_t> dataset;
  std::vector<std::int64_t> sample;
};

// The samples that a blend of at least `samples` samples takes from each dataset.
struct BlendPlan {
  std::vector<double> weights;         // of sum 1, as the blend uses them
  std::vector<std::int64_t> requests;  // MegatronRequest::samples for each dataset: 0.5 % more than its part
  std::int64_t samples = 0;            // of the blend: the sum of the parts, each rounded up
};
// Weights are divided by their sum, twice and in NumPy's order of summation, as Megatron does. Throws Error (request)
// for no dataset or 32767 and more, a weight that is negative or not finite, and weights of sum 0.
BlendPlan plan_blend(std::span<const double> weights, std::int64_t samples);

// Each sample is drawn from the dataset that is furthest behind: the largest weight * max(k, 1) - drawn, of equal ones
// the first. `weights` as in BlendPlan.
MegatronBlend blend_samples(std::span<const double> weights, std::int64_t samples);

}  // namespace weft
