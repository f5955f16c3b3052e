#include "layers/mixer.h"

#include "layers/kernels/multiply.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {

ConstTensorView MixerProducts::projection(Weights weights) const {
  return stacked_rows(weights.subspan(1, projections));
}

Tensor MixerProducts::project(LayerContext& context, Weights weights, Tensor x, PreNorm::Kept& kept) const {
  norm.forward(context, weights[0], std::move(x), kept);
  const ConstTensorView projection = this->projection(weights);
  Tensor projected = activation(context.kernels, projection.rows());
  const GatheredTokens normed(context, kept.normed);
  multiply(context.kernels, setup.format_of(Family::dense),
           {.a = normed.view(), .b = projection, .transpose_b = Transpose::yes, .c = projected});
  return projected;
}

Tensor MixerProducts::activation(KernelContext& kernels, std::int64_t columns) const {
  return kernels.activation(setup.compute, setup.microbatch_tokens, columns);
}

std::int64_t MixerProducts::bytes(std::int64_t columns) const {
  return setup.microbatch_tokens * columns * size_of(setup.compute);
}

MixerSegment::MixerSegment(const SegmentSetup& setup, ModelPart part, std::vector<ParameterSpec> parameters,
                           std::size_t projections)
    : Segment(setup, part), products_{setup_, PreNorm(setup, name(), Family::dense), projections} {
  parameters_ = std::move(parameters);
}

std::int64_t MixerSegment::pending_bytes() const {
  if (!setup_.trains(Family::dense)) return 0;
  // dprojected, out and dy; gradients of vectors.
  std::int64_t columns = setup_.model.hidden_size, vectors = 0;
  for (std::size_t i = 1; i < parameters_.size(); ++i) {
    (i <= products_.out_proj() ? columns : vectors) += parameters_[i].rows;
  }
  return products_.norm.pending_bytes(true) + products_.bytes(columns) + vectors * size_of(DType::float32);
}

std::vector<SegmentTraffic> MixerSegment::traffic() const {
  using When = SegmentTraffic::When;
  std::vector<SegmentTraffic> traffic;
  if (setup_.context > 1) traffic = context_traffic();
  for (const When when : {When::forward, When::backward_input}) {
    traffic.push_back(gather_traffic(setup_, when, setup_.compute));
    traffic.push_back(scatter_traffic(setup_, when, setup_.compute));
  }
  traffic.push_back(weight_gather_traffic(setup_, Family::dense, setup_.compute));
  return traffic;
}

Tensor MixerSegment::forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                             std::unique_ptr<Saved>& saved) {
  std::unique_ptr<SavedMixer> kept = new_saved();
  kept->document_begins = input.document_begins;
  kept->projected = products_.project(context, weights, std::move(x), kept->norm);
  products_.norm.end_forward(kept->norm);
  mix(context, weights, *kept);
  Tensor y =
      onto_residual(context, setup_.format_of(Family::dense), kept->out, weights[products_.out_proj()], kept->norm.x);
  end_forward(*kept);
  saved = std::move(kept);
  return y;
}

Tensor MixerSegment::backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) {
  auto& kept = static_cast<SavedMixer&>(saved);
  KernelContext& kernels = context.kernels;
  const ProductFormat format = setup_.format_of(Family::dense);
  const ConstTensorView out_proj = weights[products_.out_proj()];
  kept.dy = gather_gradient(context, dy);
  Tensor dout = products_.activation(kernels, out_proj.rows());
  multiply(kernels, format,
           {.a = kept.dy, .b = out_proj, .transpose_b = Transpose::yes, .c = dout, .gradient = GradientFactor::a});
  unmix(context, weights, std::move(dout), kept);

  Tensor partial = products_.activation(kernels, setup_.model.hidden_size);
  multiply(kernels, format,
           {.a = kept.dprojected, .b = products_.projection(weights), .c = partial, .gradient = GradientFactor::a});
  const bool trains = setup_.trains(Family::dense);
  if (!trains) {
    for (Tensor* tensor : {&kept.norm.normed, &kept.out, &kept.dprojected}) tensor->reset();
    kept.dvectors.clear();
  }
  Tensor dnormed = scatter_tokens(context, std::move(partial));
  auto [residual, dx] = residual_gradient(std::move(dy), kept.dy, trains);
  return products_.norm.backward_input(context, weights[0], std::move(dnormed), residual, std::move(dx), trains,
                                       kept.norm);
}

void MixerSegment::backward_weight(LayerContext& context, Gradients gradients, Saved& saved) {
  auto& kept = static_cast<SavedMixer&>(saved);
  KernelContext& kernels = context.kernels;
  require_frozen(setup_, parameters_, gradients);
  if (!setup_.trains(Family::dense)) return;
  const ProductFormat format = setup_.format_of(Family::dense);
  {
    const GatheredTokens normed(context, kept.norm.normed);
    add_weight_gradient(kernels, format, GradientFactor::a, kept.dprojected, normed.view(),
                        stacked_rows(gradients.subspan(1, products_.projections)));
  }
  std::size_t next = products_.out_proj();
  add_weight_gradient(kernels, format, GradientFactor::b, kept.out, kept.dy, gradients[next++]);
  products_.norm.backward_weight(context, gradients[0], kept.norm);
  for (const Tensor& own : kept.dvectors) {
    const std::size_t first = next;
    for (std::int64_t rows = 0; rows < own.rows(); rows += parameters_.at(next++).rows) continue;
    const Gradient gradient = stacked_rows(gradients.subspan(first, next - first));
    if (!gradient.empty()) add(kernels.stream, own, gradient);
  }
}

ContinuedMixer::ContinuedMixer(const SegmentSetup& setup, const GenerationShape& pass, ModelPart part,
                               std::vector<ParameterSpec> parameters, std::size_t projections)
    : ForwardSegment(setup, part), pass_(pass), products_{setup_, PreNorm(setup, name(), Family::dense), projections} {
  parameters_ = std::move(parameters);
  require(pass.rows() <= setup.microbatch_tokens, "a pass fits its microbatch");
}

std::int64_t ContinuedMixer::activation_bytes() const {
  std::int64_t columns = 0;
  for (std::size_t i = 1; i <= products_.out_proj(); ++i) columns += parameters_[i].rows;
  return products_.norm.activation_bytes() + products_.bytes(columns) + mixing_bytes();
}

std::vector<SegmentTraffic> ContinuedMixer::traffic() const {
  using When = SegmentTraffic::When;
  return {gather_traffic(setup_, When::forward, setup_.compute),
          scatter_traffic(setup_, When::forward, setup_.compute)};
}

Tensor ContinuedMixer::forward(LayerContext& context, Weights weights, const MicrobatchInput&, Tensor x,
                               std::unique_ptr<Saved>&) {
  require(context.generation != nullptr, "generation has a state");
  PreNorm::Kept norm;
  Tensor projected = products_.project(context, weights, std::move(x), norm);
  const ConstTensorView out_proj = weights[products_.out_proj()];
  Tensor out = products_.activation(context.kernels, out_proj.rows());
  // Padding follows the rows of the pass.
  const std::int64_t rows = pass_.rows(), padding = out.rows() - rows;
  if (padding > 0) fill(context.kernels.stream, out.view().rows_from(rows, padding), 0.0f);
  mix(context, weights, projected.view().rows_from(0, rows), out.view().rows_from(0, rows));
  return onto_residual(context, setup_.format_of(Family::dense), out, out_proj, norm.x);
}

}  // namespace weft
