#include "layers/kernels/dry_kernels.h"

#include "layers/kernels/cpu/kernels.h"
#include "layers/kernels/product_workspace.h"

namespace weft {
namespace {

// As any function, whatever it takes.
struct Nothing {
  template <typename... Arguments>
  using Function = void (*)(Arguments...);
  template <typename... Arguments>
  constexpr operator Function<Arguments...>() const {  // NOLINT(google-explicit-constructor)
    return [](Arguments...) {};
  }
  template <typename... Arguments>
  void operator()(Arguments&&...) const {}
};
constexpr Nothing nothing;

class DryProducts final : public MatrixProducts {
 public:
  explicit DryProducts(Tensor workspace) : workspace_(std::move(workspace)) {}
  void multiply(ConstTensorView, Transpose, ConstTensorView, Transpose, TensorView, bool) override {}
  void multiply_onto(Stream&, const Product&) override {}
  void multiply_all(std::span<const Product>) override {}

 private:
  Tensor workspace_;
};

AttentionKernels attention_of_cpu() {
  const auto description = [](const HeadShape&, QueryRuns, DType) { return std::string("not at all, in a dry run"); };
  return {[](KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView q, ConstTensorView,
             TensorView, TensorView) { cpu::take_attention_forward_workspace(context, heads, runs, q.dtype()); },
          [](KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView, ConstTensorView q,
             ConstTensorView, ConstTensorView, ConstTensorView, TensorView,
             TensorView) { cpu::take_attention_backward_workspace(context, heads, runs, q.dtype()); },
          nothing, description};
}

}  // namespace

LayerKernels dry_layer_kernels(DryWorkspace workspace) {
  LayerKernels kernels = {
      .attention = attention_of_cpu(),
      .cross_entropy = {nothing, nothing, nothing},
      .embedding = {nothing, nothing},
      .load_balance = {nothing, nothing, nothing, nothing},
      .permutation = {[](KernelContext& context, ConstTensorView, TensorView counts, TensorView) {
                        static_cast<void>(cpu::sort_workspace(context, counts.size()));
                      },
                      nothing, nothing, nothing, nothing, nothing},
      .rms_norm = {nothing, nothing, nothing},
      .rotary = {nothing, nothing},
      .routing = {nothing, nothing},
      .swiglu = {nothing, nothing},
  };
  if (workspace == DryWorkspace::of_cuda) {
    kernels.attention.forward = nothing;
    kernels.attention.backward = nothing;
    kernels.permutation.sort_by_expert = nothing;
  }
  return kernels;
}

std::unique_ptr<MatrixProducts> make_dry_matrix_products(DryWorkspace workspace, MemoryLedger& ledger) {
  if (workspace == DryWorkspace::of_cpu) return std::make_unique<DryProducts>(Tensor());
  return std::make_unique<DryProducts>(
      ledger.allocate(Bucket::workspace, DType::int32, product_workspace_bytes / 4, 1 + product_side_streams));
}

}  // namespace weft
