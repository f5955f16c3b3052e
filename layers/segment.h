// A segment is the smallest piece of the model that is scheduled: embedding, the attention part of a block, its dense
// or expert part, the head. It declares its parameters, what it keeps per microbatch and which collectives it performs
// before anything runs; the same object then computes forward, input gradient and weight gradient as separate calls.
//
// Between segments activations are [slice tokens, hidden] in the compute dtype of the dense parts: with tensor
// parallelism each rank holds an equal run of the microbatch's tokens (sequence parallelism). Weights come in the dtype
// of their family, gradients in float32, both in the order of parameters().
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "layers/kernels/context.h"
#include "layers/model_config.h"
#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"
#include "parallel/runtime/parameter.h"
#include "parallel/runtime/work.h"

namespace weft {

// Sizes that decide a segment, on one rank. Pure data: planning builds segments of any rank without communicators.
struct SegmentSetup {
  ModelConfig model;
  // What the dense parts compute in, which is also the dtype of activations between segments, and what the others do.
  DType compute = DType::float32;
  DType embedding_compute = DType::float32, expert_compute = DType::float32, head_compute = DType::float32;
  std::int64_t sequence_length = 0;    // whole, over the context group
  std::int64_t microbatch_tokens = 0;  // of the whole tensor group; a multiple of local_sequence() and of `tensor`
  // The head computes its float32 logits for as many tokens at a time as fit in this: all of them never exist at once.
  std::int64_t most_logit_bytes = std::int64_t{128} << 20;
  int context = 1, context_rank = 0;
  int tensor = 1, tensor_rank = 0;
  int expert = 1, expert_rank = 0;
  int expert_tensor = 1, expert_tensor_rank = 0;

  // Whether what is cheap to make again, without a matrix product or communication, is not kept from forward to
  // backward: outputs of norms, of the rotary embedding and of SwiGLU.
  bool remake_cheap = false;

  // Families whose parameters are constant. What only their gradients would need is neither multiplied nor gathered,
  // and dropped by the input gradient; what a segment keeps of a microbatch until then is the same.
  std::set<Family> frozen;

  bool trains(Family family) const { return !frozen.contains(family); }
  // Everything in one dtype.
  void compute_in(DType dtype) { compute = embedding_compute = expert_compute = head_compute = dtype; }
  // Of a family's weights and of what is computed with them.
  DType dtype_of(Family family) const;
  // Tokens of one sequence on this context rank (context_parallel.h).
  std::int64_t local_sequence() const { return sequence_length / context; }
  std::int64_t slice_tokens() const { return microbatch_tokens / tensor; }
};

// One microbatch's text, [microbatch_tokens, 1] int32 each: ids and the ids that follow them, below 0 where a token
// does not count. Stays in place for the whole step.
struct MicrobatchInput {
  ConstTensorView tokens;
  ConstTensorView targets;
};

// What a step measures besides gradients, summed over this rank's microbatches by kernels, in device memory. Each token
// is counted by one rank only.
class StepReport {
 public:
  // Elements of `values` for a model of so many blocks and experts.
  static std::int64_t size(std::int64_t blocks, std::int64_t experts) { return 1 + blocks * (2 + experts); }

  StepReport() = default;
  // values: [size(...), 1] float64, zero at the beginning of a step.
  StepReport(TensorView values, std::int64_t experts) : values_(values), experts_(experts) {}

  TensorView values() const { return values_; }
  // Nats over tokens, [1, 1].
  TensorView loss() const { return values_.rows_from(0, 1); }
  // Of one block, already multiplied by their coefficients and normalised, [1, 1]; zero for dense blocks.
  TensorView auxiliary_loss(int block) const { return values_.rows_from(first(block), 1); }
  TensorView z_loss(int block) const { return values_.rows_from(first(block) + 1, 1); }
  // Choices by expert, [experts, 1].
  TensorView expert_tokens(int block) const { return values_.rows_from(first(block) + 2, experts_); }

 private:
  std::int64_t first(int block) const { return size(block, experts_); }

