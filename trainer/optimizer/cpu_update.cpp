#include <algorithm>
#include <bit>
#include <cmath>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/error.h"
#include "trainer/optimizer/element_update.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/plan/gradient_norm.h"

namespace weft {
namespace {

// This file is compiled without contraction of products and sums (CMakeLists.txt); contraction would fuse these
// operations.
struct HostMath {
  WEFT_INLINE static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  WEFT_INLINE static float subtract(float a, float b) { return a - b; }
  WEFT_INLINE static float multiply(float a, float b) { return a * b; }
  WEFT_INLINE static float divide(float a, float b) { return a / b; }
  WEFT_INLINE static float root(float a) { return std::sqrt(a); }
  WEFT_INLINE static std::uint32_t to_bits(float a) { return std::bit_cast<std::uint32_t>(a); }
  WEFT_INLINE static float from_bits(std::uint32_t a) { return std::bit_cast<float>(a); }
};

// The arrays of one run.
template <typename P, typename S>
struct Arrays {
  P* parameters;
  const float* gradients;
  S *first_state, *second_state;  // null if the rule has fewer
  std::int64_t count;
  std::uint64_t rounding, first_index;
};
// Values that are the same for all elements of a run.
struct Common {
  UpdateFactors factors;
  float gradient_scale, rate;
};

template <int states, typename P, typename S>
WEFT_INLINE ElementValues values_at(const Arrays<P, S>& of, std::int64_t i) {
  ElementValues values{.parameter = widened<HostMath>(of.parameters[i])};
  if constexpr (states > 0) values.first = widened<HostMath>(of.first_state[i]);
  if constexpr (states > 1) values.second = widened<HostMath>(of.second_state[i]);
  return values;
}

// One pass over memory. With "omp simd" instead of "ivdep" the compiler keeps the values of a vector of elements as an
// array of structs and does not vectorise.
template <typename Rule, typename P, typename S>
WEFT_INLINE void update_loop(const Common common, const Arrays<P, S> of) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < of.count; ++i) {
    ElementValues values = values_at<Rule::states>(of, i);
    Rule::update(common.factors, common.rate, common.gradient_scale * of.gradients[i], values);
    const std::uint64_t bits = rounding_bits(of.rounding, of.first_index + static_cast<std::uint64_t>(i));
    assign_rounded<HostMath>(of.parameters[i], values.parameter, bits_for(RoundedArray::parameters, bits));
    if constexpr (Rule::states > 0) {
      assign_rounded<HostMath>(of.first_state[i], values.first, bits_for(RoundedArray::first_state, bits));
    }
    if constexpr (Rule::states > 1) {
      assign_rounded<HostMath>(of.second_state[i], values.second, bits_for(RoundedArray::second_state, bits));
    }
  }
}

// Adds the squares of the parameter to sums[0] and those of lamb's direction to sums[1].
template <typename P, typename S>
WEFT_INLINE void norm_loop(const Common common, const Arrays<P, S> of, double* sums) {
  double parameter_sum = 0, direction_sum = 0;
#pragma omp simd reduction(+ : parameter_sum, direction_sum)
  for (std::int64_t i = 0; i < of.count; ++i) {
    ElementValues values = values_at<2>(of, i);
    const double direction =
        AdamwElement<HostMath>::direction(common.factors, common.gradient_scale * of.gradients[i], values);
    parameter_sum += static_cast<double>(values.parameter) * values.parameter;
    direction_sum += direction * direction;
  }
  sums[0] += parameter_sum;
  sums[1] += direction_sum;
}

template <typename P, typename S>
Arrays<P, S> arrays_of(const UpdateRows& rows, std::int64_t step) {
  const auto elements = [](TensorView state) { return state.empty() ? nullptr : state.as<S>().data(); };
  return {rows.parameters.as<P>().data(),
          rows.gradients.as<float>().data(),
          elements(rows.first_state),
          elements(rows.second_state),
          rows.parameters.size(),
          rounding_start(rows.name_key, step),
          rows.first_index};
}

// Calls `with` with the arrays of the run, in their element types.
template <typename With>
WEFT_INLINE void with_arrays(const UpdateRows& rows, std::int64_t step, With with) {
  const bool wide_states = rows.first_state.dtype() == DType::float32;
  if (rows.parameters.dtype() == DType::float32) {
    if (wide_states) return with(arrays_of<float, float>(rows, step));
    return with(arrays_of<float, bfloat16>(rows, step));
  }
  if (wide_states) return with(arrays_of<bfloat16, float>(rows, step));
  with(arrays_of<bfloat16, bfloat16>(rows, step));
}

