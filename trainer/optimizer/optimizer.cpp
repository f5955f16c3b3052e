#include "trainer/optimizer/optimizer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/random.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/plan/gradient_norm.h"
#include "trainer/plan/state_layout.h"

namespace weft {
namespace {

std::int64_t place_in(ConstTensorView array, ConstTensorView part) {
  return (part.data() - array.data()) / size_of(array.dtype());
}

// Elements [begin, begin + count) of a run.
UpdateRows part_of(UpdateRows run, std::int64_t begin, std::int64_t count) {
  const auto part = [&](auto view) { return view.reshaped(view.size(), 1).rows_from(begin, count); };
  run.parameters = part(run.parameters);
  run.gradients = part(run.gradients);
  run.first_state = part(run.first_state);
  run.second_state = part(run.second_state);
  run.first_index += static_cast<std::uint64_t>(begin);
  return run;
}

void copy(Stream& stream, ConstTensorView from, TensorView to) {
  stream.device().copy(stream, from.data(), to.data(), from.bytes());
}

}  // namespace

void HostStates::add(TensorView first, TensorView second, std::span<const UpdateRows> rows) {
  for (std::int64_t begin = 0; begin < first.rows(); begin += chunk_elements_) {
    const std::int64_t size = std::min(chunk_elements_, first.rows() - begin);
    Chunk chunk{{first.rows_from(begin, size), second.rows_from(begin, size)}, {}, nullptr};
    for (const UpdateRows& run : rows) {
      if (run.gradients.empty()) continue;
      const std::int64_t place = place_in(first, run.first_state);
      require(place_in(second, run.second_state) == place, "both states of a run lie at the same place");
      const std::int64_t from = std::max(place, begin), to = std::min(place + run.parameters.size(), begin + size);
      if (from < to) chunk.rows.push_back(part_of(run, from - place, to - from));
    }
    if (!chunk.rows.empty()) chunks_.push_back(std::move(chunk));
    const std::int64_t bytes = host_chunk_bytes(size, first.dtype());
    if (buffers_.front().bytes() >= bytes) continue;
    for (Tensor& buffer : buffers_) {
      buffer.reset();
      buffer = ledger_.allocate(Bucket::optimizer_state, DType::bfloat16, bytes / size_of(DType::bfloat16), 1);
    }
  }
}

std::array<TensorView, 2> HostStates::buffer_of(std::size_t chunk) {
  const TensorView whole = buffers_[chunk % buffers_.size()];
  const TensorView& state = chunks_[chunk].states.front();
  const std::int64_t second = host_chunk_bytes(state.rows(), state.dtype()) / 2;
  return {TensorView(whole.data(), state.dtype(), state.rows(), 1),
          TensorView(whole.data() + second, state.dtype(), state.rows(), 1)};
}

void HostStates::make_update(std::size_t chunk, const OptimizerKernels& kernels, const std::vector<UpdateRule>& rules) {
  const auto buffer = buffer_of(chunk);
  std::vector<UpdateRows> rows = chunks_[chunk].rows;
  for (UpdateRows& run : rows) {
    const std::int64_t place = place_in(chunks_[chunk].states.front(), run.first_state);
    run.first_state = buffer[0].rows_from(place, run.parameters.size());
    run.second_state = buffer[1].rows_from(place, run.parameters.size());
  }
  chunks_[chunk].update = kernels.make_update(lanes_[Lane::compute], ledger_, std::move(rows), rules);
}

void HostStates::run(const OptimizerKernels& kernels, std::span<const GroupStep> groups,
                     const std::vector<UpdateRule>& rules, ConstTensorView gradient_scale) {
  Stream &compute = lanes_[Lane::compute], &arriving = lanes_[Lane::from_host], &leaving = lanes_[Lane::to_host];
  arriving.wait_for(compute);
  leaving.wait_for(compute);
  std::array<Fence, host_chunks_on_device> left = {};  // by buffer: its last chunk is back
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    Chunk& chunk = chunks_[c];
    if (chunk.update == nullptr) make_update(c, kernels, rules);
    const auto buffer = buffer_of(c);
    Fence& free = left[c % left.size()];
    arriving.wait(free);
    for (std::size_t state = 0; state < buffer.size(); ++state) copy(arriving, chunk.states[state], buffer[state]);
    compute.wait_for(arriving);
    chunk.update->run(compute, groups, gradient_scale, {});
    leaving.wait_for(compute);
    for (std::size_t state = 0; state < buffer.size(); ++state) copy(leaving, buffer[state], chunk.states[state]);
    free = leaving.record();
  }
  compute.wait_for(leaving);
}

Optimizer::Optimizer(const Config& config, const OptimizerKernels& kernels, const OptimizerGroups& groups,
                     MatrixProducts& products, const OptimizerMemory& memory, PhaseClock& clock)
    : config_(config),
      groups_(resolved_groups(config)),
      kernels_(kernels),
      world_(groups.world),
      stage_(groups.stage),
      products_(products),
      stream_(groups.world.stream()),
      ledger_(memory.device),
      host_ledger_(memory.host),
      clock_(clock),
      host_states_(memory.lanes, memory.device) {
  for (std::string& name : parameters_with_norms(config)) tensors_.try_emplace(std::move(name), std::ssize(tensors_));
  if (tensors_.empty()) return;
  norms_ = ledger_.allocate(Bucket::workspace, DType::float64, 2 * std::ssize(tensors_), 1);
}

