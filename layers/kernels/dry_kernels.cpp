#include "layers/kernels/kernels.h"

#include <algorithm>
#include <numeric>

#include "layers/kernels/attention_graph.h"
#include "layers/kernels/cpu/kernels.h"
#include "layers/kernels/gpu_scan.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/dry_device.h"

namespace weft {
namespace {

class DryProducts final : public MatrixProducts {
 public:
  DryProducts(Stream& stream, Tensor workspace) : stream_(stream), workspace_(std::move(workspace)) {}
  void run(const Product& p) override {
    const ProductCall product = shape_of(p);
    tell(stream_, {.name = "multiply",
                   .kind = KernelKind::product,
                   .read = p.a.bytes() + p.b.bytes() + p.addend.bytes() + (p.accumulate ? p.c.bytes() : 0),
                   .written = p.c.bytes(),
                   .flops = 2.0 * static_cast<double>(product.rows) * static_cast<double>(product.columns) *
                            static_cast<double>(product.inner),
                   .dtype = product.input_a,
                   .product = product});
  }

 private:
  Stream& stream_;
  Tensor workspace_;
};

// Operations of the queries in `runs`, each with the keys it sees: queries times keys, and weights times values.
double attention_flops(const HeadShape& heads, QueryRuns runs, std::int64_t sequences) {
  double keys = 0.0;
  for (const Range& run : runs) keys += heads.first_key.keys_seen(run);
  return 2.0 * keys * static_cast<double>(sequences * heads.query_heads * (heads.head_dim + heads.value_dim));
}
std::int64_t sequences_of(const HeadShape& heads, ConstTensorView key_rows) {
  return key_rows.rows() / std::max<std::int64_t>(heads.sequence_length, 1);
}

// Counts only the columns of the heads; the matrices may have other columns.
std::int64_t input_bytes(const AttentionInputs& inputs, const HeadShape& heads) {
  return (inputs.q.rows.rows() * heads.key_column() + inputs.k.rows.rows() * heads.key_value_columns()) *
         size_of(inputs.q.rows.dtype());
}

// Allocates what cuDNN's backward takes of the ledger, run after run: scratch, and the gradients of a run that are
// added to those of others. Attention that cuDNN refuses takes less.
void take_cudnn_backward_workspace(KernelContext& context, const HeadShape& heads, QueryRuns runs,
                                   std::int64_t sequences, ConstTensorView key_gradients, bool deterministic) {
  for (const Range& run : runs) {
    const AttentionShape shape = run_attention_shape(heads, sequences, query_rows(runs), run, {}, {}, {});
    Tensor part;
    if (runs.size() > 1) {
      part = context.ledger.allocate(Bucket::workspace, key_gradients.dtype(), key_gradients.rows(),
                                     key_gradients.columns());
    }
    const std::int64_t bytes = known_backward_bytes(shape, deterministic);
    const Tensor scratch = context.ledger.allocate(Bucket::workspace, DType::int32, (bytes + 3) / 4, 1);
  }
}

AttentionKernels dry_attention(DryWorkspace workspace, const GpuKernelOptions& gpu) {
  const bool of_cpu = workspace == DryWorkspace::of_cpu;
  const bool may_be_cudnn = !of_cpu && gpu.attention.kernel != AttentionChoice::Kernel::own;
  AttentionKernels kernels;
  kernels.forward = [of_cpu](KernelContext& context, const HeadShape& heads, QueryRuns runs,
                             const AttentionInputs& inputs, TensorView out, TensorView log_sum_exp) {
    if (of_cpu) cpu::take_attention_forward_workspace(context, heads, runs, out.dtype());
    tell(context.stream, {.name = "attention_forward",
                          .kind = KernelKind::attention,
                          .read = input_bytes(inputs, heads),
                          .written = out.bytes() + log_sum_exp.bytes(),
                          .flops = attention_flops(heads, runs, sequences_of(heads, inputs.k.rows)),
                          .dtype = out.dtype()});
  };
  kernels.backward = [=](KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                         const AttentionInputs& inputs, ConstTensorView out, ConstTensorView log_sum_exp,
                         const AttentionGradients& gradients) {
    if (of_cpu) cpu::take_attention_backward_workspace(context, heads, runs, out.dtype());
    if (may_be_cudnn && size_of(out.dtype()) == 2) {
      take_cudnn_backward_workspace(context, heads, runs, sequences_of(heads, inputs.k.rows), gradients.k.rows,
                                    gpu.deterministic);
    }
    const std::int64_t factors = input_bytes(inputs, heads);
    // Five products against two in the forward: scores again, and the gradients of weights, values, queries and keys.
    tell(context.stream, {.name = "attention_backward",
                          .kind = KernelKind::attention,
                          .read = dout.bytes() + factors + out.bytes() + log_sum_exp.bytes(),
                          .written = factors,
                          .flops = 2.5 * attention_flops(heads, runs, sequences_of(heads, inputs.k.rows)),
                          .dtype = out.dtype()});
  };
  kernels.cached = [](KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView q,
                      ConstTensorView cache, TensorView out) {
    const std::int64_t sequences = sequences_of(heads, cache);
    const Range new_tokens{position, q.rows() / std::max<std::int64_t>(sequences, 1)};
    const std::int64_t seen = position + new_tokens.count - heads.first_key(position);
    tell(context.stream,
         {.name = "attention_cached",
          .kind = KernelKind::attention,
          .read = (q.rows() * heads.key_column() + sequences * seen * cache.columns()) * size_of(cache.dtype()),
          .written = out.bytes(),
          .flops = attention_flops(heads, {&new_tokens, 1}, sequences),
          .dtype = q.dtype()});
  };
  kernels.description = [](const HeadShape&, QueryRuns, DType, bool) {
    return std::string("not at all, in a dry run");
  };
  return kernels;
}

// Heads of q and k only. The backward reads qkv for the gradient of the norm.
void set_rotary(LayerKernels& kernels) {
  kernels.rotary_forward = [](KernelContext& context, const RotaryOptions& options, ConstTensorView qkv, auto...) {
    const std::int64_t bytes = qkv.rows() * options.heads.value_column() * size_of(qkv.dtype());
    tell(context.stream, {.name = "rotary_forward", .read = bytes, .written = bytes});
  };
  kernels.rotary_backward = [](KernelContext& context, const RotaryOptions& options, ConstTensorView,
                               ConstTensorView q_norm, ConstTensorView, TensorView dqkv, TensorView dq_norm,
                               TensorView dk_norm) {
    const std::int64_t bytes = dqkv.rows() * options.heads.value_column() * size_of(dqkv.dtype());
    tell(context.stream, {.name = "rotary_backward",
                          .read = q_norm.empty() ? bytes : 2 * bytes,
                          .written = bytes + dq_norm.bytes() + dk_norm.bytes()});
  };
}

// The lookup reads one row per token, whatever the size of the table.
void dry_embedding_forward(KernelContext& context, ConstTensorView ids, ConstTensorView, std::int64_t, TensorView y) {
  tell(context.stream, {.name = "embedding_forward", .read = ids.bytes() + y.bytes(), .written = y.bytes()});
}
void dry_embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t, TensorView) {
  const std::int64_t rows = dy.size() * size_of(DType::float32);
  tell(context.stream, {.name = "embedding_backward", .read = ids.bytes() + dy.bytes() + rows, .written = rows});
}

// Kernels of a state space read and write some columns of their matrices.
void tell_state_space(KernelContext& context, KernelCall call, ConstTensorView like, std::int64_t read,
                      std::int64_t written) {
  const std::int64_t column = like.rows() * size_of(like.dtype());
  call.read += read * column;
  call.written += written * column;
  tell(context.stream, call);
}

// A scan reads columns x, B and C, the steps and `others`, and writes `written`. Its tokens meet those of their chunk
// in products, `of_group` of each group and `of_head` of each head. A head's tokens meet its state in `passes`. On a
// GPU states and their gradients are read and written so many times, and tensor cores multiply 16 bits.
struct ScanWork {
  std::string_view name;
  std::int64_t others, written, of_group, of_head, passes, states_read, states_written;
};
void tell_scan(KernelContext& context, const StateSpaceShape& shape, ConstTensorView like, const ScanWork& work,
               bool of_cpu) {
  const GpuScan gpu = {shape, like.rows()};
  // Of other tokens, for each token.
  const std::int64_t met =
      of_cpu ? shortest_scan_chunk : GpuScan::pairs_of_chunk * GpuScan::tile * GpuScan::tile / GpuScan::chunk;
  const std::int64_t group = work.of_group * met * shape.state_size;
  const std::int64_t head = work.of_head * met * shape.head_dim + work.passes * shape.head_dim * shape.state_size;
  const std::int64_t states = of_cpu ? 0 : gpu.states() * size_of(DType::float32);
  tell_state_space(context,
                   {.name = work.name,
                    .read = work.states_read * states,
                    .written = work.states_written * states,
                    .flops = 2.0 * static_cast<double>(like.rows() * (shape.groups * group + shape.heads * head)),
                    .dtype = of_cpu ? DType::float32 : like.dtype()},
                   like, shape.channels() + shape.heads + work.others, work.written);
}

// Taken and given back, as the kernel does.
template <bool of_cpu>
void take_scan_workspace(KernelContext& context, const StateSpaceShape& shape, std::int64_t tokens, bool backward) {
  if constexpr (of_cpu) {
    static_cast<void>(cpu::scan_workspace(context, shape, backward));
  } else {
    const GpuScanRoom room(GpuScan{shape, tokens}, backward);
    static_cast<void>(context.ledger.allocate(Bucket::workspace, DType::float32, room.floats, 1));
  }
}

// Arguments behind the first three have no influence.
template <bool of_cpu>
void set_state_space(LayerKernels& kernels) {
  kernels.mix_tokens_forward = [](KernelContext& context, const StateSpaceShape& shape, ConstTensorView projected,
                                  auto...) {
    if constexpr (of_cpu) static_cast<void>(cpu::mixing_workspace(context, shape, false));
    tell_state_space(context, {.name = "mix_tokens_forward"}, projected, shape.channels(), shape.channels());
  };
  kernels.mix_tokens_backward = [](KernelContext& context, const StateSpaceShape& shape, ConstTensorView dmixed,
                                   auto...) {
    if constexpr (of_cpu) static_cast<void>(cpu::mixing_workspace(context, shape, true));
    tell_state_space(context, {.name = "mix_tokens_backward"}, dmixed, 2 * shape.channels(), shape.channels());
  };
  kernels.scan_tokens_forward = [](KernelContext& context, const StateSpaceShape& shape, ConstTensorView mixed,
                                   auto...) {
    take_scan_workspace<of_cpu>(context, shape, mixed.rows(), false);
    // States are written, passed on and read.
    tell_scan(context, shape, mixed,
              {.name = "scan_tokens_forward",
               .others = 0,
               .written = shape.inner(),
               .of_group = 1,
               .of_head = 1,
               .passes = 2,
               .states_read = 2,
               .states_written = 2},
              of_cpu);
  };
  kernels.scan_tokens_backward = [](KernelContext& context, const StateSpaceShape& shape, ConstTensorView dy, auto...) {
    take_scan_workspace<of_cpu>(context, shape, dy.rows(), true);
    // Both states and their gradients are written, passed on and read twice.
    tell_scan(context, shape, dy,
              {.name = "scan_tokens_backward",
               .others = shape.inner(),
               .written = shape.channels() + shape.heads,
               .of_group = 3,
               .of_head = 2,
               .passes = 5,
               .states_read = 6,
               .states_written = 4},
              of_cpu);
  };
  kernels.gated_norm_forward = [](KernelContext& context, const StateSpaceShape& shape, ConstTensorView y, auto...) {
    tell_state_space(context, {.name = "gated_norm_forward"}, y, 2 * shape.inner(), shape.inner());
  };
  kernels.gated_norm_backward = [](KernelContext& context, const StateSpaceShape& shape, ConstTensorView dout,
                                   auto...) {
    tell_state_space(context, {.name = "gated_norm_backward"}, dout, 3 * shape.inner(), 2 * shape.inner());
  };
}

// A factor with one scale is read twice: for the scale, and to be rounded. Scales are not counted.
void dry_round_to_float8(KernelContext& context, std::span<const Float8Factor> factors) {
  KernelCall call{.name = "round_to_float8"};
  for (const Float8Factor& factor : factors) {
    call.read += (factor.each == ScaledBlock::all ? 2 : 1) * factor.source.bytes();
    call.written += factor.rounded.bytes();
  }
  tell(context.stream, call);
}

void dry_move_blocks(KernelContext& context, ConstTensorView source, std::span<const std::int64_t>,
                     std::span<const std::int64_t>, std::span<const std::int64_t> counts, TensorView) {
  const std::int64_t rows = std::reduce(counts.begin(), counts.end());
  const std::int64_t bytes = rows * source.columns() * size_of(source.dtype());
  tell(context.stream, {.name = "move_blocks", .read = bytes, .written = bytes});
}

void dry_sort_of_cpu(KernelContext& context, ConstTensorView indices, bool, TensorView counts, TensorView slots) {
  static_cast<void>(cpu::sort_workspace(context, counts.size()));
  tell(context.stream, {.name = "sort_by_expert", .read = indices.bytes(), .written = counts.bytes() + slots.bytes()});
}

}  // namespace

