// A rank that trains: it reads its text, walks the step, tells its peers what it measured, and gives everybody the same
// metrics.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/data/data.h"
#include "trainer/rank/checkpoint_rows.h"
#include "trainer/rank/launch.h"
#include "trainer/rank/loss_scaler.h"
#include "trainer/rank/metrics.h"
#include "trainer/rank/rank_step.h"
#include "trainer/rank/step_profiler.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

// Tells whoever started the rank what it begins to do.
class AnnouncedActions final : public ActionObserver {
 public:
  using Begins = std::function<void(std::string_view action)>;
  AnnouncedActions(Begins begins, std::vector<std::string> names)
      : begins_(std::move(begins)), names_(std::move(names)) {}
  void begin(std::size_t action) override { begins_(names_[action]); }
  void end(std::size_t) override {}

 private:
  Begins begins_;
  std::vector<std::string> names_;  // by action
};

class RankRun {
 public:
  // Collective over `world`. The arguments outlive the run.
  RankRun(const ResolvedRun& run, const TokenDataset& data, NvtxDomain& domain, const RankSeat& seat);

  // Hears of every action of the steps to come; outlives them.
  void observe(ActionObserver& observer) { watching_.push_back(&observer); }
  // One training step, collective over the world; `step` counts from 1, or from where the run goes on. Every rank gets
  // the same metrics.
  StepMetrics step(std::int64_t step, const RunVotes& votes = {});
  // What all ranks have brought to the last step's totals, `votes` of each added up.
  const RunVotes& votes() const { return votes_; }

  // How far the run has come, and going on from there: before the first step.
  Progress progress() const;
  void resume(const Progress& progress);
  // What is saved of this rank, in place.
  std::vector<CheckpointRows> checkpoint_rows();
  // Asked by every step to come, which changes nothing before the fence.
  void change_after(std::function<Fence()> ask) { change_after_ = std::move(ask); }

  Communicator& world() { return world_; }

  int rank() const { return world_.rank(); }
  RankStages& stages() { return rank_step_.stages(); }
  Stream& stream() { return rank_step_.stream(); }
  Lanes& lanes() { return rank_step_.lanes(); }
  MemoryLedger& ledger() { return rank_step_.ledger(); }
  PhaseClock& clock() { return clock_; }
  const Program& program() const { return rank_step_.program(); }
  const StepProfiler& profiler() const { return *profiler_; }
  const PredictedMemory& predicted() const { return predicted_; }
  // Buckets of this rank at the peak of the last step.
  const BucketBytes& measured() const { return measured_; }
  // What computes attention on this rank, in words.
  std::string attention();
  // How algorithms of matrix products were chosen, in words; nothing where there is one.
  const std::string& products() const { return products_; }

 private:
  void read_batch();
  // Every rank ends when the step's norm is not finite; the ranks on which it began say where.
  void require_finite(double norm);

  const Config& config_;
  const Mesh& mesh_;
  const TokenDataset& data_;
  Communicator& world_;
  PhaseClock& clock_;
  RankStep rank_step_;
  std::unique_ptr<StepProfiler> profiler_;
  std::optional<AnnouncedActions> announced_;
  std::vector<ActionObserver*> watching_;
  PredictedMemory predicted_;
  std::string products_;
  LossScaler scaler_;
  Staging text_;  // ids, then targets, of a step's microbatches
  BucketBytes measured_;

  Progress progress_;  // after the last step; of the scaler's numbers, scaler_ has those that count
  std::function<Fence()> change_after_;
  RunVotes votes_;

  // The step in progress.
  std::int64_t step_ = 0;
};

}  // namespace weft