WEFT_MULTIVERSION void add_norms(const UpdateRows& rows, std::int64_t step, const Common& common, double* sums) {
  with_arrays(
      rows, step, [&](const auto& arrays) __attribute__((always_inline)) { norm_loop(common, arrays, sums); });
}

WEFT_MULTIVERSION void update(const UpdateRows& rows, const GroupStep& step, const Common& common) {
  with_arrays(
      rows, step.step, [&](const auto& arrays) __attribute__((always_inline)) {
        switch (step.rule) {
          case UpdateRule::adamw:
            return update_loop<AdamwElement<HostMath>>(common, arrays);
          case UpdateRule::sgd:
            if (arrays.first_state == nullptr) return update_loop<SgdElement<HostMath>>(common, arrays);
            return update_loop<MomentumElement<HostMath>>(common, arrays);
          case UpdateRule::lion:
            return update_loop<LionElement<HostMath>>(common, arrays);
          case UpdateRule::lamb:
            return update_loop<LambElement<HostMath>>(common, arrays);
          case UpdateRule::muon:
            break;  // refused by check_rows()
        }
      });
}

class CpuUpdate final : public RowsUpdate {
 public:
  CpuUpdate(std::vector<UpdateRows> rows, std::vector<UpdateRule> rules) : rules_(std::move(rules)) {
    for (UpdateRows& run : rows) {
      if (run.gradients.empty()) continue;
      check_rows(run, rules_.at(static_cast<std::size_t>(run.group)));
      rows_.push_back(run);
    }
  }

  void norms(Stream&, std::span<const GroupStep> groups, ConstTensorView gradient_scale, TensorView sums) override {
    const std::span<double> all = sums.as<double>();
    std::ranges::fill(all, 0.0);
    const float scale = gradient_scale.as<float>()[0];
    for (const UpdateRows& run : rows_) {
      const GroupStep& step = groups[static_cast<std::size_t>(run.group)];
      if (needs_of(step.rule) != Needs::tensor_norms || !run.counted) continue;
      const std::span<double> own = all.subspan(static_cast<std::size_t>(2 * run.tensor), 2);
      add_norms(run, step.step, {update_factors(step), scale, 0.0f}, own.data());
    }
  }

  void run(Stream&, std::span<const GroupStep> groups, ConstTensorView gradient_scale, ConstTensorView sums) override {
    const float scale = gradient_scale.as<float>()[0];
    if (!std::isfinite(scale)) return;
    for (const UpdateRows& run : rows_) {
      const GroupStep& step = groups[static_cast<std::size_t>(run.group)];
      require(step.rule == rules_[static_cast<std::size_t>(run.group)], "a group keeps its rule");
      Common common{update_factors(step), scale, 0.0f};
      if (needs_of(step.rule) == Needs::tensor_norms) {
        const auto own = sums.as<double>().subspan(static_cast<std::size_t>(2 * run.tensor), 2);
        common.rate = lamb_rate(common.factors, own[0], own[1]);
      }
      update(run, step, common);
    }
  }

 private:
  std::vector<UpdateRows> rows_;
  std::vector<UpdateRule> rules_;
};

std::unique_ptr<RowsUpdate> make_update(Stream&, MemoryLedger&, std::vector<UpdateRows> rows,
                                        std::vector<UpdateRule> rules) {
  return std::make_unique<CpuUpdate>(std::move(rows), std::move(rules));
}

void clip_scale(Stream&, ConstTensorView sums, const UpdateLimits& limits, TensorView gradient_scale) {
  const std::span<const double> values = sums.as<double>();
  const double factor = limits.void_above.exceeded_by(values[0], values[1])
                            ? std::numeric_limits<double>::quiet_NaN()
                            : gradient_factor(values[0], limits.largest_norm, limits.inverse_loss_scale);
  gradient_scale.as<float>()[0] = static_cast<float>(factor);
}

}  // namespace

OptimizerKernels cpu_optimizer_kernels() {
  return {make_update, clip_scale, cpu_muon_kernels()};
}

}  // namespace weft
