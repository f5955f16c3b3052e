// A segment is the smallest scheduled piece of the model: embedding, the attention part of a block, its dense or expert
// part, the head. Before anything runs it declares its parameters, the bytes it keeps per microbatch and its
// collectives. The same object then computes forward, input gradient and weight gradient as separate calls.
//
// Between segments activations are [slice tokens, hidden] in the compute dtype of the dense parts. With tensor
// parallelism each rank has an equal run of the microbatch's tokens (sequence parallelism). Weights come in the dtype
// of their family, gradients in float32, both in the order of parameters().
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "layers/kernels/context.h"
#include "layers/kernels/float8.h"
#include "layers/model_config.h"
#include "parallel/comm/communicator.h"
#include "parallel/mesh/mesh.h"
#include "parallel/runtime/gradient.h"
#include "parallel/runtime/parameter.h"
#include "parallel/runtime/range.h"
#include "parallel/runtime/work.h"

namespace weft {

// Sizes that decide a segment, on one rank. Pure data: planning builds segments of any rank without communicators.
struct SegmentSetup {
  ModelConfig model;
  // Compute dtype of the dense parts, which is also the dtype of activations between segments; then of the other parts.
  DType compute = DType::float32;
  DType embedding_compute = DType::float32, expert_compute = DType::float32, head_compute = DType::float32;
  // Families whose products read their factors in 8 bits (dense and experts); their compute dtype is bfloat16.
  std::map<Family, ProductFormat> formats;
  std::int64_t sequence_length = 0;    // whole, over the context group
  std::int64_t microbatch_tokens = 0;  // of the whole tensor group; a multiple of local_sequence() and of `tensor`
  // Limit of the head's float32 logits in bytes: the head computes them for as many tokens at a time as fit.
  std::int64_t most_logit_bytes = std::int64_t{128} << 20;
  bool masks_documents = false;  // whether the text has the begins of its documents
  int context = 1, context_rank = 0;
  int tensor = 1, tensor_rank = 0;
  int expert = 1, expert_rank = 0;
  int expert_tensor = 1, expert_tensor_rank = 0;
  // Ranks of Group::ep_relay, a divisor of `expert`, and the tokens that they pass on. These are all of their tokens,
  // or those with a choice in the receiver's part of the experts.
  int expert_relay = 1;
  bool relays_all_tokens = false;

  // Whether cheap activations are recomputed in the backward instead of kept. These are outputs of norms, of the rotary
  // embedding and of SwiGLU, which need no matrix product and no communication.
  bool recompute_cheap = false;
  // Whether the activations inside routed experts are recomputed in the backward: two of their three products.
  bool recompute_experts = false;
  // Whether a recomputed forward takes the rows that routed experts got and gave from what is remembered, and exchanges
  // nothing.
  bool keep_dispatch = false;

  // Whether the weights of a token's choices multiply inside experts, in front of their last product: their outputs are
  // then not kept. Otherwise they multiply the outputs.
  bool weights_at_experts = false;

  // Families with constant parameters. Products and gathers that only their gradients need are skipped. The input
  // gradient drops the tensors that only they need; until then a segment keeps the same tensors as without freezing.
  std::set<Family> frozen;

  bool trains(Family family) const { return family != Family::helpers && !frozen.contains(family); }
  // Dtype of a family's weights and of the computations with them.
  DType dtype_of(Family family) const;
  ProductFormat format_of(Family family) const {
    const auto found = formats.find(family);
    return found == formats.end() ? ProductFormat::as_stored : found->second;
  }
  // Tokens of one sequence on this context rank (context_parallel.h).
  std::int64_t local_sequence() const { return sequence_length / context; }
  std::int64_t slice_tokens() const { return microbatch_tokens / tensor; }
  std::int64_t sequences() const { return microbatch_tokens / local_sequence(); }
  std::int64_t context_tokens() const { return microbatch_tokens * context; }  // of whole sequences
  // Of this tensor rank.
  Range vocabulary_rows() const { return balanced_part(model.vocab_size, tensor, tensor_rank); }
};

// The text of a predictor (prediction.h), as MicrobatchInput has it: ids further on, and those behind them as targets.
struct FollowingText {
  ConstTensorView tokens, targets;
};
// One microbatch's text, [microbatch_tokens, 1] int32 each: ids, and the ids that follow them as targets. A target
// below 0 does not count. `document_begins`: the position in its sequence at which the document of each token begins;
// empty if each sequence is one document. `following`: of each predictor k = 1, 2, ... the k-th ids behind.
// `noise_keys`: a number of each token that noise is drawn from; empty: none is. `number`: of the microbatch among
// those of the step, or of all held-out text, which the data ranks read in turn. The tensors stay in place for the
// whole step.
struct MicrobatchInput {
  ConstTensorView tokens;
  ConstTensorView targets;
  ConstTensorView document_begins = {};
  std::vector<FollowingText> following = {};
  ConstTensorView noise_keys = {};
  std::int64_t number = 0;
};

// Measurements of a step besides gradients, summed over this rank's microbatches by kernels, in device memory. Each
// token is counted by one rank only.
class StepReport {
 public:
  // Number of elements of `values`.
  static std::int64_t size(std::int64_t blocks, std::int64_t experts) { return 1 + blocks * (6 + experts); }

