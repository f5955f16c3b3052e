// The attention part of a block: x + o_proj(attention(rotary(qkv(norm(x))))). Heads are split over the tensor group.
#pragma once

#include "layers/segment.h"

namespace weft {

// Order of the segment's parameters. q_norm and k_norm exist with QK-norm only.
struct AttentionOrder {
  enum Index : std::size_t { norm_weight, q_proj, k_proj, v_proj, o_proj, q_norm, k_norm };
};
std::vector<ParameterSpec> attention_parameters(const SegmentSetup& setup, int block);

std::unique_ptr<Segment> make_attention(const SegmentSetup& setup, int block);

}  // namespace weft
