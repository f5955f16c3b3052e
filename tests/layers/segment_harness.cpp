#include "tests/layers/segment_harness.h"

#include <cstring>

#include "layers/attention.h"
#include "layers/embedding.h"
#include "layers/head.h"
#include "layers/kernels/rotary.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "parallel/comm/local.h"
#include "parallel/runtime/random.h"
#include "tests/layers/dropping_communicator.h"

namespace weft {
namespace {

std::size_t to_size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

Mesh mesh_of(const SegmentCase& the_case) {
  Degrees degrees;
  degrees.data_shard = the_case.data;
  degrees.tensor = the_case.tensor;
  degrees.expert = the_case.expert;
  return Mesh(degrees);
}

// Writes values to a float tensor of any dtype.
void write(TensorView tensor, std::span<const double> values) {
  require(tensor.size() == std::ssize(values), "one value an element");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    if (tensor.dtype() == DType::bfloat16) {
      tensor.as<bfloat16>()[i] = bfloat16(value);
    } else {
      tensor.as<float>()[i] = value;
    }
  }
}

// The rows of a global parameter that a rank holds. No segment splits columns.
Range box(const ParameterSpec& spec) {
  return {spec.row_begin * spec.global_columns, spec.size()};
}

std::unique_ptr<Communicator> group_of(Communicator& world, const Mesh& mesh, Group group) {
  const std::vector<int> ranks = mesh.group_of(group, world.rank());
  return world.split(ranks.front(), world.rank(), std::string(name_of(group)));
}

std::unique_ptr<Communicator> expert_group(Communicator& world, const SegmentCase& the_case,
                                           const RunOptions& options) {
  std::unique_ptr<Communicator> group = group_of(world, mesh_of(the_case), Group::ep);
  if (!options.drop_expert_row || world.rank() != 0) return group;
  return std::make_unique<DroppingCommunicator>(std::move(group), the_case.model.hidden_size);
}

// Adds what `counters` gained since `before`.
void add_traffic(PhaseTraffic& traffic, SegmentTraffic::When when, const CommunicationCounters& before,
                 const CommunicationCounters& counters) {
  for (const auto& [key, total] : counters) {
    const auto old = before.find(key);
    const CommunicationCount past = old == before.end() ? CommunicationCount{} : old->second;
    if (total == past) continue;
    CommunicationCount& entry = traffic[{when, key}];
    entry.count += total.count - past.count;
    entry.bytes += total.bytes - past.bytes;
  }
}

// One rank of a run of one segment.
class SegmentRank {
 public:
  SegmentRank(Communicator& world, const SegmentCase& the_case, const SegmentInputs& inputs, const RunOptions& options)
      : case_(the_case),
        inputs_(inputs),
        rank_(world, the_case, options),
        segment_(make_segment(the_case.kind, rank_.setup)),
        memory_(rank_.ledger, the_case.compute, segment_->parameters(), inputs.parameters),
        saved_(to_size(the_case.microbatches)) {
    outcome_.parameters = segment_->parameters();
    outcome_.declared_bytes = segment_->activation_bytes();
    outcome_.declared_traffic = segment_->traffic();
    outcome_.y.resize(saved_.size());
    outcome_.dx.resize(saved_.size());
    outcome_.kept_bytes.resize(saved_.size());
  }

  RankOutcome run(const RunOptions& options) {
    const std::int64_t live_before = rank_.ledger.live().total();
    const Schedule schedule = options.schedule.empty() ? one_at_a_time(case_.microbatches) : options.schedule;
    for (const Call& call : schedule) {
      if (options.poison_weights_before_weight_gradient && call.when == SegmentTraffic::When::backward_weight) {
        memory_.poison_weights();
      }
      const CommunicationCounters counters = rank_.tensor->counters();
      perform(call);
      add_traffic(outcome_.counted_traffic, call.when, counters, rank_.tensor->counters());
    }
    outcome_.leaked_bytes = rank_.ledger.live().total() - live_before;
    for (ConstTensorView gradient : memory_.gradients()) outcome_.gradients.push_back(values_of(gradient));
    outcome_.report = rank_.report;
    return std::move(outcome_);
  }

