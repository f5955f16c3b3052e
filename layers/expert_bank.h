// The routed experts of a rank, or its part of their width: one SwiGLU per expert. Grouped matrix products run over
// runs of rows of any length. An expert without rows costs no product; its gradient is zero.
#pragma once

#include "layers/segment.h"

namespace weft {

class ExpertBank {
 public:
  // `name` is put before "5.gate_proj.weight", 5 being the expert's index in the whole layer. `width` is that of whole
  // experts.
  ExpertBank(const SegmentSetup& setup, const std::string& name, std::int64_t width);

  // [received, hidden], [padded, 2 * width] and [padded, width] (swiglu_mlp.h). The rows of each expert in `padded` are
  // a multiple of what its products take (float8_row_multiple); those that it does not have are zero.
  struct Kept {
    Tensor rows, gate_up, activated;  // of these `rows` alone with SegmentSetup::recompute_experts
    Tensor row_weights;               // [padded, 1] float32 with SegmentSetup::weights_at_experts
    Tensor dgate_up, dout;            // from input gradient to weight gradient: [padded, 2 * width], [received, hidden]
  };

  std::int64_t experts() const { return experts_; }  // on this rank
  // Most rows that an expert takes of one rank's tokens, where it has a capacity.
  std::int64_t capacity_rows() const;
  // Upper bound on arriving rows. Every token of the expert and expert-tensor groups chooses as many of this rank's
  // experts as it can. An expert takes no more than its capacity.
  std::int64_t bound_rows() const;
  // gate_proj, up_proj and down_proj of the first expert, then of the next.
  std::vector<ParameterSpec> parameters() const;
  // Rows that arrive with evenly routed tokens, at least.
  std::int64_t even_rows() const;
  // Bytes of so many arriving rows, kept from forward to input gradient, and from input gradient to weight gradient.
  std::int64_t activation_bytes(std::int64_t rows) const;
  std::int64_t pending_bytes(std::int64_t rows) const;
  std::int64_t row_weight_bytes(std::int64_t rows) const;

  // Sets kept.row_weights from [received, 1], the weights of the rows that the next forward takes.
  void take_weights(LayerContext& context, std::span<const std::int64_t> expert_rows, Tensor row_weights,
                    Kept& kept) const;
  // `rows` is sorted by expert, expert_rows[e] rows for expert e. All tensors have the dtype of experts. Returns
  // [received, hidden].
  Tensor forward(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows, Tensor rows,
                 Kept& kept) const;
  // The tensors that a forward keeps, from kept.rows and row_weights alone.
  void recompute(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows, Kept& kept) const;
  struct InputGradient {
    Tensor rows;         // [received, hidden]
    Tensor row_weights;  // [received, 1] float32, if rows have weights
  };
  InputGradient backward_input(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows,
                               Tensor dout, Kept& kept) const;
  void backward_weight(LayerContext& context, Gradients gradients, std::span<const std::int64_t> expert_rows,
                       const Kept& kept) const;

 private:
  struct Runs;
  struct Factors;
  // Experts' runs of rows, as they arrive and padded.
  Runs runs_of(std::span<const std::int64_t> expert_rows) const;
  std::int64_t row_multiple() const;
  // Room for the padding of all experts, however rows are routed: memory depends on the number of rows only.
  std::int64_t padding_rows() const;
  Tensor padded_rows(LayerContext& context, const Runs& runs, DType dtype, std::int64_t columns) const;
  Tensor padded_rows(LayerContext& context, const Runs& runs, std::int64_t columns) const {
    return padded_rows(context, runs, setup_.expert_compute, columns);
  }
  // The part of row weights that belongs to rows in use; empty without weights.
  ConstTensorView weights_in_use(const Runs& runs, const Kept& kept) const;
  // Most bytes of the factors in 8 bits of all experts, which have so many rows.
  std::int64_t float8_bytes_of(std::int64_t rows, const Factors& factors) const;
  // kept.gate_up, and without `only_gate_up` kept.activated, from kept.rows.
  void activate(LayerContext& context, Weights weights, const Runs& runs, bool only_gate_up, Kept& kept) const;
  template <typename Append>
  void multiply(LayerContext& context, const Runs& runs, const Factors& factors, Append append) const;
  // Without the rows of padding.
  Tensor compact(LayerContext& context, const Runs& runs, Tensor padded) const;

  SegmentSetup setup_;
  std::string name_;
  std::int64_t experts_, width_;  // of this rank
};

}  // namespace weft