  TensorView values_;
  std::int64_t experts_ = 0;
};

struct GenerationState;  // generation_state.h

// What a running segment is handed. `loss_factor` is 1 / tokens of the global batch: the one normalisation of a step.
// `loss_scale`, a power of two, multiplies every gradient that a segment starts (of logits, and of a router's losses),
// so that small ones do not vanish in float16; what is reported is not scaled.
struct LayerContext {
  KernelContext& kernels;
  Communicator& tensor;
  Communicator& sequence;  // the context group
  Communicator& expert;
  Communicator& expert_tensor;
  Communicator& tokens;          // all ranks of the stage, which see different tokens
  ConstTensorView rotary_table;  // kernels/rotary.h, shared by all blocks
  double loss_factor = 1.0;
  StepReport report;
  double loss_scale = 1.0;
  GenerationState* generation = nullptr;  // where text is generated
  WorkObserver* observer = nullptr;       // where somebody wants to know what a segment is at
  // A forward that the microbatch has been through before: nothing of it is reported again.
  bool again = false;
  int microbatches = 1;  // of this step that the segment's forward has seen, this one among them

  float gradient_factor() const { return static_cast<float>(loss_factor * loss_scale); }
};

using Weights = std::span<const ConstTensorView>;
using Gradients = std::span<const TensorView>;

// What a segment keeps of one microbatch from forward to weight gradient: first what the input gradient reads too, then
// only what the weight gradient does, which may come much later.
class Saved {
 public:
  virtual ~Saved() = default;
};

// A collective of one microbatch, known before it runs. `bytes` is a bound where routing decides.
struct SegmentTraffic {
  enum class When : std::uint8_t { forward, backward_input, backward_weight };
  When when = When::forward;
  CollectiveOp op = CollectiveOp::all_reduce;
  Group group = Group::tp;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool is_bound = false;
  std::int64_t even_bytes = 0;  // where `bytes` is a bound: what it is when tokens are dealt evenly
  bool once = false;            // not in a forward again
};

// Throws Error (failure) when there is a gradient of a family that is frozen.
void require_frozen(const SegmentSetup& setup, const std::vector<ParameterSpec>& parameters, Gradients gradients);

class Segment {
 public:
  virtual ~Segment() = default;

  virtual const std::string& name() const = 0;   // "blocks.3.attention"
  virtual const std::string& scope() const = 0;  // "blocks.3": segments of one scope share shard units by family
  virtual ModelPart part() const = 0;            // names are for readers: what a segment is stands here
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  // Bytes kept per microbatch from forward to input gradient, under activations (and moe_routing: a bound).
  virtual std::int64_t activation_bytes() const = 0;
  // Bytes kept per microbatch from input gradient to weight gradient, in place of activation_bytes (a bound with routed
  // tokens). Nothing of what only frozen parameters would read.
  virtual std::int64_t pending_bytes() const = 0;
  virtual std::vector<SegmentTraffic> traffic() const = 0;

  // Takes the activations (none for the embedding) and gives the next ones (none for the head). In a forward again,
  // `saved` is what was remembered of the first.
  virtual Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                         std::unique_ptr<Saved>& saved) = 0;
  // Whether its forward may run again from what take_input gives.
  virtual bool forwards_again() const { return false; }
  // The activations that forward took, out of what it saved, of which nothing else is read afterwards. Throws Error
  // (failure) where forwards_again() is false.
  virtual Tensor take_input(Saved& saved);
  // What a forward again does not make anew, out of what forward saved; and its bytes a microbatch.
  virtual std::unique_ptr<Saved> remembered(std::unique_ptr<Saved> saved) const;
  virtual std::int64_t remembered_bytes() const { return 0; }
  // Whether backward_input reads its weights; to one that does not, none need be passed.
  virtual bool reads_weights_backward() const { return true; }
  // Takes the gradient of what forward gave and returns that of what it took. Adds to no gradient of a weight, and
  // drops of `saved` what backward_weight does not read, each tensor behind its last reader on the compute lane.
  virtual Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) = 0;
  // Adds the weight gradients of the microbatch; reads no weights. Called once, after backward_input. A frozen
  // parameter has an empty gradient, TensorView{}, and costs no product; parameters that are one product (q, k and v;
  // gate and up) are frozen together, and those of a family that the setup calls frozen all are. Throws Error (failure)
  // otherwise.
  virtual void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) = 0;
};

}  // namespace weft
