// The checkpoints of one run, as each of its ranks takes part in them: what the run goes on with, when it is saved, and
// the agreement of all ranks on both.
//
// A save copies what a rank owns and goes on; its thread writes and flushes files to `step-N.tmp`. The ranks tell each
// other with the totals of the next steps that they have written their parts; once all have, rank 0 writes the manifest
// and gives the folder its name. If one could not, nobody's part counts, and the checkpoint before stays the newest.
// One save is under way at a time. Tensors never travel between ranks for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/ledger.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/rank_writer.h"
#include "trainer/checkpoint/start.h"
#include "trainer/rank/step_totals.h"

namespace weft {

// What a run's ranks share.
struct CheckpointSetup {
  std::string config_text = {};  // the resolved configuration, saved beside the tensors
  // Told what happened to checkpoints, on the thread of the rank that it happened to.
  std::function<void(int rank, const std::string& text)> say = [](int, const std::string&) {};
  FileCalls calls = FileCalls::of_system();
};

class RankCheckpoints {
 public:
  // Everything handed in outlives the object. `data` are the run's (data_keys). The rows are changed on `compute`;
  // `world` may work elsewhere.
  RankCheckpoints(const Config& config, const KeyValues& data, std::vector<CheckpointRows> rows, Communicator& world,
                  Stream& compute, const CheckpointSetup& setup);

  // All collective over the world.

  // Before the first step: fills the rows with what the run goes on with, if there is anything, and says how far that
  // had come. Throws Error (request) where there are checkpoints and none can be used.
  Progress load();
  // At the end of a step, with what all ranks brought to its totals.
  void end_step(const Progress& progress, const RunVotes& votes);
  // After the last step: waits for what is under way. Throws Error (failure) when the last save failed.
  void finish();

  // What this rank brings to the totals of the next step, besides what it was asked.
  RunVotes votes();
  // Work that changes the rows waits for this. Blocks where checkpoint.host_memory is less than what a rank saves.
  Fence copied() { return writer_ == nullptr ? nullptr : writer_->copied(); }

 private:
  std::vector<double> sum(std::span<const double> own);
  // Throws Error (request) on all ranks where one cannot write where checkpoints go.
  void try_to_write();
  // Of rank 0.
  void tidy_up(const std::vector<std::filesystem::path>& unfinished, const StartingPoint& start) const;
  // Nothing: it is damaged for one of the ranks.
  std::optional<PlannedStart> try_load(const CheckpointFolder& candidate, bool weights_only);
  bool due(std::int64_t step) const;
  void save(const Progress& progress);
  // Waits until this rank has written its part, or has failed to.
  void finish_own_part();
  // What is under way has been written by so many ranks, and could not be by so many.
  void settle(std::int64_t written, std::int64_t failed);
  // Waits for what is under way, by asking everybody, and until it is published.
  void conclude();
  // Of rank 0: how publishing ended.
  void report(const std::optional<std::string>& failure);

  const Config& config_;
  const KeyValues& data_;
  std::filesystem::path directory_;
  std::vector<CheckpointRows> rows_;
  Communicator& world_;
  Stream& compute_;
  const CheckpointSetup& setup_;
  std::unique_ptr<RankWriter> writer_;  // made by the first save
  Manifest part_;                       // likewise: what a rank's part says of the run

  std::optional<Progress> under_way_;   // of the save that not everybody has written
  std::optional<bool> own_part_;        // of it: whether this rank could write its part, once it is known
  std::optional<Progress> publishing_;  // of rank 0
  std::optional<std::string> failure_;  // of the last save
};

}  // namespace weft