  StepReport() = default;
  // values: [size(...), 1] float64, zero at the beginning of a step.
  StepReport(TensorView values, std::int64_t experts) : values_(values), experts_(experts) {}

  TensorView values() const { return values_; }
  // Sum over tokens in nats, [1, 1].
  TensorView loss() const { return values_.rows_from(0, 1); }
  // Losses of one block, already multiplied by their coefficients and normalised, [1, 1]; zero for dense blocks.
  TensorView auxiliary_loss(int block) const { return values_.rows_from(first(block), 1); }
  TensorView z_loss(int block) const { return values_.rows_from(first(block) + 1, 1); }
  // The sum of squares of the block's selection bias, [1, 1].
  TensorView bias_squares(int block) const { return values_.rows_from(first(block) + 2, 1); }
  // Choices that experts did not take, for lack of capacity, [1, 1].
  TensorView dropped(int block) const { return values_.rows_from(first(block) + 3, 1); }
  // The loss of a predictor, as loss(): without its coefficient; zero for the blocks of the model, [1, 1].
  TensorView prediction_loss(int block) const { return values_.rows_from(first(block) + 4, 1); }
  // Choices that experts took, by expert, and behind them those of null slots, [experts + 1, 1].
  TensorView choices(int block) const { return values_.rows_from(first(block) + 5, experts_ + 1); }
  TensorView expert_tokens(int block) const { return choices(block).rows_from(0, experts_); }
  TensorView null_choices(int block) const { return choices(block).rows_from(experts_, 1); }

 private:
  std::int64_t first(int block) const { return size(block, experts_); }

  TensorView values_;
  std::int64_t experts_ = 0;
};

struct GenerationState;  // generation.h

// Arguments of a running segment. Losses of targets are multiplied by `loss_factor`, 1 / targets of the global batch
// that count. Those of a router are means: over the global batch's tokens without padding by `token_factor`, 1 / their
// number, or over its sequences by `sequence_factor`. A step has no other normalisation. `loss_scale`, a power of two,
// multiplies every gradient that a segment starts (of logits, and of a router's losses). It keeps small gradients from
// underflow in float16. Reported values are not scaled.
struct LayerContext {
  KernelContext& kernels;
  Communicator& tensor;
  Communicator& sequence;      // the context group
  Communicator& expert;        // exchanges rows of choices: Group::ep_inner if tokens are relayed, otherwise Group::ep
  Communicator& expert_relay;  // of one rank if tokens are not relayed
  Communicator& expert_tensor;
  Communicator& tokens;          // all ranks of the stage; their tokens differ
  ConstTensorView rotary_table;  // kernels/token_kernels.h, shared by all blocks
  double loss_factor = 1.0, token_factor = 1.0, sequence_factor = 1.0;
  StepReport report;
  double loss_scale = 1.0;
  GenerationState* generation = nullptr;  // null except for text generation
  WorkObserver* observer = nullptr;       // told the work that a segment is doing; may be null
  // True in a recomputed forward, which reports nothing a second time. A block's last segment then need not complete
  // its result: nothing reads it.
  bool recomputing = false;
  // The part of a forward or input gradient to run. Only segments with traffic beside others are cut.
  ComputePart part = {};

  float gradient_factor() const { return static_cast<float>(loss_factor * loss_scale); }
};

using Weights = std::span<const ConstTensorView>;
using Gradients = std::span<const Gradient>;

// Tensors that a segment keeps of one microbatch. Until the input gradient: the tensors that either gradient reads.
// Afterwards: those of the weight gradient, which may run much later.
class Saved {
 public:
  virtual ~Saved() = default;
  // Tensors of Segment::offload_bytes() that exist, between forward and input gradient: other memory may take their
  // place. Valid as long as this object.
  virtual std::vector<Tensor*> offloadable() { return {}; }
};

// A collective of one microbatch, known before it runs. `bytes` is an upper bound if it depends on routing.
struct SegmentTraffic {
  enum class When : std::uint8_t { forward, backward_input, backward_weight };
  When when = When::forward;
  CollectiveOp op = CollectiveOp::all_reduce;
  Group group = Group::tp;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool is_bound = false;
  std::int64_t even_bytes = 0;  // if `bytes` is a bound: its value for evenly routed tokens
  bool once = false;            // not in a recomputed forward
  int beside = 0;               // number of the exchange of rows that it belongs to (ComputePart); 0: of none
};

// Throws Error (failure) if a parameter of a frozen family has a gradient.
void require_frozen(const SegmentSetup& setup, const std::vector<ParameterSpec>& parameters, Gradients gradients);

// Bytes of a microbatch, as the functions of Segment with these names.
struct SegmentBytes {
  std::int64_t activations = 0, pending = 0, remembered = 0;
};

class Segment {
 public:
  virtual ~Segment() = default;

