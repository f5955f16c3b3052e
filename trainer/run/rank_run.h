// A rank that trains. It reads its text, executes the step and sums the measurements over all ranks, so that every rank
// has the same metrics.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/data/data.h"
#include "trainer/rank/checkpoint_rows.h"
#include "trainer/rank/compute_times.h"
#include "trainer/rank/launch.h"
#include "trainer/rank/metrics.h"
#include "trainer/rank/rank_step.h"
#include "trainer/rank/router_helpers.h"
#include "trainer/rank/spikes.h"
#include "trainer/rank/step_totals.h"
#include "trainer/rank/step_trace.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/held_out.h"

namespace weft {

// Reports the name of each action that begins to RankContext::begins, if it is given.
class AnnouncedActions final : public ActionObserver {
 public:
  using Begins = std::function<void(std::string_view action)>;
  AnnouncedActions(const Begins& begins, const Program& program, std::span<const Action> actions) : begins_(begins) {
    if (begins_) names_ = range_names(program, actions);
  }
  void begin(std::size_t action) override {
    if (begins_) begins_(names_[action]);
  }
  void end(std::size_t) override {}

 private:
  Begins begins_;
  std::vector<std::string> names_;  // by action
};

class RankRun {
 public:
  // Collective over `world`. The arguments outlive the run.
  RankRun(const ResolvedRun& run, const TokenDataset& data, NvtxDomain& domain, const RankContext& context);

  // The observer is told of every action of later steps, and outlives them.
  void observe(ActionObserver& observer) { watching_.push_back(&observer); }
  // One training step, collective over the world. Steps follow one another, from 1 or from the resumed progress. Every
  // rank gets the same metrics. After a spike that stops the run, its progress is that before the step.
  StepMetrics step(std::int64_t step, const RunVotes& votes = {});
  // The loss of held-out text with the parameters after the last step, for every rank. Collective over the world.
  // `text` is of without_training() of the run's configuration, the same in every call, and outlives the run. The
  // ledger's peak is then that of these forwards.
  HeldOutLoss held_out(const HeldOutWindows& text);
  // Throws Error (failure) if a parameter that all ranks of a stage have whole differs between them, or a selection
  // bias is not finite. Collective over the world, between steps.
  void compare_copies();
  // The votes of the last step, summed over all ranks.
  const RunVotes& votes() const { return votes_; }

  // Progress after the last step. resume() sets it, before the first step.
  Progress progress() const;
  void resume(const Progress& progress);
  // The rows of this rank's parameters and states in a checkpoint; the values are views, not copies.
  std::vector<CheckpointRows> checkpoint_rows();
  // `ask` is called by every later step; parameters and states do not change before the returned fence.
  void change_after(std::function<Fence()> ask) { change_after_ = std::move(ask); }

  Communicator& world() { return world_; }

  int rank() const { return world_.rank(); }
  RankStages& stages() { return rank_step_.stages(); }
  Stream& stream() { return rank_step_.stream(); }
  Lanes& lanes() { return rank_step_.lanes(); }
  MemoryLedger& ledger() { return rank_step_.ledger(); }
  PhaseClock& clock() { return clock_; }
  const Program& program() const { return rank_step_.program(); }
  std::span<const Action> actions() const { return rank_step_.actions(); }  // of this rank
  const StepProfiler& profiler() const { return *profiler_; }
  double compute_seconds() const { return compute_times_.seconds(); }  // of a step, to compare ranks by
  // Bytes of this rank at the peak of a step, as predicted and as measured in the step with the largest. Static buckets
  // (parameters, gradients that live all run, optimizer state) are exact to the byte on any device. On the CPU all
  // buckets are exact (dry_run.h), except for rows that a router sends to other ranks.
  const BucketBytes& predicted() const { return predicted_; }
  const BucketBytes& measured() const { return measured_; }
  // As planned, and as allocated.
  HostBytes host_bytes();
  // Description of the attention kernel on this rank.
  std::string attention();
  // Description of how the algorithms of matrix products were chosen; empty if there is no choice.
  const std::string& products() const { return products_; }

 private:
  // One rank's forwards over held-out text.
  struct HeldOut {
    ForwardPlan plan;
    HeldOutReader reader;
    AnnouncedActions announced;
  };

  // The ranks of this rank's stage, on the compute stream.
  Communicator& stage_ranks() { return rank_step_.groups().on(Lane::compute, Group::tokens); }
  // Chooses algorithms, and meets all that a step will ask of the GPU's libraries. What a library compiles, loads or
  // allocates in a step may wait for all that the GPU does. A message among it may be of a rank that waits likewise.
  // Waits for the device.
  void make_ready(Device& device);
  // Reads this rank's text of the batch that begins with sample `first`. A fault is kept for next_batch().
  void read_ahead(std::int64_t first);
  // The text that was read ahead goes to the device. Throws Error (failure) for a fault met when it was read.
  void next_batch();
  // Of the text that was read ahead, each token on one rank only.
  TextCounts counted_ahead() const;
  // Sums of the step in progress above which its update leaves the parameters as they are.
  SumLimits sum_limits() const;
  // The actions of the step, under the eyes of all observers.
  void walk();
  // Behind the update: its figures, and whether it counts. Moves loss scale, spike means, biases and progress on.
  StepMetrics end_update(const StepTotals& totals);
  // Throws Error (failure) on every rank, for a step whose norm is not finite. Ranks with a non-finite gradient before
  // the reduction name its parameter. The step, which has changed no parameter, is done again, to tell numbers that
  // text and parameters make from those of a faulty device.
  [[noreturn]] void fail_at_norm(double norm);
  double norm_of_step_done_again();

  const Config& config_;
  const Mesh& mesh_;
  const TokenDataset& data_;
  Communicator& world_;
  PhaseClock& clock_;
  RankStep rank_step_;
  std::unique_ptr<StepProfiler> profiler_;
  ComputeTimes compute_times_;
  AnnouncedActions::Begins begins_;
  AnnouncedActions announced_;
  std::unique_ptr<HeldOut> held_out_;  // made by the first call
  std::vector<ActionObserver*> watching_;
  std::string products_;
  LossScaler scaler_;
  SpikeWatch spikes_;
  RouterHelpers helpers_;
  double model_flops_;  // of a step, on one device
  std::optional<double> peak_flops_per_second_;
  // The text of the next step: read while this step's runs, so that all ranks know its counts when it begins.
  std::vector<std::int32_t> ahead_;
  std::optional<std::string> fault_ahead_;
  std::int64_t first_ahead_ = -1;  // sample with which ahead_ begins; -1: nothing was read
  TextCounts counts_;              // of ahead_ of all ranks
  Staging text_;
  BucketBytes predicted_, measured_;

  Progress progress_;  // after the last step; the valid values are in scaler_ and spikes_, where these have them
  std::function<Fence()> change_after_;
  RunVotes votes_;

  // The step in progress.
  std::int64_t step_ = 0;
};

}  // namespace weft
