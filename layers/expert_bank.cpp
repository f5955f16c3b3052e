#include "layers/expert_bank.h"

#include <algorithm>

#include "layers/kernels/multiply.h"
#include "layers/kernels/routing.h"
#include "layers/kernels/token_kernels.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {

struct ExpertBank::Runs {
  std::vector<std::int64_t> rows, first, padded_rows, padded_first;
  std::int64_t received = 0, padded = 0;

  // The rows of a padded tensor that experts have; it may have more.
  TensorView in_use(Tensor& tensor) const { return tensor.view().rows_from(0, padded); }
};

// The factors of an expert's products. A factor with a row for each of the expert's rows is straight or transposed, and
// is known by its columns. The weight has a shape.
struct ExpertBank::Factors {
  std::vector<std::int64_t> straight = {}, transposed = {};
  std::int64_t weight_rows = 0, weight_columns = 0;
};

std::int64_t ExpertBank::row_multiple() const {
  return setup_.format_of(Family::experts) == ProductFormat::float8_blocks ? float8_row_multiple : 1;
}

std::int64_t ExpertBank::padding_rows() const {
  return (row_multiple() - 1) * experts_;
}

ExpertBank::Runs ExpertBank::runs_of(std::span<const std::int64_t> expert_rows) const {
  Runs runs;
  runs.rows.assign(expert_rows.begin(), expert_rows.end());
  const std::int64_t unit = row_multiple();
  for (const std::int64_t rows : expert_rows) {
    runs.first.push_back(runs.received);
    runs.padded_first.push_back(runs.padded);
    runs.padded_rows.push_back((rows + unit - 1) / unit * unit);
    runs.received += rows;
    runs.padded += runs.padded_rows.back();
  }
  return runs;
}

std::int64_t ExpertBank::float8_bytes_of(std::int64_t rows, const Factors& factors) const {
  const ProductFormat format = setup_.format_of(Family::experts);
  if (format == ProductFormat::as_stored) return 0;
  const bool in_blocks = format == ProductFormat::float8_blocks;
  const auto each = [&](ScaledBlock block) { return in_blocks ? block : ScaledBlock::all; };
  const std::int64_t weight = factors.weight_rows * factors.weight_columns;
  std::int64_t bytes =
      weight == 0 ? 0 : experts_ * float8_bytes(each(ScaledBlock::square), factors.weight_rows, factors.weight_columns);
  // Each expert has fewer than 16 rows of padding, begins a block of its own, and aligns factor and scales.
  const std::int64_t padded = rows + experts_ * float8_inner_multiple, aligned = 2 * 16 * experts_;
  for (const std::int64_t columns : factors.straight) {
    bytes += float8_bytes(each(ScaledBlock::row), padded, columns) + aligned;
  }
  const std::int64_t blocks = in_blocks ? rows / scaled_block_size + experts_ : 0;
  for (const std::int64_t columns : factors.transposed) {
    bytes += columns * (padded + blocks * size_of(DType::float32)) + aligned;
  }
  return bytes;
}

// `append(products, e, rows_of, padded_rows_of)` adds the products of expert e, which has rows: rows_of(tensor) are
// its rows of a tensor [received, ...], padded_rows_of(tensor) of one [padded, ...].
template <typename Append>
void ExpertBank::multiply(LayerContext& context, const Runs& runs, const Factors& factors, Append append) const {
  std::vector<Product> products;
  for (std::size_t e = 0; e < runs.rows.size(); ++e) {
    const auto rows_of = [&](auto tensor) { return tensor.rows_from(runs.first[e], runs.rows[e]); };
    const auto padded_rows_of = [&](auto tensor) {
      return tensor.rows_from(runs.padded_first[e], runs.padded_rows[e]);
    };
    if (runs.rows[e] > 0) append(products, e, rows_of, padded_rows_of);
  }
  multiply_all(context.kernels, setup_.format_of(Family::experts), products,
               {.bucket = Bucket::moe_routing,
                .bytes = float8_bytes_of(runs.received, factors),
                .most_bytes = float8_bytes_of(bound_rows(), factors)});
}

Tensor ExpertBank::padded_rows(LayerContext& context, const Runs& runs, DType dtype, std::int64_t columns) const {
  return context.kernels.routing(dtype, runs.received + padding_rows(), columns, bound_rows() + padding_rows());
}

ConstTensorView ExpertBank::weights_in_use(const Runs& runs, const Kept& kept) const {
  return kept.row_weights.allocated() ? kept.row_weights.view().rows_from(0, runs.padded) : ConstTensorView();
}

std::int64_t ExpertBank::row_weight_bytes(std::int64_t rows) const {
  return setup_.weights_at_experts ? (rows + padding_rows()) * size_of(DType::float32) : 0;
}

