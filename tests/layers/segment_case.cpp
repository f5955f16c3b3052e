#include "tests/layers/segment_case.h"

#include <iterator>

#include "layers/context_parallel.h"
#include "layers/prediction.h"
#include "layers/segments.h"
#include "parallel/runtime/element_type.h"
#include "parallel/runtime/random.h"

namespace weft {
namespace {

// The family whose dtype a segment may have beside that of the dense parts.
Family own_family(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::embedding:
      return Family::embedding;
    case SegmentKind::moe:
      return Family::experts;
    case SegmentKind::merge:
      return Family::embedding;
    case SegmentKind::predict:
    case SegmentKind::head:
      return Family::head;
    default:
      return Family::dense;
  }
}

float rounded(float value, DType dtype) {
  with_element_type(dtype, [&](auto element) { value = static_cast<float>(decltype(element)(value)); });
  return value;
}

}  // namespace

ModelConfig small_model() {
  ModelConfig model;
  model.blocks = {BlockKind::dense, BlockKind::moe, BlockKind::moe, BlockKind::moe};
  model.mtp_depth = 2;
  model.mtp_loss_coef = 3.0;
  model.vocab_size = 13;
  model.hidden_size = 12;
  model.intermediate_size = 8;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 6;
  model.state_space = {.num_heads = 4, .head_dim = 3, .state_size = 5, .n_groups = 2, .conv_kernel = 3};
  model.moe.num_experts = 4;
  model.moe.num_experts_per_tok = 2;
  model.moe.moe_intermediate_size = 5;
  return model;
}

Mesh SegmentCase::mesh() const {
  Degrees degrees;
  degrees.data_shard = data;
  degrees.context = context;
  degrees.tensor = tensor;
  degrees.expert = expert;
  degrees.expert_dispatch = expert_dispatch;
  degrees.expert_nodes = expert_nodes;
  return Mesh(degrees);
}

SegmentSetup SegmentCase::setup(int rank) const {
  const Coordinates at = mesh().coordinates(rank);
  SegmentSetup setup;
  setup.model = model;
  setup.compute = compute;
  setup.frozen = frozen;
  setup.recompute_cheap = recompute_cheap;
  setup.recompute_experts = recompute_experts;
  setup.keep_dispatch = keep_dispatch;
  setup.weights_at_experts = weights_at_experts;
  setup.embedding_compute = embedding_compute.value_or(compute);
  setup.expert_compute = expert_compute.value_or(compute);
  setup.head_compute = head_compute.value_or(compute);
  setup.sequence_length = sequence_length;
  setup.masks_documents = masks_documents;
  setup.context = context;
  setup.context_rank = at.cp;
  setup.microbatch_tokens = tokens() / context;
  setup.tensor = tensor;
  setup.tensor_rank = at.tp;
  setup.expert = expert;
  setup.expert_rank = at.ep;
  setup.expert_relay = mesh().degrees().expert_relay();
  setup.relays_all_tokens = expert_dispatch == ExpertDispatch::all_gather;
  return setup;
}

std::vector<std::int64_t> SegmentCase::rows_of(int rank) const {
  std::vector<std::int64_t> rows;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (const Range& run : context_runs(sequence_length, context, mesh().coordinates(rank).cp)) {
      for (std::int64_t i = 0; i < run.count; ++i) rows.push_back(sequence * sequence_length + run.begin + i);
    }
  }
  return rows;
}

DType SegmentCase::coarsest() const {
  const SegmentSetup all = setup(0);
  const DType own = all.dtype_of(own_family(kind));
  for (DType dtype : {DType::bfloat16, DType::float16}) {
    if (compute == dtype || own == dtype) return dtype;
  }
  return DType::float32;
}

bool SegmentCase::mixed() const {
  return setup(0).dtype_of(own_family(kind)) != compute;
}

SegmentCase with_dtypes(SegmentCase the_case, MixedDtypes dtypes) {
  the_case.compute = dtypes.compute;
  the_case.embedding_compute = the_case.expert_compute = the_case.head_compute = dtypes.family;
  return the_case;
}

SegmentCase full_case(SegmentKind kind, int data, int tensor, int expert) {
  SegmentCase the_case{.kind = kind, .model = small_model(), .data = data, .tensor = tensor, .expert = expert};
  ModelConfig& model = the_case.model;
  model.num_attention_heads = 8;
  model.num_key_value_heads = 4;
  // A gated norm over three products of two activations multiplies what its input is off by, unless they stay small
  // beside this.
  if (kind == SegmentKind::state_space) model.rms_norm_eps = 0.01;
  model.state_space.n_groups = 4;
  model.moe.shared_expert_intermediate_size = 8;
  model.moe.router_aux_loss_coef = 2.0;
  model.moe.router_z_loss_coef = 0.5;
  return the_case;
}

