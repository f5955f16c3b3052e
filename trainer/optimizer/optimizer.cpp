#include "trainer/optimizer/optimizer.h"

#include <algorithm>
#include <iterator>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/random.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/plan/gradient_norm.h"
#include "trainer/plan/state_layout.h"

namespace weft {

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
    for (GroupMatrices& planned : muon_plans(config_, mesh, rank / mesh.degrees().stage_ranks())) {
      matrices_->push_back({planned.group, std::move(planned.plan), {}, nullptr});
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

void Optimizer::step_matrices(std::int64_t step, ConstTensorView gradient_scale) {
  if (!matrices_) return;  // no unit was added: nothing of the stage is trained
  for (WholeMatrices& matrices : *matrices_) {
    const OptimizerConfig& group = groups_[matrices.group];
    if (matrices.muon == nullptr) {
      matrices.muon = std::make_unique<Muon>(matrices.plan, MuonOptions{group.muon_scale, group.newton_schulz},
                                             matrices.rows, stage_, products_, kernels_.muon, ledger_);
    }
    const double rate = learning_rate(config_.lr_scheduler, group.learning_rate, step, config_.run.steps);
    matrices.muon->step({rate, group.weight_decay, group.momentum}, gradient_scale);
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
  step_matrices(step, gradient_scale);
}

}  // namespace weft
