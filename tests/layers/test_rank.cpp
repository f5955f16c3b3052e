#include "tests/layers/test_rank.h"

#include <cstring>

#include "layers/kernels/rotary.h"
#include "tests/layers/dropping_communicator.h"

namespace weft {
namespace {

std::size_t to_size(std::int64_t n) {
  return static_cast<std::size_t>(n);
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

std::unique_ptr<Communicator> group_of(Communicator& world, const Mesh& mesh, Group group) {
  const std::vector<int> ranks = mesh.group_of(group, world.rank());
  return world.split(ranks.front(), world.rank(), std::string(name_of(group)));
}

std::unique_ptr<Communicator> expert_group(Communicator& world, const SegmentCase& the_case, bool drop_expert_row) {
  std::unique_ptr<Communicator> group = group_of(world, the_case.mesh(), Group::ep);
  if (!drop_expert_row || world.rank() != 0) return group;
  return std::make_unique<DroppingCommunicator>(std::move(group), the_case.model.hidden_size);
}

}  // namespace

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
    require(spec.columns == spec.global_columns, "a rank holds whole rows of a parameter");
    const bool is_routing = spec.family == Family::routing;
    std::int64_t& at = is_routing ? routing_at : weight_at;
    const TensorView weight = (is_routing ? routing_storage_ : weight_storage_).view().rows_from(at, spec.size());
    write(weight,
          std::span(values.at(spec.name)).subspan(to_size(spec.row_begin * spec.columns), to_size(spec.size())));
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

TestRank::TestRank(Communicator& world, const SegmentCase& the_case, bool drop_expert_row)
    : setup(the_case.setup(world.rank())),
      data_index(the_case.mesh().data_index(world.rank())),
      tensor(group_of(world, the_case.mesh(), Group::tp)),
      sequence(group_of(world, the_case.mesh(), Group::cp)),
      expert(expert_group(world, the_case, drop_expert_row)),
      expert_tensor(group_of(world, the_case.mesh(), Group::etp)),
      rotary(
          ledger.allocate(Bucket::replicated_parameters, DType::float32, setup.sequence_length, setup.model.head_dim)),
      context{kernels, *tensor, *sequence, *expert, *expert_tensor, rotary, the_case.loss_factor, report} {
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

}  // namespace weft