LayerKernels dry_layer_kernels(DryWorkspace workspace, const GpuKernelOptions& gpu) {
  LayerKernels kernels{dry_attention(workspace, gpu)};
#define WEFT_DRY_KERNEL(name) kernels.name = DryKernel<#name>();
  WEFT_FOR_LAYER_KERNELS(WEFT_DRY_KERNEL)
  kernels.limit_choices = DryKernel<"limit_choices", Writes::onto>();
  kernels.spread_slots = DryKernel<"spread_slots", Writes::onto>();
  kernels.add_dropped = DryKernel<"add_dropped", Writes::onto>();
  kernels.shift_vocabulary_sums = DryKernel<"shift_vocabulary_sums", Writes::onto>();
  kernels.auxiliary_loss_backward = DryKernel<"auxiliary_loss_backward", Writes::onto>();
  kernels.z_loss = DryKernel<"z_loss", Writes::onto>();
  kernels.add_counts = DryKernel<"add_counts", Writes::onto>();
  kernels.unpermute_rows = DryKernel<"unpermute_rows", Writes::onto>();
  kernels.embedding_forward = dry_embedding_forward;
  kernels.embedding_backward = dry_embedding_backward;
  kernels.round_to_float8 = dry_round_to_float8;
  kernels.move_blocks = dry_move_blocks;
  set_rotary(kernels);
  if (workspace == DryWorkspace::of_cpu) {
    kernels.sort_by_expert = dry_sort_of_cpu;
    set_state_space<true>(kernels);
  } else {
    set_state_space<false>(kernels);
  }
  return kernels;
}

std::unique_ptr<MatrixProducts> make_dry_matrix_products(DryWorkspace workspace, Stream& stream, MemoryLedger& ledger) {
  if (workspace == DryWorkspace::of_cpu) return std::make_unique<DryProducts>(stream, Tensor());
  return std::make_unique<DryProducts>(
      stream, ledger.allocate(Bucket::workspace, DType::int32, product_workspace_bytes / 4, 1 + product_side_streams));
}

}  // namespace weft
