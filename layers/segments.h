// The segments of a model, one maker each. A block is attention and a dense or mixture-of-experts part, or one part.
#pragma once

#include <memory>

#include "layers/kernels/head_shape.h"
#include "layers/kernels/state_space.h"
#include "layers/segment.h"

namespace weft {

// The rows of the embedding's weight on this rank. With ModelConfig::tie_word_embeddings they are also the head's
// projection.
ParameterSpec vocabulary_table(const SegmentSetup& setup);

// The embedding with vocabulary parallelism: each tensor rank holds a balanced, possibly uneven run of vocabulary rows.
std::unique_ptr<Segment> make_embedding(const SegmentSetup& setup);

// The heads of one of `tensor` ranks.
HeadShape head_shape(const ModelConfig& model, int tensor, std::int64_t sequence_length);
// Order of the parameters of attention. q_norm and k_norm exist with QK-norm only.
struct AttentionOrder {
  enum Index : std::size_t { norm_weight, q_proj, k_proj, v_proj, o_proj, q_norm, k_norm };
};
std::vector<ParameterSpec> attention_parameters(const SegmentSetup& setup, int block);

// The attention part of a block: x + o_proj(attention(rotary(qkv(norm(x))))). Heads are split over the tensor group.
std::unique_ptr<Segment> make_attention(const SegmentSetup& setup, int block);

// The heads and groups of one of `tensor` ranks.
StateSpaceShape state_space_shape(const ModelConfig& model, int tensor, std::int64_t sequence_length);
// Order of the parameters of a state space. Those of x, B and C touch in memory, and so do the rows of the projection.
struct StateSpaceOrder {
  enum Index : std::size_t {
    input_norm,
    z_proj,
    x_proj,
    b_proj,
    c_proj,
    step_proj,
    out_proj,
    x_filter,
    b_filter,
    c_filter,
    x_bias,
    b_bias,
    c_bias,
    a_log,
    d_skip,
    step_bias,
    gated_norm
  };
};
std::vector<ParameterSpec> state_space_parameters(const SegmentSetup& setup, int block);

// The state-space part of a block, Mamba-2: x + out_proj(gated_norm(scan(mix(project(norm(x)))))), see
// kernels/state_space.h. Heads and groups are split over the tensor group. For the scan the context group splits heads
// too, in place of tokens (context_parallel.h). Groups of B and C are split with them, or several ranks have the same.
std::unique_ptr<Segment> make_state_space(const SegmentSetup& setup, int block);

// The dense part of a block: x + mlp(norm(x)).
std::unique_ptr<Segment> make_mlp(const SegmentSetup& setup, int block);

// The mixture-of-experts part of a block: x + sum over the chosen experts of probability * expert(norm(x)), plus a
// shared expert if the model has one. Dropless: every choice is computed, whatever the load.
std::unique_ptr<Segment> make_moe(const SegmentSetup& setup, int block);

// The projection of the head, one row for each vocabulary entry of this rank: a tied one is vocabulary_table().
ParameterSpec head_projection(const SegmentSetup& setup);
// Of the head: the norm's weight, then the projection.
std::vector<ParameterSpec> head_parameters(const SegmentSetup& setup);

// Number of tokens with logits in the head at the same time. SegmentSetup::most_logit_bytes bounds it for this rank's
// part of the vocabulary. It is rounded down to whole tiles of a product if at least one tile fits.
std::int64_t logits_chunk_tokens(const SegmentSetup& setup);

// Final norm, vocabulary-parallel output projection and cross-entropy (vocabulary.h).
std::unique_ptr<Segment> make_head(const SegmentSetup& setup);

// The segment of a stage without blocks: returns activations and gradients unchanged. It has no parameters and keeps
// nothing. Its name is "stage.3.passage".
std::unique_ptr<Segment> make_identity_segment(int stage);

}  // namespace weft
