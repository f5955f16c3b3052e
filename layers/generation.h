// The parts of a model that differ in text generation. They are a state carried from pass to pass, mixers that go on
// from it, and a head that gives logits. A pass computes the next tokens of several sequences, all at
// the same position. Parameters are those of the segments that train (segments.h).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "layers/segment.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/ledger.h"

namespace weft {

// Shape of a pass, the same on all ranks: `tokens` new tokens of each of `sequences` sequences, sequence after
// sequence. Padding follows, up to the segments' microbatch, which is a multiple of the tensor group's size.
struct GenerationShape {
  std::int64_t sequences = 1, tokens = 1;
  std::int64_t capacity = 0;  // positions per sequence in the caches
  std::int64_t wanted = 1;    // last tokens of each sequence for which the head computes logits

  std::int64_t rows() const { return sequences * tokens; }
  bool operator==(const GenerationShape&) const = default;
};

struct GenerationState {
  // What this rank's mixers keep of earlier tokens, by block, as cache_sizes() says.
  std::map<int, std::vector<Tensor>> caches = {};
  // Position of the first new token of this pass, the same in every sequence; the number of cached positions.
  std::int64_t position = 0;
  // Logits of this pass; empty on ranks without the head.
  Tensor logits = {};
};

// Base of the segments for text generation: forward only. Their backward functions throw Error (failure).
class ForwardSegment : public Segment {
 public:
  std::int64_t pending_bytes() const final { return 0; }
  bool reads_weights_backward() const final { return false; }
  Tensor backward_input(LayerContext&, Weights, Tensor, Saved&) final { refuse(); }
  void backward_weight(LayerContext&, Gradients, Saved&) final { refuse(); }

 protected:
  using Segment::Segment;

 private:
  [[noreturn]] void refuse() const { fail("{} generates text and has no backward", name()); }
};

// The attention part of a block during text generation: new tokens of each sequence attend to the cached keys and
// values of all earlier tokens. Its parameters are those of make_attention.
std::unique_ptr<Segment> make_cached_attention(const SegmentSetup& setup, const GenerationShape& shape, int block);

// The state-space part of a block during text generation: it goes on from the state and the inputs that the last tokens
// left. Its parameters are those of make_state_space.
std::unique_ptr<Segment> make_continued_state_space(const SegmentSetup& setup, const GenerationShape& shape, int block);

// A tensor of one block's entry of GenerationState::caches on this rank, in equal runs of rows by sequence.
struct CacheSize {
  DType dtype = DType::float32;
  std::int64_t rows = 0, columns = 0;
};
// Of attention: keys and values for attention_cached (kernels/attention.h), [sequences * capacity,
// HeadShape::key_value_columns()] in the compute dtype. Of a state space: `carried` and `history` of its kernels. Of
// other blocks: nothing.
std::vector<CacheSize> cache_sizes(const SegmentSetup& setup, int block, std::int64_t sequences, std::int64_t capacity);

// The head for text generation: writes logits of the last tokens of each sequence, over the whole vocabulary, to
// GenerationState::logits. Its parameters are those of make_head.
//
// GenerationState::logits is [sequences * wanted * vocabulary, 1] float32 on every rank of the tensor group: the ranks'
// parts of the vocabulary one after another, each [sequences * wanted, columns of that rank].
std::unique_ptr<Segment> make_logits_head(const SegmentSetup& setup, const GenerationShape& shape);

// Copies such logits into one [rows, vocabulary] matrix.
std::vector<float> whole_logits(std::span<const float> by_part, std::int64_t rows, std::int64_t vocabulary, int parts);

}  // namespace weft
