// The update of all rows of a rank, of any number and size: one launch for each rule and pair of element types. Also
// the sums over parameters that lamb needs before its update. AdamW in float32 reads 16 and writes 12 bytes an element.
#include <algorithm>
#include <map>
#include <type_traits>

#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/elementwise.h"
#include "trainer/optimizer/cuda/chunks.cuh"
#include "trainer/optimizer/optimizer_kernels.h"

namespace weft::cuda {
namespace {

// Settings of one group, passed to a kernel by value.
struct GroupValues {
  UpdateFactors factors;
  std::int64_t step;
};
struct AllGroups {
  GroupValues of[most_update_groups];
};

// Updates `width` elements from `i` on. `width` is 1 at any address. If all arrays are aligned it is the number of
// elements that fill 16 bytes of the narrowest array.
template <typename Rule, int width, typename P, typename S>
__device__ void update_at(const ChunkArrays<P, S>& of, int i, const UpdateFactors& factors, float scale, float rate,
                          std::uint64_t rounding) {
  float parameters[width], gradients[width], first[width] = {}, second[width] = {};
  load_elements(of.parameters + i, parameters);
  load_elements(of.gradients + i, gradients);
  if constexpr (Rule::states > 0) load_elements(of.first_state + i, first);
  if constexpr (Rule::states > 1) load_elements(of.second_state + i, second);
  std::uint64_t bits[width] = {};
#pragma unroll
  for (int j = 0; j < width; ++j) {
    ElementValues values{parameters[j], first[j], second[j]};
    Rule::update(factors, rate, DeviceMath::multiply(scale, gradients[j]), values);
    parameters[j] = values.parameter;
    first[j] = values.first;
    second[j] = values.second;
    if constexpr (sizeof(P) < sizeof(float) || sizeof(S) < sizeof(float)) {
      bits[j] = rounding_bits(rounding, of.first_index + static_cast<std::uint64_t>(i + j));
    }
  }
  store_elements(of.parameters + i, parameters, bits, RoundedArray::parameters);
  if constexpr (Rule::states > 0) store_elements(of.first_state + i, first, bits, RoundedArray::first_state);
  if constexpr (Rule::states > 1) store_elements(of.second_state + i, second, bits, RoundedArray::second_state);
}

// `sums` are read only by lamb, for its rate.
template <template <typename> class Rule, typename P, typename S>
__global__ void __launch_bounds__(threads_of_block)
    update_kernel(const ChunkTable table, const AllGroups groups, const float* gradient_scale, const double* sums) {
  using Element = Rule<DeviceMath>;
  const float scale = *gradient_scale;
  if (!is_finite(scale)) return;
  const Descriptor run = table.descriptors[table.chunks[blockIdx.x].descriptor];
  const ChunkArrays<P, S> of(table, run);
  const GroupValues group = groups.of[run.group];
  float rate = 0.0f;
  if constexpr (std::is_same_v<Element, LambElement<DeviceMath>>) {
    rate = lamb_rate(group.factors, sums[2 * run.tensor], sums[2 * run.tensor + 1]);
  }
  const std::uint64_t rounding = rounding_start(run.name_key, group.step);

  // Vectors are used if all arrays are aligned to 16 bytes at the same element, `head`. The elements before and after
  // the vectors are updated one by one.
  constexpr bool all_wide = sizeof(P) == sizeof(float) && sizeof(S) == sizeof(float);
  constexpr int width = all_wide ? widest<float> : widest<bfloat16>;
  int head = max(elements_to_alignment(of.parameters), elements_to_alignment(of.gradients));
  if constexpr (Element::states > 0) head = max(head, elements_to_alignment(of.first_state));
  bool vectors = is_aligned(of.parameters, head) && is_aligned(of.gradients, head);
  if constexpr (Element::states > 0) vectors = vectors && is_aligned(of.first_state, head);
  if constexpr (Element::states > 1) vectors = vectors && is_aligned(of.second_state, head);
  head = min(head, of.size);
  const int thread = static_cast<int>(threadIdx.x);
  if (!vectors) {
    for (int i = thread; i < of.size; i += threads_of_block) {
      update_at<Element, 1>(of, i, group.factors, scale, rate, rounding);
    }
    return;
  }
  const int end = head + (of.size - head) / width * width;
  if (thread < head) update_at<Element, 1>(of, thread, group.factors, scale, rate, rounding);
  if (end + thread < of.size) update_at<Element, 1>(of, end + thread, group.factors, scale, rate, rounding);
#pragma unroll(all_wide ? 2 : 1)
  for (int i = head + thread * width; i < end; i += threads_of_block * width) {
    update_at<Element, width>(of, i, group.factors, scale, rate, rounding);
  }
}

// parts[2 chunk] and parts[2 chunk + 1] = the sums of squares of a chunk's parameters and of lamb's direction. The
// order of the additions depends on the size alone.
template <typename P, typename S>
__global__ void __launch_bounds__(threads_of_block)
    norm_kernel(const ChunkTable table, const AllGroups groups, const float* gradient_scale, double* parts) {
  const float scale = *gradient_scale;
  const Descriptor run = table.descriptors[table.chunks[blockIdx.x].descriptor];
  const ChunkArrays<P, S> of(table, run);
  const UpdateFactors factors = groups.of[run.group].factors;
  double parameter_sum = 0, direction_sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < of.size; i += threads_of_block) {
    ElementValues values{widened<DeviceMath>(of.parameters[i]), widened<DeviceMath>(of.first_state[i]),
                         widened<DeviceMath>(of.second_state[i])};
    const double parameter = values.parameter;
    const double direction =
        AdamwElement<DeviceMath>::direction(factors, DeviceMath::multiply(scale, of.gradients[i]), values);
    parameter_sum += parameter * parameter;
    direction_sum += direction * direction;
  }
  parameter_sum = sum_of_block(parameter_sum);
  direction_sum = sum_of_block(direction_sum);
  if (threadIdx.x != 0) return;
  parts[2 * blockIdx.x] = parameter_sum;
  parts[2 * blockIdx.x + 1] = direction_sum;
}

// Adds the parts of each tensor; one block for each tensor.
__global__ void __launch_bounds__(threads_of_block)
    add_parts_kernel(const ChunkTable table, const ChunkRange* ranges, const double* parts, double* sums) {
  const ChunkRange range = ranges[blockIdx.x];
  double parameter_sum = 0, direction_sum = 0;
  for (std::int32_t i = range.begin + static_cast<std::int32_t>(threadIdx.x); i < range.end; i += threads_of_block) {
    parameter_sum += parts[2 * i];
    direction_sum += parts[2 * i + 1];
  }
  parameter_sum = sum_of_block(parameter_sum);
  direction_sum = sum_of_block(direction_sum);
  if (threadIdx.x != 0) return;
  const std::int64_t tensor = table.descriptors[table.chunks[range.begin].descriptor].tensor;
  sums[2 * tensor] += parameter_sum;
  sums[2 * tensor + 1] += direction_sum;
}

// Launched with one thread. Same formula as gradient_factor() (trainer/plan/gradient_norm.h).
__global__ void clip_scale_kernel(const double* sums, UpdateLimits limits, float* gradient_scale) {
  const double square_sum = sums[0], largest = limits.largest_norm;
  const double norm = sqrt(square_sum) * limits.inverse_loss_scale;
  const double factor = largest > 0.0 && norm > largest ? largest / norm : 1.0;
  // 0, or NaN if square_sum is not finite or the step is void.
  const double nothing = limits.void_above.exceeded_by(square_sum, sums[1]) ? nan("") : square_sum - square_sum;
  *gradient_scale = static_cast<float>(factor * limits.inverse_loss_scale + nothing);
}

// The common properties of the runs in one launch.
struct Kind {
  UpdateRule rule;
  bool has_state;
  DType parameters, states;
  auto operator<=>(const Kind&) const = default;
};

// The update kernel for `kind`.
template <typename P, typename S>
auto* kernel_of(const Kind& kind) {
  switch (kind.rule) {
    case UpdateRule::sgd:
      return kind.has_state ? update_kernel<MomentumElement, P, S> : update_kernel<SgdElement, P, S>;
    case UpdateRule::lion:
      return update_kernel<LionElement, P, S>;
    case UpdateRule::lamb:
      return update_kernel<LambElement, P, S>;
    case UpdateRule::adamw:
    case UpdateRule::muon:  // refused by check_rows()
      break;
  }
  return update_kernel<AdamwElement, P, S>;
}

class CudaUpdate final : public RowsUpdate {
 public:
  CudaUpdate(Stream& stream, MemoryLedger& ledger, const std::vector<UpdateRows>& all, std::vector<UpdateRule> rules)
      : rules_(std::move(rules)) {
    require(rules_.size() <= most_update_groups, "groups fit the arguments of a kernel");
    std::map<Kind, std::vector<UpdateRows>> by_kind;
    for (const UpdateRows& run : all) {
      if (run.gradients.empty()) continue;
      const UpdateRule rule = rules_.at(static_cast<std::size_t>(run.group));
      check_rows(run, rule);
      by_kind[{rule, !run.first_state.empty(), run.parameters.dtype(), run.first_state.dtype()}].push_back(run);
    }
    for (auto& [kind, runs] : by_kind) {
      launches_.push_back({kind, Chunks(stream, ledger, runs)});
      if (needs_of(kind.rule) != Needs::tensor_norms) continue;
      std::erase_if(runs, [](const UpdateRows& run) { return !run.counted; });
      std::ranges::stable_sort(runs, {}, &UpdateRows::tensor);
      if (!runs.empty()) norms_.emplace_back(stream, ledger, kind, runs);
    }
  }

