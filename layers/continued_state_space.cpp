#include "layers/generation.h"
#include "layers/kernels/multiply.h"
#include "layers/kernels/state_space.h"
#include "layers/pre_norm.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

using enum StateSpaceOrder::Index;

class ContinuedStateSpace final : public ForwardSegment {
 public:
  ContinuedStateSpace(const SegmentSetup& setup, const GenerationShape& shape, int block)
      : ForwardSegment(setup, {PartKind::state_space, block}),
        pass_(shape),
        norm_(setup, name(), Family::dense),
        shape_(state_space_shape(setup.model, setup.tensor, shape.tokens)) {
    parameters_ = state_space_parameters(setup, block);
    require(shape.rows() <= setup.microbatch_tokens, "a pass fits its microbatch");
  }

  // Without the cache, which exists all the time.
  std::int64_t activation_bytes() const override {
    const std::int64_t columns = shape_.columns() + shape_.channels() + 2 * shape_.inner();
    const std::int64_t sums = shape_.state_rows(pass_.rows()) * shape_.state_size + pass_.rows() * shape_.groups;
    return norm_.activation_bytes() + setup_.microbatch_tokens * columns * size_of(setup_.compute) +
           sums * size_of(DType::float32);
  }
  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    return {gather_traffic(setup_, When::forward, setup_.compute),
            scatter_traffic(setup_, When::forward, setup_.compute)};
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput&, Tensor x,
                 std::unique_ptr<Saved>&) override {
    KernelContext& kernels = context.kernels;
    require(context.generation != nullptr, "generation has a state");
    PreNorm::Kept norm;
    norm_.forward(context, weights[input_norm], std::move(x), norm);
    Tensor projected = activation(kernels, setup_.compute, setup_.microbatch_tokens, shape_.columns());
    {
      const GatheredTokens normed(context, norm.normed);
      multiply(kernels, setup_.format_of(Family::dense),
               {.a = normed.view(),
                .b = stacked_rows(weights.subspan(z_proj, step_proj - z_proj + 1)),
                .transpose_b = Transpose::yes,
                .c = projected});
    }
    Tensor out = activation(kernels, setup_.compute, setup_.microbatch_tokens, shape_.inner());
    // Padding follows the rows of the pass.
    const std::int64_t rows = pass_.rows(), padding = out.rows() - rows;
    if (padding > 0) fill(kernels.stream, out.view().rows_from(rows, padding), 0.0f);
    mix_on(context, weights, projected.view().rows_from(0, rows), out.view().rows_from(0, rows));
    return onto_residual(context, setup_.format_of(Family::dense), out, weights[out_proj], norm.x);
  }

 private:
  // From the projected tokens of the pass to `out`, from the caches and onto them. A text begins with caches of zero.
  void mix_on(LayerContext& context, Weights weights, ConstTensorView projected, TensorView out) const {
    KernelContext& kernels = context.kernels;
    std::vector<Tensor>& caches = context.generation->caches.at(block());
    const TensorView carried = caches.at(0).view().rows_from(0, pass_.sequences * shape_.inner());
    const TensorView history = caches.at(1).view().rows_from(0, pass_.sequences * (shape_.filter - 1));
    if (context.generation->position == 0) {
      for (const TensorView cache : {carried, history}) fill(kernels.stream, cache, 0.0f);
    }
    Tensor mixed = activation(kernels, setup_.compute, projected.rows(), shape_.channels());
    constexpr std::size_t convolved = c_filter - x_filter + 1;
    mix_tokens_forward(kernels, shape_, projected, stacked_rows(weights.subspan(x_filter, convolved)),
                       stacked_rows(weights.subspan(x_bias, convolved)), {}, history, mixed);
    Tensor states = activation(kernels, DType::float32, shape_.state_rows(projected.rows()), shape_.state_size);
    Tensor y = activation(kernels, setup_.compute, projected.rows(), shape_.inner());
    scan_tokens_forward(kernels, shape_, mixed, projected, {weights[a_log], weights[d_skip], weights[step_bias]}, {},
                        carried, states, y);
    Tensor inverse_rms = activation(kernels, DType::float32, projected.rows(), shape_.groups);
    gated_norm_forward(kernels, shape_, y, projected, weights[gated_norm],
                       static_cast<float>(setup_.model.rms_norm_eps), out, inverse_rms);
  }
  static Tensor activation(KernelContext& kernels, DType dtype, std::int64_t rows, std::int64_t columns) {
    return kernels.ledger.allocate(Bucket::activations, dtype, rows, columns);
  }

  GenerationShape pass_;
  PreNorm norm_;
  StateSpaceShape shape_;
};

}  // namespace

std::unique_ptr<Segment> make_continued_state_space(const SegmentSetup& setup, const GenerationShape& shape,
                                                    int block) {
  return std::make_unique<ContinuedStateSpace>(setup, shape, block);
}

}  // namespace weft
