// The routed experts a rank holds, or its part of their width: one SwiGLU each, over uneven runs of rows (grouped
// matrix products). An expert without rows costs nothing and still has a gradient: zero.
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
  // The most rows that can arrive: every token of the expert and expert-tensor groups choosing this rank's experts.
  std::int64_t bound_rows() const;
  // gate_proj, up_proj, down_proj of each expert in turn.
  std::vector<ParameterSpec> parameters() const;
  // Kept per row from forward to input gradient, and from there to weight gradient, in bytes.
  std::int64_t bytes_per_row() const;
  std::int64_t pending_bytes_per_row() const;

  // rows: by expert, expert_rows[e] each, in the dtype of experts like all others here. Returns [received, hidden].
  Tensor forward(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows, Tensor rows,
                 Kept& kept) const;
  Tensor backward_input(LayerContext& context, Weights weights, std::span<const std::int64_t> expert_rows, Tensor dout,
                        Kept& kept) const;
  void backward_weight(LayerContext& context, Gradients gradients, std::span<const std::int64_t> expert_rows,
                       const Kept& kept) const;

 private:
  SegmentSetup setup_;
  std::string name_;
  std::int64_t experts_, width_;  // of this rank
};

}  // namespace weft
