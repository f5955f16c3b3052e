#include "layers/expert_bank.h"

#include <algorithm>

#include "layers/kernels/multiply.h"
#include "layers/kernels/swiglu.h"
#include "layers/sequence_parallel.h"

namespace weft {

// Elements of all factors of an expert's products: for each row, and of weights.
struct ExpertBank::Columns {
  std::int64_t of_rows = 0, of_weights = 0;
};

// `append(products, e, rows_of)` adds the products of expert e, which has rows; rows_of(tensor) are its rows.
template <typename Append>
void ExpertBank::multiply(LayerContext& context, std::span<const std::int64_t> expert_rows, const Columns& columns,
                          Append append) const {
  std::vector<Product> products;
  std::int64_t first = 0;
  for (std::size_t e = 0; e < expert_rows.size(); ++e) {
    const std::int64_t count = expert_rows[e];
    const auto rows_of = [&](auto tensor) { return tensor.rows_from(first, count); };
    if (count > 0) append(products, e, rows_of);
    first += count;
  }
  // Rows in 8 bits are padded by fewer than 16 for each expert.
  const auto bytes_of = [&](std::int64_t rows) {
    return (rows + experts_ * float8_inner_multiple) * columns.of_rows + experts_ * columns.of_weights;
  };
  multiply_all(context.kernels, setup_.format_of(Family::experts), products,
               {.bucket = Bucket::moe_routing,
                .bytes = bytes_of(first),
                .most_bytes = bytes_of(bound_rows()),
                .products = 2 * experts_});
}

ExpertBank::ExpertBank(const SegmentSetup& setup, const std::string& name)
    : setup_(setup),
      name_(name),
      experts_(setup.model.moe.num_experts / setup.expert),
      width_(setup.model.moe.moe_intermediate_size / setup.expert_tensor) {}

std::int64_t ExpertBank::bound_rows() const {
  return setup_.expert * setup_.expert_tensor * setup_.slice_tokens() *
         std::min(setup_.model.moe.num_experts_per_tok, experts_);
}

std::int64_t ExpertBank::bytes_per_row() const {
  return (setup_.model.hidden_size + (setup_.remake_cheap ? 2 : 3) * width_) * size_of(setup_.expert_compute);
}

std::int64_t ExpertBank::pending_bytes_per_row() const {
  // rows, dout, activated, and dgate_up in the storage of gate_up.
  if (!setup_.trains(Family::experts)) return 0;
  return (2 * setup_.model.hidden_size + 3 * width_) * size_of(setup_.expert_compute);
}

std::vector<ParameterSpec> ExpertBank::parameters() const {
  std::vector<ParameterSpec> parameters;
  for (std::int64_t e = 0; e < experts_; ++e) {
    for (const char* which : {"gate_proj", "up_proj", "down_proj"}) {
      ParameterSpec spec =
          whole_parameter(fmt::format("{}.{}.{}.weight", name_, setup_.expert_rank * experts_ + e, which),
                          Family::experts, setup_.model.moe.moe_intermediate_size, setup_.model.hidden_size,
                          Initializer::normal, setup_.model.initializer_range);
      spec.rows = width_;
      spec.row_begin = width_ * setup_.expert_tensor_rank;
      spec.transposed = std::string_view(which) == "down_proj";
      parameters.push_back(spec);
    }
  }
  return parameters;
}

Tensor ExpertBank::forward(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows,
                           Tensor rows, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const std::int64_t hidden = setup_.model.hidden_size;
  const std::int64_t count = rows.rows();
  const auto tensor = [&](std::int64_t columns) {
    return kernels.ledger.allocate(Bucket::moe_routing, setup_.expert_compute, count, columns, bound_rows());
  };
  kept.rows = std::move(rows);
  kept.gate_up = tensor(2 * width_);
  multiply(context, expert_rows, {hidden, 2 * width_ * hidden},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
             products.push_back({.a = rows_of(ConstTensorView(kept.rows)),
                                 .b = stacked_rows(weights.subspan(3 * e, 2)),
                                 .transpose_b = Transpose::yes,
                                 .c = rows_of(kept.gate_up.view())});
           });
  kept.activated = tensor(width_);
  swiglu_forward(kernels, kept.gate_up, kept.activated);
  Tensor out = tensor(hidden);
  multiply(context, expert_rows, {width_, width_ * hidden},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
             products.push_back(
                 {.a = rows_of(ConstTensorView(kept.activated)), .b = weights[3 * e + 2], .c = rows_of(out.view())});
           });
  if (setup_.remake_cheap) kept.activated.reset();
  return out;
}

Tensor ExpertBank::backward_input(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows,
                                  Tensor dout, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const std::int64_t hidden = setup_.model.hidden_size;
  kept.dout = std::move(dout);
  const auto tensor = [&](std::int64_t columns) {
    return kernels.ledger.allocate(Bucket::moe_routing, setup_.expert_compute, kept.dout.rows(), columns, bound_rows());
  };
  Tensor dactivated = tensor(width_);
  multiply(context, expert_rows, {hidden, width_ * hidden},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
             products.push_back({.a = rows_of(ConstTensorView(kept.dout)),
                                 .b = weights[3 * e + 2],
                                 .transpose_b = Transpose::yes,
                                 .c = rows_of(dactivated.view()),
                                 .gradient = GradientFactor::a});
           });
  if (setup_.remake_cheap && setup_.trains(Family::experts)) {
    kept.activated = tensor(width_);
    swiglu_forward(kernels, kept.gate_up, kept.activated);
  }
  // In place: the gradient overwrites gate_up.
  swiglu_backward(kernels, dactivated, kept.gate_up, kept.gate_up);
  kept.dgate_up = std::move(kept.gate_up);
  Tensor drows = tensor(hidden);
  multiply(context, expert_rows, {2 * width_, 2 * width_ * hidden},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
             products.push_back({.a = rows_of(ConstTensorView(kept.dgate_up)),
                                 .b = stacked_rows(weights.subspan(3 * e, 2)),
                                 .c = rows_of(drows.view()),
                                 .gradient = GradientFactor::a});
           });
  if (!setup_.trains(Family::experts)) kept = {};
  return drows;
}

void ExpertBank::backward_weight(LayerContext& context, Gradients gradients, std::span<const std::int64_t> expert_rows,
                                 const Kept& kept) const {
  const std::int64_t hidden = setup_.model.hidden_size;
  multiply(context, expert_rows, {2 * hidden + 3 * width_, 0},
           [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
             const auto add_product = [&](ConstTensorView a, ConstTensorView b, TensorView gradient,
                                          GradientFactor which) {
               if (gradient.empty()) return;  // frozen
               products.push_back({rows_of(a), Transpose::yes, rows_of(b), Transpose::no, gradient, true, {}, which});
             };
             add_product(kept.dgate_up, kept.rows, stacked_rows(gradients.subspan(3 * e, 2)), GradientFactor::a);
             add_product(kept.activated, kept.dout, gradients[3 * e + 2], GradientFactor::b);
           });
}

}  // namespace weft