  void norms(Stream& stream, std::span<const GroupStep> groups, ConstTensorView gradient_scale,
             TensorView sums) override {
    fill(stream, sums, 0.0f);
    const AllGroups values = values_of(groups);
    for (Norms& norms : norms_) {
      double* parts = elements<double>(norms.parts.view());
      with_state_types(norms.kind.parameters, norms.kind.states, [&]<typename P, typename S>() {
        launch(native(stream), norms.chunks.blocks(), dim3(threads_of_block), 0, norm_kernel<P, S>,
               norms.chunks.table(), values, elements<float>(gradient_scale), parts);
      });
      launch(native(stream), dim3(static_cast<unsigned>(norms.ranges.rows())), dim3(threads_of_block), 0,
             add_parts_kernel, norms.chunks.table(), reinterpret_cast<const ChunkRange*>(norms.ranges.view().data()),
             parts, elements<double>(sums));
    }
  }

  void run(Stream& stream, std::span<const GroupStep> groups, ConstTensorView gradient_scale,
           ConstTensorView sums) override {
    const AllGroups values = values_of(groups);
    const double* all_sums = sums.empty() ? nullptr : elements<double>(sums);
    for (const auto& [kind, chunks] : launches_) {
      require(needs_of(kind.rule) == Needs::elements || all_sums != nullptr, "a rule that needs norms is given them");
      with_state_types(kind.parameters, kind.states, [&]<typename P, typename S>() {
        launch(native(stream), chunks.blocks(), dim3(threads_of_block), 0, kernel_of<P, S>(kind), chunks.table(),
               values, elements<float>(gradient_scale), all_sums);
      });
    }
  }

