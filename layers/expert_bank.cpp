#include "layers/expert_bank.h"

#include <algorithm>

#include "layers/kernels/multiply.h"
#include "layers/kernels/swiglu.h"
#include "layers/sequence_parallel.h"

namespace weft {
namespace {

// Computes the products of all experts that have rows. `append(products, e, rows_of)` adds those of expert e;
// rows_of(tensor) are its rows.
template <typename Append>
void for_each_expert(KernelContext& kernels, std::span<const std::int64_t> expert_rows, Append append) {
  std::vector<Product> products;
  std::int64_t first = 0;
  for (std::size_t e = 0; e < expert_rows.size(); ++e) {
    const std::int64_t count = expert_rows[e];
    const auto rows_of = [&](auto tensor) { return tensor.rows_from(first, count); };
    if (count > 0) append(products, e, rows_of);
    first += count;
  }
  multiply_all(kernels, products);
}

}  // namespace

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
  const std::int64_t count = rows.rows();
  const auto tensor = [&](std::int64_t columns) {
    return kernels.ledger.allocate(Bucket::moe_routing, setup_.expert_compute, count, columns, bound_rows());
  };
  kept.rows = std::move(rows);
  kept.gate_up = tensor(2 * width_);
  for_each_expert(kernels, expert_rows, [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
    products.push_back({rows_of(ConstTensorView(kept.rows)), Transpose::no, stacked_rows(weights.subspan(3 * e, 2)),
                        Transpose::yes, rows_of(kept.gate_up.view()), false});
  });
  kept.activated = tensor(width_);
  swiglu_forward(kernels, kept.gate_up, kept.activated);
  Tensor out = tensor(setup_.model.hidden_size);
  for_each_expert(kernels, expert_rows, [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
    products.push_back({rows_of(ConstTensorView(kept.activated)), Transpose::no, weights[3 * e + 2], Transpose::no,
                        rows_of(out.view()), false});
  });
  if (setup_.remake_cheap) kept.activated.reset();
  return out;
}

Tensor ExpertBank::backward_input(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows,
                                  Tensor dout, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  kept.dout = std::move(dout);
  const auto tensor = [&](std::int64_t columns) {
    return kernels.ledger.allocate(Bucket::moe_routing, setup_.expert_compute, kept.dout.rows(), columns, bound_rows());
  };
  Tensor dactivated = tensor(width_);
  for_each_expert(kernels, expert_rows, [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
    products.push_back({rows_of(ConstTensorView(kept.dout)), Transpose::no, weights[3 * e + 2], Transpose::yes,
                        rows_of(dactivated.view()), false});
  });
  if (setup_.remake_cheap && setup_.trains(Family::experts)) {
    kept.activated = tensor(width_);
    swiglu_forward(kernels, kept.gate_up, kept.activated);
  }
  // In place: the gradient overwrites gate_up.
  swiglu_backward(kernels, dactivated, kept.gate_up, kept.gate_up);
  kept.dgate_up = std::move(kept.gate_up);
  Tensor drows = tensor(setup_.model.hidden_size);
  for_each_expert(kernels, expert_rows, [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
    products.push_back({rows_of(ConstTensorView(kept.dgate_up)), Transpose::no, stacked_rows(weights.subspan(3 * e, 2)),
                        Transpose::no, rows_of(drows.view()), false});
  });
  if (!setup_.trains(Family::experts)) kept = {};
  return drows;
}

void ExpertBank::backward_weight(LayerContext& context, Gradients gradients, std::span<const std::int64_t> expert_rows,
                                 const Kept& kept) const {
  for_each_expert(context.kernels, expert_rows,
                  [&](std::vector<Product>& products, std::size_t e, const auto& rows_of) {
                    const auto add_product = [&](ConstTensorView a, ConstTensorView b, TensorView gradient) {
                      if (gradient.empty()) return;  // frozen
                      products.push_back({rows_of(a), Transpose::yes, rows_of(b), Transpose::no, gradient, true});
                    };
                    add_product(kept.dgate_up, kept.rows, stacked_rows(gradients.subspan(3 * e, 2)));
                    add_product(kept.activated, kept.dout, gradients[3 * e + 2]);
                  });
}

}  // namespace weft
