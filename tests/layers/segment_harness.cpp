#include "tests/layers/segment_harness.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "parallel/comm/local.h"

namespace weft {
namespace {

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

// Puts a rank's slice of a microbatch where it stands among all tokens.
void place_slice(const SegmentCase& the_case, int rank, const Values& slice, Values& whole) {
  const SegmentSetup setup = the_case.setup(rank);
  const std::vector<std::int64_t> rows = the_case.rows_of(rank);
  const std::int64_t count = setup.slice_tokens(), columns = std::ssize(slice) / count;
  whole.resize(to_size(the_case.tokens() * columns), std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(slice.begin() + i * columns, columns,
                whole.begin() + rows[to_size(setup.tensor_rank * count + i)] * columns);
  }
}

// One rank of a run of one segment.
class SegmentRank {
 public:
  SegmentRank(Communicator& world, const SegmentCase& the_case, const SegmentInputs& inputs, const RunOptions& options)
      : case_(the_case),
        inputs_(inputs),
        forward_again_(options.forward_again),
        rank_(world, the_case, options.drop_expert_row),
        segment_(make_segment(the_case.kind, rank_.setup)),
        memory_(rank_.kernels, rank_.setup, segment_->parameters(), inputs.parameters),
        saved_(to_size(the_case.microbatches)) {
    for (std::size_t m = 0; m < saved_.size(); ++m) {
      const std::size_t global = to_size(rank_.data_index * the_case.microbatches) + m;
      text_.emplace_back(rank_.kernels, inputs.tokens[global], inputs.targets[global], the_case.sequence_length,
                         rank_.rows);
    }
    outcome_.parameters = segment_->parameters();
    outcome_.declared_bytes = segment_->activation_bytes();
    outcome_.declared_pending_bytes = segment_->pending_bytes();
    outcome_.even_bytes = segment_->even_bytes();
    outcome_.declared_traffic = segment_->traffic();
    outcome_.y.resize(saved_.size());
    outcome_.dx.resize(saved_.size());
    outcome_.kept_bytes.resize(saved_.size());
    outcome_.pending_bytes.resize(saved_.size());
  }

  RankOutcome run(const RunOptions& options) {
    const std::int64_t live_before = rank_.ledger.live().total();
    const Schedule schedule = options.schedule.empty() ? one_at_a_time(case_.microbatches) : options.schedule;
    for (const Call& call : schedule) {
      if (options.poison_weights_before_weight_gradient && call.when == SegmentTraffic::When::backward_weight) {
        memory_.poison_weights(*rank_.stream);
      }
      const CommunicationCounters counters = rank_.tensor->counters();
      perform(call);
      add_traffic(outcome_.counted_traffic, call.when, counters, rank_.tensor->counters());
    }
    outcome_.leaked_bytes = rank_.ledger.live().total() - live_before;
    for (const Gradient& gradient : memory_.gradients()) {
      outcome_.gradients.push_back(rank_.values_of(gradient.view));
    }
    for (ConstTensorView place : memory_.frozen_places()) {
      for (double value : rank_.values_of(place)) outcome_.frozen_untouched &= std::isnan(value);
    }
    outcome_.report = rank_.reported();
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
        const Tensor y = segment_->forward(rank_.context, memory_.weights(), text_[m].input(case_.masks_documents), std::move(x), saved_[m]);
        if (forward_again_) {
          inputs_kept_[m] = segment_->take_input(*saved_[m]);
          saved_[m] = segment_->remembered(std::move(saved_[m]));
        }
        outcome_.kept_bytes[m] = rank_.ledger.live().total() - y.bytes() - before;
        outcome_.y[m] = rank_.values_of(y);
        return;
      }
      case SegmentTraffic::When::backward_input: {
        Tensor dy;
        if (case_.kind != SegmentKind::head) dy = rank_.slice_of(inputs_.dy[global]);
        const std::int64_t others = rank_.ledger.live().total() - dy.bytes() - outcome_.kept_bytes[m];
        if (forward_again_) {
          LayerContext again = rank_.context;
          again.recomputing = true;
          segment_->forward(again, memory_.weights(), text_[m].input(case_.masks_documents), std::move(inputs_kept_[m]), saved_[m]);
        }
        const Weights weights = segment_->reads_weights_backward() ? memory_.weights() : Weights();
        const Tensor dx = segment_->backward_input(rank_.context, weights, std::move(dy), *saved_[m]);
        outcome_.pending_bytes[m] = rank_.ledger.live().total() - dx.bytes() - others;
        outcome_.dx[m] = rank_.values_of(dx);
        return;
      }
      case SegmentTraffic::When::backward_weight:
        segment_->backward_weight(rank_.context, memory_.gradients(), *saved_[m]);
        memory_.begun();
        saved_[m].reset();
        return;
    }
  }

