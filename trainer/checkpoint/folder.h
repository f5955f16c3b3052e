// The folder of a run's checkpoints, with one folder per step, and how a checkpoint is published in it:
//
//   step-00001000/                      complete: has a manifest.json and was renamed after all files were on disk
//   step-00002000.tmp/                  being written, or left by a run that ended while writing
//   step-00000500.removed.tmp/          being removed, or left by a run that ended while removing
//   latest                              name of the newest checkpoint
//   best                                name of the checkpoint with the least validation loss, that loss, and a
//                                       checksum of the held-out text; on a second line those of the best before it
//   latest_checkpointed_iteration.txt   step of the newest checkpoint, for scripts made for Megatron
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct CheckpointFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
  bool operator==(const CheckpointFolder&) const = default;
};

std::string checkpoint_name(std::int64_t step);
// The step of a folder's name; none for every other name.
std::optional<std::int64_t> named_step(std::string_view name);
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* checkpoint_config_name = "config.toml";

// Complete checkpoints below `directory`, newest first; none if the directory does not exist. Throws Error (failure) if
// the directory or a checkpoint folder in it cannot be read: an unreadable checkpoint does not count as absent.
std::vector<CheckpointFolder> find_checkpoints(const std::filesystem::path& directory);
// Unfinished folders of a save or of the removal of a checkpoint, files of a trial, and partial files of `latest` and
// latest_checkpointed_iteration.txt.
std::vector<std::filesystem::path> find_unfinished(const std::filesystem::path& directory);
// A sentence on a checkpoint that seems to be missing among `complete`, found in `directory`, with the actions to take.
// Either a newer folder has tensors and no manifest, or `latest` names an absent newer checkpoint. Empty if there is no
// such sign. Throws Error (unreadable, failure) if `latest` cannot be read.
std::string find_lost_checkpoint(const std::filesystem::path& directory, const std::vector<CheckpointFolder>& complete);
// checkpoint.directory as config.toml in the directory `run` says; none if it is empty or unsaid there. A folder inside
// run.directory is inside `run`, which may have been moved. As for the run, another relative one is below the working
// directory.
std::optional<std::filesystem::path> said_checkpoints(const std::filesystem::path& run);
// The checkpoint for a path given by the user. It is the checkpoint itself, that of a file `best`, the newest in a
// folder of checkpoints, or the newest of a run's directory. Those of a run are its said_checkpoints, or in
// `checkpoints`. Its step is taken from the folder's name, 0 if the name has none. Throws Error (request) with the
// expected folders and files if there is no checkpoint, and if the newest is lost (find_lost_checkpoint).
CheckpointFolder resolve_checkpoint(const std::filesystem::path& path);

// The file that a rank writes and removes as a trial of whether checkpoints can be saved.
std::filesystem::path trial_path(const std::filesystem::path& directory, int rank);
// The folder that a save of `step` writes to; each rank creates it if it does not exist.
std::filesystem::path unfinished_path(const std::filesystem::path& directory, std::int64_t step);
// Exchanges two names atomically: returns 0, or -1 with errno. Not every file system supports it; tests pass a function
// that fails.
using ExchangeNames = std::function<int(const char* a, const char* b)>;
int exchange_names(const char* a, const char* b);
// Renames the folder of a save of `step` to its final name, atomically even if the name is taken, updates `latest` and
// flushes the folders. Throws Error (failure) if a step of this fails or if the folder has no manifest.
CheckpointFolder publish_checkpoint(const std::filesystem::path& directory, std::int64_t step,
                                    const ExchangeNames& exchange = exchange_names);

// Updates `latest` if it does not name `newest`. It is outdated if a run ended after the rename of publishing and
// before this update. Returns whether it was updated. Throws Error (failure).
bool point_latest_at(const CheckpointFolder& newest);

// Renames the folder before removing it, so that an interrupted removal leaves nothing that looks like a checkpoint. Of
// a symbolic link only the link is removed. A folder that cannot be renamed stays complete.
void remove_checkpoint(const std::filesystem::path& path);

// The checkpoint with the least validation loss.
struct BestCheckpoint {
  std::int64_t step = 0;
  double loss = 0.0;          // nats
  std::string held_out = {};  // checksum of the contents of the held-out text; empty if unknown
  bool operator==(const BestCheckpoint&) const = default;
};
// Writes `best`; the one found so far among earlier steps becomes its second line. Throws Error (failure).
void name_best(const std::filesystem::path& directory, const BestCheckpoint& best);
// Leaves in `best` what find_best() finds up to step `newest`. Removes a file that names other checkpoints alone.
// Throws Error as find_best(), and (failure) if the file cannot be written or removed.
void forget_best_after(const std::filesystem::path& directory, std::int64_t newest);
// The first in `best` whose checkpoint is there, of those up to step `newest`. Throws Error (unreadable, failure) if
// the file cannot be read.
std::optional<BestCheckpoint> find_best(const std::filesystem::path& directory,
                                        std::int64_t newest = std::numeric_limits<std::int64_t>::max());

// The checkpoints of `complete` (newest first) to remove. Kept are the newest `keep_latest`, those with a step that is
// a multiple of `keep_every`, and that of step `best`. keep_latest 0 keeps all; keep_every 0 keeps none of the older
// ones.
std::vector<CheckpointFolder> superseded(const std::vector<CheckpointFolder>& complete, std::int64_t keep_latest,
                                         std::int64_t keep_every, std::optional<std::int64_t> best = std::nullopt);

}  // namespace weft