std::unique_ptr<Segment> make_segment(SegmentKind kind, const SegmentSetup& setup) {
  switch (kind) {
    case SegmentKind::embedding:
      return make_embedding(setup);
    case SegmentKind::attention:
      return make_attention(setup, 0);
    case SegmentKind::state_space:
      return make_state_space(setup, 0);
    case SegmentKind::mlp:
      return make_mlp(setup, 0);
    case SegmentKind::moe:
      return make_moe(setup, 0);
    case SegmentKind::merge:
      return make_merge(setup, setup.model.layers(), std::make_shared<PredictionTrunk>());
    case SegmentKind::predict:
      return make_predict(setup, setup.model.layers(), std::make_shared<PredictionTrunk>());
    case SegmentKind::head:
      return make_head(setup);
  }
  fail("a segment is one of eight kinds");
}

Values draw(std::string_view name, std::int64_t count, DType dtype, double scale) {
  const RandomStream stream(11, name);
  Values values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(i)));
    values.push_back(rounded(value, dtype));
  }
  return values;
}

void draw_parameters(const std::vector<ParameterSpec>& specs, const SegmentSetup& setup, NamedValues& parameters) {
  for (const ParameterSpec& spec : specs) {
    const DType dtype = setup.dtype_of(spec.family);
    // Gains near one; projections that keep the scale of what they project; embeddings that tell tokens apart.
    const double scale = spec.global_columns == 1 ? 0.25 : spec.family == Family::embedding ? 1.0 : 0.375;
    Values values = draw(spec.name, spec.global_size(), dtype, scale);
    if (spec.global_columns == 1) {
      for (double& value : values) value = static_cast<float>(bfloat16(static_cast<float>(1.0 + value)));
    }
    parameters[spec.name] = std::move(values);
  }
}

std::vector<std::int32_t> shifted(std::span<const std::int32_t> ids, std::int64_t sequence_length,
                                  std::int64_t distance, std::int32_t none) {
  std::vector<std::int32_t> result(ids.size(), none);
  for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
    if (i % sequence_length + distance < sequence_length) result[to_size(i)] = ids[to_size(i + distance)];
  }
  return result;
}

std::uint32_t noise_key(std::int64_t row) {
  return static_cast<std::uint32_t>(row * 0x12345677 + 99);
}

long double noise_factor(std::uint64_t key, std::uint64_t column, float noise) {
  constexpr std::uint64_t range = std::uint64_t{1} << 32;
  std::uint64_t bits = key ^ column * 0x9e3779b9 % range;
  bits = (bits ^ bits / 65536) * 0x85ebca6b % range;
  bits = (bits ^ bits / 8192) * 0xc2b2ae35 % range;
  bits ^= bits / 65536;
  return 1.0L + static_cast<long double>(noise) * (static_cast<long double>(bits / 256) / (1 << 23) - 1.0L);
}

SegmentInputs draw_inputs(const SegmentCase& the_case) {
  SegmentInputs inputs;
  SegmentCase alone = the_case;
  alone.data = alone.tensor = alone.expert = alone.context = 1;
  const SegmentSetup setup = alone.setup(0);
  draw_parameters(make_segment(alone.kind, setup)->parameters(), setup, inputs.parameters);
  const std::int64_t elements = the_case.tokens() * the_case.model.hidden_size;
  for (int g = 0; g < the_case.all_microbatches(); ++g) {
    inputs.x.push_back(draw(fmt::format("x {}", g), elements, the_case.compute));
    inputs.dy.push_back(draw(fmt::format("dy {}", g), elements, the_case.compute));
    const RandomStream text(11, fmt::format("text {}", g));
    const auto vocabulary = static_cast<std::uint64_t>(the_case.model.vocab_size);
    inputs.tokens.emplace_back();
    inputs.targets.emplace_back();
    for (std::int64_t t = 0; t < the_case.tokens(); ++t) {
      inputs.tokens.back().push_back(static_cast<std::int32_t>(text.bits(to_size(2 * t)) % vocabulary));
      inputs.targets.back().push_back(static_cast<std::int32_t>(text.bits(to_size(2 * t + 1)) % vocabulary));
    }
  }
  return inputs;
}

}  // namespace weft
