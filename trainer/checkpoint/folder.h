// Where checkpoints stand and how one appears: a folder per step below the folder of a run's checkpoints,
//
//   step-00001000/       complete: it has a manifest.json and was renamed once everything was on disk
//   step-00002000.tmp/   being written, or left by a run that was ended while it wrote
//   step-00000500.removed.tmp/   being removed, or left by a run that was ended while it removed
//   latest               the name of the newest
//   latest_checkpointed_iteration.txt   its step, for scripts used to Megatron
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace weft {

struct CheckpointFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
  bool operator==(const CheckpointFolder&) const = default;
};

std::string checkpoint_name(std::int64_t step);
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* checkpoint_config_name = "config.toml";

// Complete ones below `directory`, newest first; none where there is no such directory. Throws Error (failure) for one
// that cannot be read, and for a checkpoint that cannot be looked into: that is not to have none.
std::vector<CheckpointFolder> find_checkpoints(const std::filesystem::path& directory);
// Folders that a save, or the removal of a checkpoint, has left unfinished, and files of a trial or of `latest`.
std::vector<std::filesystem::path> find_unfinished(const std::filesystem::path& directory);
// What keeps `complete`, found in `directory`, from being all that a run has saved, in a sentence with what to do: a
// newer folder with tensors and no manifest, or a `latest` that names what is not there. Empty where nothing does.
std::string find_lost_checkpoint(const std::filesystem::path& directory, const std::vector<CheckpointFolder>& complete);
// What somebody means by a path: a checkpoint itself, the newest below a folder of checkpoints, or that of a run's
// directory. Its step is what the folder's name says, 0 where that says nothing. Throws Error (request) saying what was
// looked for.
CheckpointFolder resolve_checkpoint(const std::filesystem::path& path);

// What a rank writes, and removes, to find out whether checkpoints can be saved.
std::filesystem::path trial_path(const std::filesystem::path& directory, int rank);
// The folder that a save of `step` writes to; each rank makes it where it is not there yet.
std::filesystem::path unfinished_path(const std::filesystem::path& directory, std::int64_t step);
// Exchanges two names in one step: 0, or -1 and errno. Not every file system can; tests put one in that cannot.
using ExchangeNames = std::function<int(const char* a, const char* b)>;
int exchange_names(const char* a, const char* b);
// Gives it its name, in one step even where that is taken, points `latest` at it, and flushes the folders. Throws Error
// (failure), also where it has no manifest.
CheckpointFolder publish_checkpoint(const std::filesystem::path& directory, std::int64_t step,
                                    const ExchangeNames& exchange = exchange_names);

// Has `latest` name a checkpoint, where it does not: a run that was ended between the two names of publishing leaves it
// behind. Whether it did. Throws Error (failure).
bool point_latest_at(const CheckpointFolder& newest);

// Takes the name away first, so that a removal that is cut short leaves nothing that passes for a checkpoint. Of a link
// the link goes, and nothing it points to. What cannot be renamed stays whole.
void remove_checkpoint(const std::filesystem::path& path);

// Which of `complete` (newest first) are not kept: all but the newest `keep_latest` and those whose step is a multiple
// of `keep_every`. 0 keeps all, and none for its own sake.
std::vector<CheckpointFolder> superseded(const std::vector<CheckpointFolder>& complete, std::int64_t keep_latest,
                                         std::int64_t keep_every);

}  // namespace weft
