// One rank's share in the checkpoints of a run. It has the checkpoint to resume from, the time of each save, and the
// agreement of all ranks on both.
//
// A save copies the rows that a rank owns, and training continues. A thread of the rank writes and flushes files to
// `step-N.tmp`. With the totals of the following steps the ranks report that their parts are written. When all parts
// are, rank 0 writes the manifest and renames the folder. If one rank fails, the save is discarded and the checkpoint
// before stays the newest. Only one save is in flight at a time. A save exchanges no tensors between ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/load.h"
#include "trainer/checkpoint/rank_writer.h"
#include "trainer/checkpoint/start.h"
#include "trainer/rank/step_totals.h"

namespace weft {

// Settings that all ranks of a run share.
struct CheckpointSetup {
  // Saved beside the tensors: the resolved configuration, and the files of the tokenizer.
  struct Text {
    std::string name, text;
  };
  std::vector<Text> texts = {};
  std::optional<RunHashes> hashes = {};  // for the manifest
  std::string held_out = {};             // checksum of the contents of the held-out text, with validation.keep_best
  // Called with messages about checkpoints, on the thread of the rank concerned.
  std::function<void(int rank, const std::string& text)> say = [](int, const std::string&) {};
  FileCalls calls = FileCalls::of_system();
};

class RankCheckpoints {
 public:
  // All arguments outlive the object. `data` are data_keys() of the run. The rows are changed on `compute`; `world` may
  // use another stream.
  RankCheckpoints(const Config& config, const KeyValues& data, std::vector<CheckpointRows> rows, Communicator& world,
                  Stream& compute, const CheckpointSetup& setup);

  // load(), end_step() and finish() are collective over the world.

  // Before the first step: fills the rows from the checkpoint that the run resumes from, if any, and returns its
  // progress. Throws Error (request) if there are checkpoints and none can be used.
  Progress load();
  // Behind a step, with the votes of all ranks. A save that rank 0 could not publish is none to any of them, and no
  // best.
  void heard(const RunVotes& votes);
  // Behind `step`, before end_step(): the loss of held-out text, equal on all ranks. With validation.keep_best the
  // least so far saves a checkpoint, which is kept until a better one is published.
  void validated(std::int64_t step, double loss);
  // Whether end_step() of this step will save: the configuration, a request or the least validation loss asks for it.
  bool saves_after(std::int64_t step, const RunVotes& votes) const;
  // At the end of a step, with the votes of all ranks from the step's totals.
  void end_step(const Progress& progress, const RunVotes& votes);
  // Saves at once, after the save in flight, unless that was of this step: for a run that ends before its last step.
  // Collective over the world.
  void save(const Progress& progress);
  // After the last step: waits for the save in flight. Throws Error (failure) if the last save failed.
  void finish();

  // This rank's votes on the save in flight, for the totals of the next step. Requests are added by the caller.
  RunVotes votes();
  // Fence that work which changes the rows must wait for. Blocks if checkpoint.host_memory is smaller than the bytes
  // that this rank saves.
  Fence copied() { return writer_ == nullptr ? nullptr : writer_->copied(); }

 private:
  // Behind the trial files of all ranks, of which rank 0 wrote its own before a barrier. Throws Error (request) on all
  // ranks if one was `refused` its own, or does not see that of rank 0: it has another folder. On a file system over a
  // network, a rank must see a file that was there before it changed the folder itself.
  void require_place_for_saves(const std::optional<std::string>& refused);
  // Rank 0 only: the keys with other values than in the checkpoint, as changed_values() tells them.
  std::vector<std::string> changes_since(const std::filesystem::path& from) const;
  // Rank 0 only: names the keys that changed since the checkpoint was saved, the first few of them.
  void tell_changes(const CheckpointFolder& from) const;
  // The best of the checkpoints that a run goes on from, as rank 0 sees it; none if the held-out text is another.
  std::optional<BestCheckpoint> best_until(std::int64_t step);
  // Rank 0 only: removes unfinished folders. `latest` names the run's own checkpoint that it goes on from, if any, and
  // those that it supersedes are removed.
  void tidy_up(const std::vector<std::filesystem::path>& unfinished, const CheckpointFolder* resumed) const;
  // Returns nothing if the candidate is damaged for one of the ranks. Throws Error on all ranks if the system keeps one
  // of them from reading it.
  std::optional<PlannedStart> try_load(const CheckpointFolder& candidate, const StartingPoint& from);
  // Waits until this rank has written its part, or has failed to.
  void finish_own_part();
  // Ends the save in flight if all ranks have reported: `written` ranks have written their parts, `failed` have not.
  void settle(std::int64_t written, std::int64_t failed);
  // Waits until all ranks have finished the save in flight and rank 0 has published it. Collective over the world.
  void conclude();
  // Rank 0 only, on the writer's thread: the last step of a save. Joins the parts in the folder of the save, writes the
  // manifest, renames the folder and removes superseded checkpoints. Throws Error (failure); if the new checkpoint is
  // not published, all earlier ones stay. `best`: if this is the one.
  void publish(std::int64_t step, const std::optional<BestCheckpoint>& best) const;
  // Rank 0 only: removes the checkpoints that those up to step `newest` supersede.
  void remove_superseded(std::int64_t newest) const;
  // Rank 0 only: reports the result of publishing.
  void report(const std::optional<std::string>& failure);

  const Config& config_;
  const KeyValues& data_;
  std::filesystem::path directory_;
  std::vector<CheckpointRows> rows_;
  Communicator& world_;
  Stream& compute_;
  const CheckpointSetup& setup_;
  std::unique_ptr<RankWriter> writer_;  // made by the first save
  Manifest part_;                       // made by the first save: mesh and keys of the run for a rank's part

  std::optional<BestCheckpoint> best_;            // the least validation loss
  std::optional<BestCheckpoint> saved_best_;      // the same of those that all ranks have written
  std::optional<BestCheckpoint> best_before_;     // the same without the last of these
  std::optional<BestCheckpoint> best_under_way_;  // what the save under way is, if it is the best
  std::optional<Progress> under_way_;             // of the save that some ranks have not written yet
  std::optional<std::int64_t> saved_;   // step of the last save that all ranks have written, or that was loaded
  std::optional<bool> own_part_;        // whether this rank could write its part of that save, once known
  std::optional<Progress> publishing_;  // of the save being published; rank 0 only
  bool unpublished_ = false;            // that failed, and other ranks do not know yet; rank 0 only
  std::optional<std::string> failure_;  // of the last save
};

}  // namespace weft