  const SegmentCase& case_;
  const SegmentInputs& inputs_;
  const bool forward_again_;
  TestRank rank_;
  std::unique_ptr<Segment> segment_;
  ParameterMemory memory_;
  std::vector<TextMemory> text_;  // by microbatch of this rank
  std::vector<std::unique_ptr<Saved>> saved_;
  std::map<std::size_t, Tensor> inputs_kept_;  // by microbatch, from forward to forward again
  RankOutcome outcome_;
};

}  // namespace

Schedule one_at_a_time(int microbatches) {
  using When = SegmentTraffic::When;
  Schedule schedule;
  for (int m = 0; m < microbatches; ++m) {
    for (When when : {When::forward, When::backward_input, When::backward_weight}) schedule.push_back({when, m});
  }
  return schedule;
}

std::vector<RankOutcome> run_segment(const SegmentCase& the_case, const SegmentInputs& inputs,
                                     const RunOptions& options) {
  std::vector<RankOutcome> outcomes(to_size(the_case.ranks()));
  run_local_ranks(the_case.ranks(),
                  [&](Communicator& world) {
                    outcomes[to_size(world.rank())] = SegmentRank(world, the_case, inputs, options).run(options);
                  },
                  std::chrono::seconds(60));
  return outcomes;
}

Outcome assemble(const SegmentCase& the_case, const std::vector<RankOutcome>& ranks) {
  Outcome whole;
  whole.y.resize(to_size(the_case.all_microbatches()));
  whole.dx.resize(to_size(the_case.all_microbatches()));
  const Mesh mesh = the_case.mesh();
  for (int rank = 0; rank < the_case.ranks(); ++rank) {
    const RankOutcome& part = ranks[to_size(rank)];
    for (std::size_t m = 0; m < part.y.size(); ++m) {
      const std::size_t global = to_size(mesh.data_index(rank) * the_case.microbatches) + m;
      place_slice(the_case, rank, part.y[m], whole.y[global]);
      place_slice(the_case, rank, part.dx[m], whole.dx[global]);
    }
    for (std::size_t i = 0; i < part.parameters.size(); ++i) {
      const ParameterSpec& spec = part.parameters[i];
      Values& gradient = whole.gradients[spec.name];
      gradient.resize(to_size(spec.global_size()), 0.0);
      const bool summed_over_tensor = spec.rows < spec.global_rows || spec.tensor_replicated ||
                                      spec.family == Family::routing || spec.family == Family::experts;
      if (!summed_over_tensor && mesh.coordinates(rank).tp != 0) continue;
      const std::size_t begin = to_size(spec.row_begin * spec.columns);
      for (std::size_t at = 0; at < part.gradients[i].size(); ++at) gradient[begin + at] += part.gradients[i][at];
    }
    whole.loss_sum += part.report.loss_sum;
    for (const ReportedBlock& block : part.report.blocks) {
      whole.auxiliary_loss += block.auxiliary_loss;
      whole.z_loss += block.z_loss;
      whole.prediction_loss += block.prediction_loss;
      whole.null_choices += block.null_choices;
      whole.expert_tokens.resize(block.expert_tokens.size(), 0);
      for (std::size_t e = 0; e < block.expert_tokens.size(); ++e) whole.expert_tokens[e] += block.expert_tokens[e];
    }
  }
  return whole;
}

}  // namespace weft