void ExpertBank::take_weights(LayerContext& context, std::span<const std::int64_t> expert_rows, Tensor row_weights,
                              Kept& kept) const {
  if (row_multiple() == 1) {
    kept.row_weights = std::move(row_weights);
    return;
  }
  const Runs runs = runs_of(expert_rows);
  kept.row_weights = padded_rows(context, runs, DType::float32, 1);
  fill(context.kernels.stream, kept.row_weights, 0.0f);
  move_blocks(context.kernels, row_weights, runs.first, runs.padded_first, runs.rows, kept.row_weights);
}

Tensor ExpertBank::compact(LayerContext& context, const Runs& runs, Tensor padded) const {
  if (row_multiple() == 1) return padded;
  Tensor rows = context.kernels.routing(padded.dtype(), runs.received, padded.columns(), bound_rows());
  move_blocks(context.kernels, padded, runs.padded_first, runs.first, runs.rows, rows);
  return rows;
}

ExpertBank::ExpertBank(const SegmentSetup& setup, const std::string& name, std::int64_t width)
    : setup_(setup),
      name_(name),
      experts_(setup.model.moe.num_experts / setup.expert),
      width_(width / setup.expert_tensor) {}

std::int64_t ExpertBank::capacity_rows() const {
  return setup_.model.moe.capacity_rows(setup_.slice_tokens(), setup_.sequences(), setup_.sequence_length);
}

std::int64_t ExpertBank::bound_rows() const {
  const MoeConfig& moe = setup_.model.moe;
  std::int64_t of_rank = setup_.slice_tokens() * std::min(moe.choices(), experts_);
  if (moe.pads()) {
    of_rank = experts_ * capacity_rows();
  } else if (moe.drops()) {
    of_rank = std::min(of_rank, experts_ * capacity_rows());
  }
  return setup_.expert * setup_.expert_tensor * of_rank;
}

std::int64_t ExpertBank::even_rows() const {
  const MoeConfig& moe = setup_.model.moe;
  if (moe.pads()) return bound_rows();
  const std::int64_t choices = setup_.slice_tokens() * moe.num_experts_per_tok;
  std::int64_t of_rank = experts_ * choices / moe.num_experts;
  if (moe.drops()) of_rank = experts_ * std::min(capacity_rows(), choices / moe.num_experts);
  return setup_.expert * setup_.expert_tensor * of_rank;
}

std::int64_t ExpertBank::activation_bytes(std::int64_t rows) const {
  const std::int64_t widths = setup_.recompute_experts ? 0 : setup_.recompute_cheap ? 2 : 3;
  const std::int64_t columns = rows * setup_.model.hidden_size + (rows + padding_rows()) * widths * width_;
  return columns * size_of(setup_.expert_compute) + row_weight_bytes(rows);
}

std::int64_t ExpertBank::pending_bytes(std::int64_t rows) const {
  // rows, dout, activated, and dgate_up in the storage of gate_up.
  if (!setup_.trains(Family::experts)) return 0;
  const std::int64_t columns = 2 * rows * setup_.model.hidden_size + (rows + padding_rows()) * 3 * width_;
  return columns * size_of(setup_.expert_compute);
}

std::vector<ParameterSpec> ExpertBank::parameters() const {
  std::vector<ParameterSpec> parameters;
  for (std::int64_t e = 0; e < experts_; ++e) {
    for (const char* which : {"gate_proj", "up_proj", "down_proj"}) {
      ParameterSpec spec = whole_parameter(
          fmt::format("{}.{}.{}.weight", name_, setup_.expert_rank * experts_ + e, which), Family::experts,
          width_ * setup_.expert_tensor, setup_.model.hidden_size, Initializer::normal, setup_.model.initializer_range);
      spec.rows = width_;
      spec.row_begin = width_ * setup_.expert_tensor_rank;
      spec.transposed = std::string_view(which) == "down_proj";
      spec.stacked = std::string_view(which) == "up_proj";
      parameters.push_back(spec);
    }
  }
  return parameters;
}

void ExpertBank::activate(LayerContext& context, Weights weights, const Runs& runs, bool only_gate_up,
                          Kept& kept) const {
  const std::int64_t hidden = setup_.model.hidden_size;
  kept.gate_up = padded_rows(context, runs, 2 * width_);
  multiply(context, runs, {.straight = {hidden}, .weight_rows = 2 * width_, .weight_columns = hidden},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of, const auto& padded_rows_of) {
             products.push_back({.a = rows_of(ConstTensorView(kept.rows)),
                                 .b = stacked_rows(weights.subspan(3 * e, 2)),
                                 .transpose_b = Transpose::yes,
                                 .c = padded_rows_of(kept.gate_up.view())});
           });
  if (only_gate_up) return;
  kept.activated = padded_rows(context, runs, width_);
  swiglu_forward(context.kernels, runs.in_use(kept.gate_up), weights_in_use(runs, kept), runs.in_use(kept.activated));
}

void ExpertBank::recompute(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows,
                           Kept& kept) const {
  activate(context, weights, runs_of(expert_rows), /*only_gate_up=*/false, kept);
}

