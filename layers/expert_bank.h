// The routed experts of a rank, or its part of their width: one SwiGLU per expert, by grouped matrix products over runs
// of rows of any length. An expert without rows costs no product; its gradient is zero.
#pragma once

#include "layers/segment.h"

namespace weft {

class ExpertBank {
 public:
  // `name` is put before "5.gate_proj.weight", 5 being the expert's index in the whole layer.
  ExpertBank(const SegmentSetup& setup, const std::string& name);

  struct Kept {
    Tensor rows, gate_up, activated;  // [received, hidden], [received, 2 * width], [received, width] (swiglu_mlp.h)
    Tensor dgate_up, dout;            // from input gradient to weight gradient
  };

  std::int64_t experts() const { return experts_; }  // on this rank
  // Upper bound on arriving rows: every token of the expert and expert-tensor groups chooses as many of this rank's
  // experts as it can.
  std::int64_t bound_rows() const;
  // gate_proj, up_proj and down_proj of the first expert, then of the next.
  std::vector<ParameterSpec> parameters() const;
  // Bytes kept per row from forward to input gradient, and from input gradient to weight gradient.
  std::int64_t bytes_per_row() const;
  std::int64_t pending_bytes_per_row() const;

  // `rows` is sorted by expert, expert_rows[e] rows for expert e. All tensors have the dtype of experts. Returns
  // [received, hidden].
  Tensor forward(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows, Tensor rows,
                 Kept& kept) const;
  Tensor backward_input(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows, Tensor dout,
                        Kept& kept) const;
  void backward_weight(LayerContext& context, Gradients gradients, std::span<const std::int64_t> expert_rows,
                       const Kept& kept) const;

 private:
  struct Columns;
  template <typename Append>
  void multiply(LayerContext& context, std::span<const std::int64_t> expert_rows, const Columns& columns,
                Append append) const;

  SegmentSetup setup_;
  std::string name_;
  std::int64_t experts_, width_;  // of this rank
};

}  // namespace weft
