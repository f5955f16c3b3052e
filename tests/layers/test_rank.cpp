#include "tests/layers/test_rank.h"

#include <iterator>

#include "layers/context_parallel.h"
#include "layers/kernels/token_kernels.h"
#include "parallel/runtime/element_type.h"
#include "tests/layers/dropping_communicator.h"

namespace weft {
namespace {

// Writes values to a float tensor of any dtype.
void write_values(Stream& stream, TensorView tensor, std::span<const double> values) {
  with_element_type(tensor.dtype(), [&](auto element) {
    using T = decltype(element);
    std::vector<T> rounded;
    for (double value : values) rounded.emplace_back(static_cast<float>(value));
    write<T>(stream, rounded, tensor);
  });
}

Tensor allocate_text(KernelContext& kernels, std::span<const std::int32_t> ids) {
  Tensor text = kernels.ledger.allocate(Bucket::activations, DType::int32, std::ssize(ids), 1);
  write(kernels.stream, ids, text);
  return text;
}

std::unique_ptr<Communicator> group_of(Communicator& world, const Mesh& mesh, Group group, Stream& stream) {
  const std::vector<int> ranks = mesh.group_of(group, world.rank());
  return world.split(ranks.front(), world.rank(), std::string(name_of(group)), stream);
}

std::unique_ptr<Communicator> expert_group(Communicator& world, const SegmentCase& the_case, Stream& stream,
                                           bool drop_expert_row) {
  const bool relays = the_case.mesh().degrees().expert_relay() > 1;
  std::unique_ptr<Communicator> group = group_of(world, the_case.mesh(), relays ? Group::ep_inner : Group::ep, stream);
  if (!drop_expert_row || world.rank() != 0) return group;
  return std::make_unique<DroppingCommunicator>(std::move(group), the_case.model.hidden_size);
}

}  // namespace

ParameterMemory::ParameterMemory(KernelContext& kernels, const SegmentSetup& setup,
                                 const std::vector<ParameterSpec>& specs, const NamedValues& values) {
  MemoryLedger& ledger = kernels.ledger;
  Stream& stream = kernels.stream;
  std::map<Family, std::int64_t> sizes;
  std::int64_t all = 0;
  for (const ParameterSpec& spec : specs) {
    sizes[spec.family] += spec.size();
    all += spec.size();
  }
  for (const auto& [family, size] : sizes) {
    weight_storage_[family] = ledger.allocate(Bucket::unsharded_parameters, setup.dtype_of(family), size, 1);
  }
  gradient_storage_ = ledger.allocate(Bucket::unsharded_gradients, DType::float32, all, 1);
  poison(stream, gradient_storage_);

  std::map<Family, std::int64_t> weight_at;
  std::int64_t gradient_at = 0;
  for (const ParameterSpec& spec : specs) {
    require(spec.columns == spec.global_columns, "a rank holds whole rows of a parameter");
    std::int64_t& at = weight_at[spec.family];
    const TensorView weight = weight_storage_[spec.family].view().rows_from(at, spec.size());
    write_values(stream, weight,
                 std::span(values.at(spec.name)).subspan(to_size(spec.row_begin * spec.columns), to_size(spec.size())));
    weights_.push_back(weight.reshaped(spec.rows, spec.columns));
    const TensorView place = gradient_storage_.view().rows_from(gradient_at, spec.size());
    const bool trains = setup.trains(spec.family);
    gradients_.push_back({trains ? place.reshaped(spec.rows, spec.columns) : TensorView(), trains});
    if (!trains) frozen_.push_back(place);
    at += spec.size();
    gradient_at += spec.size();
  }
}

void ParameterMemory::poison_weights(Stream& stream) {
  for (auto& [family, storage] : weight_storage_) poison(stream, storage);
}

TextMemory::TextMemory(KernelContext& kernels, std::span<const std::int32_t> tokens,
                       std::span<const std::int32_t> targets, std::int64_t sequence_length,
                       const std::vector<std::int64_t>& rows) {
  const auto own = [&](std::span<const std::int32_t> ids) {
    std::vector<std::int32_t> picked;
    for (const std::int64_t row : rows) picked.push_back(ids[to_size(row)]);
    return allocate_text(kernels, picked);
  };
  std::vector<std::int32_t> keys;
  for (std::int64_t row = 0; row < std::ssize(tokens); ++row) {
    keys.push_back(static_cast<std::int32_t>(noise_key(row)));
  }
  noise_keys_ = own(keys);
  document_begins_ = own(std::vector<std::int32_t>(tokens.size(), 0));
  tokens_ = own(tokens);
  targets_ = own(targets);
  for (std::size_t k = 0; k < std::size(following_tokens_); ++k) {
    const auto distance = static_cast<std::int64_t>(k) + 1;
    following_tokens_[k] = own(shifted(tokens, sequence_length, distance, 0));
    following_targets_[k] = own(shifted(targets, sequence_length, distance, -1));
  }
}

MicrobatchInput TextMemory::input(bool masks_documents) const {
  MicrobatchInput input{tokens_, targets_};
  for (std::size_t k = 0; k < std::size(following_tokens_); ++k) {
    input.following.push_back({following_tokens_[k], following_targets_[k]});
  }
  input.noise_keys = noise_keys_;
  if (masks_documents) input.document_begins = document_begins_;
  return input;
}

TestRank::TestRank(Communicator& world, const SegmentCase& the_case, bool drop_expert_row)
    : setup(the_case.setup(world.rank())),
      data_index(the_case.mesh().data_index(world.rank())),
      rows(the_case.rows_of(world.rank())),
      tensor(group_of(world, the_case.mesh(), Group::tp, *stream)),
      sequence(group_of(world, the_case.mesh(), Group::cp, *stream)),
      expert(expert_group(world, the_case, *stream, drop_expert_row)),
      expert_relay(group_of(world, the_case.mesh(), Group::ep_relay, *stream)),
      expert_tensor(group_of(world, the_case.mesh(), Group::etp, *stream)),
      all_tokens(group_of(world, the_case.mesh(), Group::tokens, *stream)),
      rotary(
          ledger.allocate(Bucket::replicated_parameters, DType::float32, setup.local_sequence(), setup.model.head_dim)),
      report(ledger.allocate(Bucket::workspace, DType::float64,
                             StepReport::size(std::ssize(setup.model.blocks), setup.model.moe.num_experts), 1)),
      context{kernels,
              *tensor,
              *sequence,
              *expert,
              *expert_relay,
              *expert_tensor,
              *all_tokens,
              rotary,
              the_case.loss_factor,
              the_case.loss_factor,
              the_case.loss_factor * static_cast<double>(the_case.sequence_length),
              StepReport(report, setup.model.moe.num_experts),
              the_case.loss_scale} {
  write<float>(*stream,
               rotary_table({{1, 1, setup.model.head_dim, setup.sequence_length}, setup.model.rope_theta, 0.0f, {}},
                            context_runs(setup.sequence_length, setup.context, setup.context_rank)),
               rotary);
  write_bytes(*stream, report, 0);
}

Tensor TestRank::slice_of(const Values& values) {
  const std::int64_t columns = setup.model.hidden_size, count = setup.slice_tokens();
  Values own;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto begin = values.begin() + rows[to_size(setup.tensor_rank * count + i)] * columns;
    own.insert(own.end(), begin, begin + columns);
  }
  Tensor slice = ledger.allocate(Bucket::activations, setup.compute, count, columns);
  write_values(*stream, slice, own);
  return slice;
}

Values TestRank::values_of(ConstTensorView elements) {
  Values values;
  with_element_type(elements.dtype(), [&](auto element) {
    for (const auto value : read<decltype(element)>(*stream, elements)) values.push_back(static_cast<float>(value));
  });
  return values;
}

Reported TestRank::reported() {
  const auto number = [&](ConstTensorView value) { return read<double>(*stream, value).at(0); };
  Reported result{number(context.report.loss()), {}};
  for (int block = 0; block < static_cast<int>(setup.model.blocks.size()); ++block) {
    ReportedBlock& reported_block = result.blocks.emplace_back();
    reported_block.auxiliary_loss = number(context.report.auxiliary_loss(block));
    reported_block.z_loss = number(context.report.z_loss(block));
    reported_block.prediction_loss = number(context.report.prediction_loss(block));
    reported_block.null_choices = static_cast<std::int64_t>(number(context.report.null_choices(block)));
    for (double tokens : read<double>(*stream, context.report.expert_tokens(block))) {
      reported_block.expert_tokens.push_back(static_cast<std::int64_t>(tokens));
    }
  }
  return result;
}

}  // namespace weft