Tensor ExpertBank::forward(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows,
                           Tensor rows, Kept& kept) const {
  const std::int64_t hidden = setup_.model.hidden_size;
  const Runs runs = runs_of(expert_rows);
  kept.rows = std::move(rows);
  activate(context, weights, runs, /*only_gate_up=*/false, kept);
  Tensor out = padded_rows(context, runs, hidden);
  multiply(context, runs, {.straight = {width_}, .weight_rows = hidden, .weight_columns = width_},
           [&](std::vector<Product>& products, std::size_t e, const auto&, const auto& padded_rows_of) {
             products.push_back({.a = padded_rows_of(ConstTensorView(kept.activated)),
                                 .b = weights[3 * e + 2],
                                 .c = padded_rows_of(out.view())});
           });
  if (setup_.recompute_cheap || setup_.recompute_experts) kept.activated.reset();
  if (setup_.recompute_experts) kept.gate_up.reset();
  return compact(context, runs, std::move(out));
}

ExpertBank::InputGradient ExpertBank::backward_input(LayerContext& context, Weights weights,
                                                     std::span<const std::int64_t> expert_rows, Tensor dout,
                                                     Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const std::int64_t hidden = setup_.model.hidden_size;
  const Runs runs = runs_of(expert_rows);
  kept.dout = std::move(dout);
  if (setup_.recompute_experts) activate(context, weights, runs, !setup_.trains(Family::experts), kept);
  const auto padded_tensor = [&](std::int64_t columns) { return padded_rows(context, runs, columns); };
  Tensor dactivated = padded_tensor(width_);
  multiply(context, runs, {.straight = {hidden}, .weight_rows = width_, .weight_columns = hidden},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of, const auto& padded_rows_of) {
             products.push_back({.a = rows_of(ConstTensorView(kept.dout)),
                                 .b = weights[3 * e + 2],
                                 .transpose_b = Transpose::yes,
                                 .c = padded_rows_of(dactivated.view()),
                                 .gradient = GradientFactor::a});
           });
  if (setup_.recompute_cheap && setup_.trains(Family::experts)) {
    kept.activated = padded_tensor(width_);
    swiglu_forward(kernels, runs.in_use(kept.gate_up), weights_in_use(runs, kept), runs.in_use(kept.activated));
  }
  // In place: the gradient overwrites gate_up.
  const TensorView gate_up = runs.in_use(kept.gate_up);
  Tensor drow_weights;
  if (kept.row_weights.allocated()) drow_weights = padded_rows(context, runs, DType::float32, 1);
  const TensorView dweights_in_use = drow_weights.allocated() ? runs.in_use(drow_weights) : TensorView();
  swiglu_backward(kernels, runs.in_use(dactivated), gate_up, weights_in_use(runs, kept), gate_up, dweights_in_use);
  kept.row_weights.reset();
  kept.dgate_up = std::move(kept.gate_up);
  Tensor drows = padded_tensor(hidden);
  multiply(context, runs, {.straight = {2 * width_}, .weight_rows = hidden, .weight_columns = 2 * width_},
           [&](std::vector<Product>& products, std::size_t e, const auto&, const auto& padded_rows_of) {
             products.push_back({.a = padded_rows_of(ConstTensorView(kept.dgate_up)),
                                 .b = stacked_rows(weights.subspan(3 * e, 2)),
                                 .c = padded_rows_of(drows.view()),
                                 .gradient = GradientFactor::a});
           });
  if (!setup_.trains(Family::experts)) kept = {};
  if (drow_weights.allocated()) drow_weights = compact(context, runs, std::move(drow_weights));
  return {compact(context, runs, std::move(drows)), std::move(drow_weights)};
}

void ExpertBank::backward_weight(LayerContext& context, Gradients gradients, std::span<const std::int64_t> expert_rows,
                                 const Kept& kept) const {
  const std::int64_t hidden = setup_.model.hidden_size;
  const Runs runs = runs_of(expert_rows);
  // No product is made for an expert without rows.
  for (std::size_t e = 0; e < runs.rows.size(); ++e) {
    if (runs.rows[e] > 0) continue;
    cleared(context.kernels.stream, stacked_rows(gradients.subspan(3 * e, 2)));
    cleared(context.kernels.stream, gradients[3 * e + 2]);
  }
  multiply(context, runs, {.transposed = {2 * width_, hidden, width_, hidden}},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of, const auto& padded_rows_of) {
             const auto add_product = [&](ConstTensorView padded, ConstTensorView arrived, const Gradient& gradient,
                                          GradientFactor which) {
               if (gradient.empty()) return;  // frozen
               products.push_back({padded_rows_of(padded),
                                   Transpose::yes,
                                   rows_of(arrived),
                                   Transpose::no,
                                   gradient.view,
                                   !gradient.fresh,
                                   {},
                                   which});
             };
             add_product(kept.dgate_up, kept.rows, stacked_rows(gradients.subspan(3 * e, 2)), GradientFactor::a);
             add_product(kept.activated, kept.dout, gradients[3 * e + 2], GradientFactor::b);
           });
}

}  // namespace weft