  const std::string& name() const { return name_; }    // "blocks.3.attention"
  const std::string& scope() const { return scope_; }  // "blocks.3": segments of one scope share shard units by family
  ModelPart part() const { return part_; }             // kind and block of the segment; names are for readers
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  // Bytes kept per microbatch from forward to input gradient, in the buckets activations and moe_routing (a bound).
  virtual std::int64_t activation_bytes() const = 0;
  // Bytes kept per microbatch from input gradient to weight gradient, in place of activation_bytes (a bound with routed
  // tokens). Tensors that only gradients of frozen parameters would read are not included.
  virtual std::int64_t pending_bytes() const = 0;
  // Bytes of activation_bytes() in tensors of fixed sizes, which may wait elsewhere for the input gradient.
  virtual std::int64_t offload_bytes() const { return 0; }
  virtual std::vector<SegmentTraffic> traffic() const = 0;

  // Takes the activations (none for the embedding) and returns the next ones (none for the head). In a recomputed
  // forward, `saved` holds what remembered() returned.
  virtual Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                         std::unique_ptr<Saved>& saved) = 0;
  // Whether forward can be recomputed from the result of take_input.
  virtual bool recomputes_forward() const { return false; }
  // Moves the input activations of forward out of `saved`; afterwards only remembered() reads `saved`. Throws Error
  // (failure) if recomputes_forward() is false.
  virtual Tensor take_input(Saved& saved);
  // The part of `saved` that a recomputed forward reuses, and its bytes per microbatch.
  virtual std::unique_ptr<Saved> remembered(std::unique_ptr<Saved> saved) const;
  virtual std::int64_t remembered_bytes() const { return 0; }
  // With evenly routed tokens, at least.
  virtual SegmentBytes even_bytes() const { return {activation_bytes(), pending_bytes(), remembered_bytes()}; }
  // Whether backward_input reads its weights. If not, the caller may pass none.
  virtual bool reads_weights_backward() const { return true; }
  // Takes the gradient of forward's result and returns the gradient of its input. Adds to no weight gradient. Drops the
  // tensors of `saved` that backward_weight does not read, each after its last reader on the compute lane.
  virtual Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) = 0;
  // The exchange behind the part that ran last, queued on the exchange lane. A forward in parts takes its input with
  // the first one and returns its result with the last one, and so does an input gradient. Between them `saved` holds
  // more than it declares. Throws Error (failure) if the segment has no parts.
  virtual void exchange_rows(LayerContext& context, Saved& saved);
  // Adds the weight gradients of the microbatch; reads no weights. Called once, after backward_input. A frozen
  // parameter has an empty gradient, TensorView{}, and costs no product. Parameters of one product (q, k and v; gate
  // and up) are frozen together, and so are all parameters of a family in SegmentSetup::frozen. Throws Error (failure)
  // otherwise.
  virtual void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) = 0;

 protected:
  // Named after its kind in the scope of its block, or in `scope`. The embedding and the head are their own scopes.
  Segment(const SegmentSetup& setup, ModelPart part, std::string scope = {});
  int block() const { return part_.block.value(); }

  const SegmentSetup setup_;
  std::vector<ParameterSpec> parameters_;

 private:
  ModelPart part_;
  std::string scope_, name_;
};

// Those of the tensors that are allocated.
std::vector<Tensor*> allocated(std::initializer_list<Tensor*> tensors);

// Blocks of rows in two orders, that of ranks and another. Each block has a row count, and a first row in either order.
struct RowBlocks {
  std::vector<std::int64_t> by_rank, sorted, rows;
};
// `rows` of all blocks sorted, or back in the order of ranks. The result is in `bucket`, with room for `reserve_rows`
// (see MemoryLedger::allocate).
Tensor reordered(KernelContext& kernels, Bucket bucket, const RowBlocks& blocks, bool sorted, ConstTensorView rows,
                 std::int64_t reserve_rows = 0);

// Conversion between parts of the model that compute in different dtypes. Nothing is copied if the dtypes are equal.
//
// Dtype for communication between two parts: the narrower of theirs, or `first` if both have the same width.
DType narrower(DType first, DType second);

// Returns the tensor itself if it has `dtype`. Otherwise releases it and returns a copy in `bucket`, in a block with
// room for `reserve_rows` (see MemoryLedger::allocate).
Tensor converted(KernelContext& kernels, Tensor tensor, DType dtype, Bucket bucket, std::int64_t reserve_rows = 0);

}  // namespace weft