 private:
  struct Launch {
    Kind kind;
    Chunks chunks;
  };
  struct Norms {
    Norms(Stream& stream, MemoryLedger& ledger, const Kind& kind_of_runs, std::span<const UpdateRows> runs)
        : kind(kind_of_runs),
          chunks(stream, ledger, runs),
          ranges(upload(stream, ledger, chunks.ranges())),
          parts(ledger.allocate_on(stream, Bucket::workspace, DType::float64, chunks.table().chunk_count, 2)) {}
    Kind kind;
    Chunks chunks;
    Tensor ranges, parts;
  };

  AllGroups values_of(std::span<const GroupStep> groups) const {
    AllGroups values{};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      require(groups[g].rule == rules_[g], "a group keeps its rule");
      if (needs_of(groups[g].rule) == Needs::whole_matrices) continue;
      values.of[g] = {update_factors(groups[g]), groups[g].step};
    }
    return values;
  }

  std::vector<UpdateRule> rules_;
  std::vector<Launch> launches_;
  std::vector<Norms> norms_;
};

std::unique_ptr<RowsUpdate> make_update(Stream& stream, MemoryLedger& ledger, std::vector<UpdateRows> rows,
                                        std::vector<UpdateRule> rules) {
  return std::make_unique<CudaUpdate>(stream, ledger, rows, std::move(rules));
}

void clip_scale(Stream& stream, ConstTensorView sums, const UpdateLimits& limits, TensorView gradient_scale) {
  launch(native(stream), dim3(1), dim3(1), 0, clip_scale_kernel, elements<double>(sums), limits,
         elements<float>(gradient_scale));
}

}  // namespace

OptimizerKernels optimizer_kernels() {
  return {make_update, clip_scale, muon_kernels()};
}

}  // namespace weft::cuda
