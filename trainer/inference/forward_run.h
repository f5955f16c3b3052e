// One rank of a model without training: memory, groups, stages with weights, and a forward program. The loss of such a
// model on held-out text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "trainer/config/config.h"
#include "trainer/rank/forward_plan.h"
#include "trainer/rank/launch.h"
#include "trainer/rank/metrics.h"
#include "trainer/rank/rank_groups.h"
#include "trainer/rank/rank_stages.h"

namespace weft {

class HeldOutWindows;

// Writes weights into the rows that a rank owns. Called on every rank after its stages are made, with the stream of its
// compute lane. The rows have the initial values of run.seed before.
using FillWeights = std::function<void(RankStages&, Stream&)>;

class ForwardRun {
 public:
  // Collective over the context's world. `config` is from for_inference(). The arguments outlive the run.
  ForwardRun(const Config& config, const Mesh& mesh, ForwardPlan plan, const FillWeights& fill_weights,
             const RankContext& context);

  // Replaces the plan by another plan of the same configuration, with microbatches of another shape and the same units.
  void replace(ForwardPlan plan);
  // Executes the program. Collective over the world. `generation` is passed to segments that generate. The batch, the
  // report's tensors and `generation` stay valid until the pass is over.
  void pass(const StepBatch& batch, StepReport report, GenerationState* generation = nullptr);

  Communicator& world() { return groups_.on(Lane::compute, Group::world); }
  KernelContext& kernels() { return kernels_; }
  MemoryLedger& ledger() { return ledger_; }
  const ForwardPlan& plan() const { return plan_; }
  RankStages& stages() { return *stages_; }

 private:
  ForwardPlan plan_;
  int pipeline_rank_;
  std::function<void(std::string_view)> begins_;
  PhaseClock& clock_;
  Lanes lanes_;
  MemoryLedger ledger_, host_ledger_;
  std::unique_ptr<MatrixProducts> products_;
  KernelContext kernels_;
  RankGroups groups_;
  std::unique_ptr<RankStages> stages_;
};

// Returns a function that fills a rank's stages with the weights of the checkpoint in `folder`, written by any layout.
// The ranks of this process share the open files. Throws Error (request) if the checkpoint cannot be read, has a
// changed text, or is of another model than `config`.
FillWeights weights_of_checkpoint(const std::filesystem::path& folder, const Config& config);

// Called after each pass with the windows read so far and those of the whole text, on the thread of this process's
// first rank.
using OnWindows = std::function<void(std::int64_t done, std::int64_t all)>;

// Runs the ranks of this process. `text` (held_out.h) is of for_inference(). Each pass reads a global batch of windows;
// the global batch is reduced if the text has fewer windows. `fill_weights` as in ForwardRun. Throws Error with the
// first failure.
HeldOutLoss evaluate(const HeldOutWindows& text, const FillWeights& fill_weights = {},
                     const BackendFactory& make_backend = {}, const OnWindows& on_windows = {});

// Has `config` name the copy of its tokenizer in the checkpoint's `folder`, unless it names another tokenizer than that
// file. `config` was read from the config.toml there.
void take_kept_tokenizer(Config& config, const std::filesystem::path& folder);

}  // namespace weft