 private:
  void perform(const Call& call) {
    const auto m = to_size(call.microbatch);
    const auto global = to_size(rank_.data_index * case_.microbatches) + m;
    switch (call.when) {
      case SegmentTraffic::When::forward: {
        Tensor x;
        if (case_.kind != SegmentKind::embedding) x = rank_.slice_of(inputs_.x[global]);
        const std::int64_t before = rank_.ledger.live().total() - x.bytes();
        const MicrobatchInput input{inputs_.tokens[global], inputs_.targets[global]};
        const Tensor y = segment_->forward(rank_.context, memory_.weights(), input, std::move(x), saved_[m]);
        outcome_.kept_bytes[m] = rank_.ledger.live().total() - y.bytes() - before;
        outcome_.y[m] = values_of(y);
        return;
      }
      case SegmentTraffic::When::backward_input: {
        Tensor dy;
        if (case_.kind != SegmentKind::head) dy = rank_.slice_of(inputs_.dy[global]);
        outcome_.dx[m] =
            values_of(segment_->backward_input(rank_.context, memory_.weights(), std::move(dy), *saved_[m]));
        return;
      }
      case SegmentTraffic::When::backward_weight:
        segment_->backward_weight(rank_.context, memory_.gradients(), *saved_[m]);
        saved_[m].reset();
        return;
    }
  }

  const SegmentCase& case_;
  const SegmentInputs& inputs_;
  TestRank rank_;
  std::unique_ptr<Segment> segment_;
  ParameterMemory memory_;
  std::vector<std::unique_ptr<Saved>> saved_;
  RankOutcome outcome_;
};

}  // namespace

ModelConfig small_model() {
  ModelConfig model;
  model.blocks = {BlockKind::dense, BlockKind::moe};
  model.vocab_size = 13;
  model.hidden_size = 12;
  model.intermediate_size = 8;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 6;
  model.moe.num_experts = 4;
  model.moe.num_experts_per_tok = 2;
  model.moe.moe_intermediate_size = 5;
  return model;
}

SegmentSetup SegmentCase::setup(int rank) const {
  const Coordinates at = mesh_of(*this).coordinates(rank);
  return {model, compute, sequence_length, tokens(), tensor, at.tp, expert, at.ep};
}

std::unique_ptr<Segment> make_segment(SegmentKind kind, const SegmentSetup& setup) {
  switch (kind) {
    case SegmentKind::embedding:
      return make_embedding(setup);
    case SegmentKind::attention:
      return make_attention(setup, 0);
    case SegmentKind::mlp:
      return make_mlp(setup, 0);
    case SegmentKind::moe:
      return make_moe(setup, 0);
    case SegmentKind::head:
      return make_head(setup);
  }
  fail("a segment is one of five kinds");
}

Values draw(std::string_view name, std::int64_t count, DType dtype, double scale) {
  const RandomStream stream(11, name);
  Values values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(i)));
    values.push_back(dtype == DType::bfloat16 ? static_cast<float>(bfloat16(value)) : value);
  }
  return values;
}

void draw_parameters(const std::vector<ParameterSpec>& specs, DType compute, NamedValues& parameters) {
  for (const ParameterSpec& spec : specs) {
    const DType dtype = spec.family == Family::routing ? DType::float32 : compute;
    // Gains near one; projections that keep the scale of what they project; embeddings that tell tokens apart.
    const double scale = spec.global_columns == 1 ? 0.25 : spec.family == Family::embedding ? 1.0 : 0.375;
    Values values = draw(spec.name, spec.global_size(), dtype, scale);
    if (spec.global_columns == 1) {
      for (double& value : values) value = static_cast<float>(bfloat16(static_cast<float>(1.0 + value)));
    }
    parameters[spec.name] = std::move(values);
  }
}

SegmentInputs draw_inputs(const SegmentCase& the_case) {
  SegmentInputs inputs;
  SegmentCase alone = the_case;
  alone.data = alone.tensor = alone.expert = 1;
  draw_parameters(make_segment(alone.kind, alone.setup(0))->parameters(), the_case.compute, inputs.parameters);
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

Schedule one_at_a_time(int microbatches) {
  using When = SegmentTraffic::When;
  Schedule schedule;
  for (int m = 0; m < microbatches; ++m) {
    for (When when : {When::forward, When::backward_input, When::backward_weight}) schedule.push_back({when, m});
  }
  return schedule;
}

Values values_of(ConstTensorView tensor) {
  Values values;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    values.push_back(tensor.dtype() == DType::bfloat16 ? static_cast<float>(tensor.as<bfloat16>()[to_size(i)])
                                                       : tensor.as<float>()[to_size(i)]);
  }
  return values;
}