void Optimizer::add(const PlannedUnit& unit, const std::vector<OwnedRows>& rows, const Mesh& mesh, int rank) {
  require(update_ == nullptr, "rows are added before the first step");
  if (!matrices_) {
    matrices_.emplace();
    for (auto& [group, plan] : muon_plans(config_, mesh, rank / mesh.degrees().stage_ranks())) {
      matrices_->push_back({group, std::move(plan), {}, nullptr});
    }
  }
  std::vector<UpdateRows> added;
  for (const OwnedRows& owned : rows) {
    const ParameterSpec& parameter = *owned.parameter;
    require(parameter.columns == parameter.global_columns, "rows are whole, or their elements have no common index");
    UpdateRows& run = added.emplace_back();
    run.parameters = owned.values;
    run.gradients = owned.gradients;
    run.group = static_cast<int>(update_group_of(parameter));
    run.first_index = static_cast<std::uint64_t>(owned.row_begin * parameter.global_columns);
    run.name_key = RandomStream(config_.run.seed, parameter.name).bits(0);
    run.counted = counts_unit(unit, mesh, rank) && counts_parameter(unit, parameter, mesh.coordinates(rank));
    if (const auto found = tensors_.find(parameter.name); found != tensors_.end()) run.tensor = found->second;
  }
  const auto is_trained = [](const UpdateRows& run) { return !run.gradients.empty(); };
  if (!added.empty() && std::ranges::none_of(added, is_trained)) return;
  for (const StateArray& array : state_arrays(groups_, unit)) {
    MemoryLedger& ledger = array.on_host ? host_ledger_ : ledger_;
    states_.push_back(ledger.allocate(Bucket::optimizer_state, array.dtype, array.elements, 1));
    const TensorView state = states_.back();
    fill(stream_, state, 0.0f);
    std::int64_t end = 0;
    std::vector<UpdateRows> on_host;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!array.keeps(groups_, unit, *rows[i].parameter)) continue;
      const std::int64_t size = rows[i].values.size(), begin = array.place(rows[i].offset, size, end);
      (array.state == 0 ? added[i].first_state : added[i].second_state) = state.rows_from(begin, size);
      if (!is_trained(added[i])) continue;
      const UpdateRule rule = groups_[static_cast<std::size_t>(added[i].group)].rule;
      kept_.push_back({rows[i], state_name(rule, array.state), state.rows_from(begin, size)});
      if (array.on_host && array.state == 1) on_host.push_back(added[i]);
    }
    // The array before has the first states of the same rows.
    if (array.on_host && array.state == 1) host_states_.add(states_[states_.size() - 2], state, on_host);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ParameterSpec& parameter = *rows[i].parameter;
    if (unit.host_states.contains(parameter.name)) continue;
    const auto whole = std::ranges::find_if(
        *matrices_, [&](const WholeMatrices& matrices) { return steps_by_muon(config_, parameter, matrices.group); });
    if (whole == matrices_->end()) {
      rows_.push_back(added[i]);
    } else {
      whole->rows.push_back({rows[i], added[i].first_state.reshaped(rows[i].rows, parameter.columns)});
    }
  }
}

void Optimizer::step_matrices(std::span<const GroupStep> steps, ConstTensorView gradient_scale) {
  if (!matrices_) return;  // no unit was added: nothing of the stage is trained
  for (WholeMatrices& matrices : *matrices_) {
    const OptimizerConfig& group = groups_[matrices.group];
    if (matrices.muon == nullptr) {
      matrices.muon =
          std::make_unique<Muon>(matrices.plan, group, matrices.rows, stage_, products_, kernels_.muon, ledger_);
    }
    matrices.muon->step(steps[static_cast<std::size_t>(matrices.group)], gradient_scale);
  }
}

void Optimizer::step(std::int64_t step, ConstTensorView gradient_scale) {
  std::vector<GroupStep> steps;
  std::vector<UpdateRule> rules;
  for (const OptimizerConfig& group : groups_) {
    const double rate = learning_rate(config_.lr_scheduler, group.learning_rate, step, config_.run.steps);
    steps.push_back({group.rule, rate, group.beta1, group.beta2, group.eps, group.weight_decay, group.momentum, step});
    rules.push_back(group.rule);
  }
  if (update_ == nullptr) update_ = kernels_.make_update(stream_, ledger_, rows_, rules);
  if (norms_.allocated()) {
    {
      const PhaseClock::Scope scope(clock_, Phase::optimizer, stream_);
      update_->norms(stream_, steps, gradient_scale, norms_);
    }
    world_.all_reduce(norms_);
  }
  {
    const PhaseClock::Scope scope(clock_, Phase::optimizer, stream_);
    update_->run(stream_, steps, gradient_scale, norms_);
    if (!host_states_.empty()) host_states_.run(kernels_, steps, rules, gradient_scale);
  }
  step_matrices(steps, gradient_scale);
}

}  // namespace weft