ParameterMemory::ParameterMemory(MemoryLedger& ledger, DType compute, const std::vector<ParameterSpec>& specs,
                                 const NamedValues& values) {
  std::int64_t in_units = 0, routing = 0;
  for (const ParameterSpec& spec : specs) (spec.family == Family::routing ? routing : in_units) += spec.size();
  weight_storage_ = ledger.allocate(Bucket::unsharded_parameters, compute, in_units, 1);
  routing_storage_ = ledger.allocate(Bucket::replicated_parameters, DType::float32, routing, 1);
  gradient_storage_ = ledger.allocate(Bucket::unsharded_gradients, DType::float32, in_units + routing, 1);
  write(gradient_storage_, Values(to_size(in_units + routing), 0.0));

  std::int64_t weight_at = 0, routing_at = 0, gradient_at = 0;
  for (const ParameterSpec& spec : specs) {
    const bool is_routing = spec.family == Family::routing;
    std::int64_t& at = is_routing ? routing_at : weight_at;
    const TensorView weight = (is_routing ? routing_storage_ : weight_storage_).view().rows_from(at, spec.size());
    const Range part = box(spec);
    write(weight, std::span(values.at(spec.name)).subspan(to_size(part.begin), to_size(part.count)));
    weights_.push_back(weight.reshaped(spec.rows, spec.columns));
    gradients_.push_back(
        gradient_storage_.view().rows_from(gradient_at, spec.size()).reshaped(spec.rows, spec.columns));
    at += spec.size();
    gradient_at += spec.size();
  }
}

void ParameterMemory::poison_weights() {
  for (Tensor* storage : {&weight_storage_, &routing_storage_}) {
    std::memset(storage->view().data(), 0xff, to_size(storage->bytes()));
  }
}

TestRank::TestRank(Communicator& world, const SegmentCase& the_case, const RunOptions& options)
    : setup(the_case.setup(world.rank())),
      data_index(mesh_of(the_case).data_index(world.rank())),
      tensor(group_of(world, mesh_of(the_case), Group::tp)),
      expert(expert_group(world, the_case, options)),
      rotary(
          ledger.allocate(Bucket::replicated_parameters, DType::float32, setup.sequence_length, setup.model.head_dim)),
      context{kernels, *tensor, *expert, rotary, the_case.loss_factor, report} {
  use_one_library_thread();
  rotary_table({{1, 1, setup.model.head_dim, setup.sequence_length}, setup.model.rope_theta, 0.0f, {}}, rotary);
  report.moe.resize(setup.model.blocks.size());
}

Tensor TestRank::slice_of(const Values& values) {
  const std::int64_t columns = setup.model.hidden_size, rows = setup.slice_tokens();
  Tensor slice = ledger.allocate(Bucket::activations, setup.compute, rows, columns);
  write(slice, std::span(values).subspan(to_size(setup.tensor_rank * rows * columns), to_size(rows * columns)));
  return slice;
}

std::vector<RankOutcome> run_segment(const SegmentCase& the_case, const SegmentInputs& inputs,
                                     const RunOptions& options) {
  std::vector<RankOutcome> outcomes(to_size(the_case.ranks()));
  run_local_ranks(the_case.ranks(),
                  [&](Communicator& world) {
                    outcomes[to_size(world.rank())] = SegmentRank(world, the_case, inputs, options).run(options);
                  },
                  {std::chrono::seconds(60)});
  return outcomes;
}

Outcome assemble(const SegmentCase& the_case, const std::vector<RankOutcome>& ranks) {
  Outcome whole;
  whole.y.resize(to_size(the_case.all_microbatches()));
  whole.dx.resize(to_size(the_case.all_microbatches()));
  const Mesh mesh = mesh_of(the_case);
  for (int rank = 0; rank < the_case.ranks(); ++rank) {
    const RankOutcome& part = ranks[to_size(rank)];
    // Ranks of a tensor group follow one another, so slices are appended in token order.
    for (std::size_t m = 0; m < part.y.size(); ++m) {
      const std::size_t global = to_size(mesh.data_index(rank) * the_case.microbatches) + m;
      whole.y[global].insert(whole.y[global].end(), part.y[m].begin(), part.y[m].end());
      whole.dx[global].insert(whole.dx[global].end(), part.dx[m].begin(), part.dx[m].end());
    }
    for (std::size_t i = 0; i < part.parameters.size(); ++i) {
      const ParameterSpec& spec = part.parameters[i];
      Values& gradient = whole.gradients[spec.name];
      gradient.resize(to_size(spec.global_size()), 0.0);
      const bool summed_over_tensor = spec.rows < spec.global_rows || spec.tensor_replicated ||
                                      spec.family == Family::routing || spec.family == Family::experts;
      if (!summed_over_tensor && mesh.coordinates(rank).tp != 0) continue;
      const std::size_t begin = to_size(box(spec).begin);
      for (std::size_t at = 0; at < part.gradients[i].size(); ++at) gradient[begin + at] += part.gradients[i][at];
    }
    whole.loss_sum += part.report.loss_sum;
    for (const MoeReport& moe : part.report.moe) {
      whole.auxiliary_loss += moe.auxiliary_loss;
      whole.z_loss += moe.z_loss;
      whole.expert_tokens.resize(std::max(whole.expert_tokens.size(), moe.expert_tokens.size()), 0);
      for (std::size_t e = 0; e < moe.expert_tokens.size(); ++e) whole.expert_tokens[e] += moe.expert_tokens[e];
    }
  }
  return whole;
}

}  // namespace weft
