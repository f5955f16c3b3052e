#include "trainer/checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/quantities.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/config/config_sources.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view name_prefix = "step-", trial_prefix = "try-", unfinished_suffix = ".tmp";
constexpr const char *latest_name = "latest", *latest_step_name = "latest_checkpointed_iteration.txt",
                     *best_name = "best";

template <typename Take>
void for_each_entry(const fs::path& directory, Take take) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    take(*entry);
  }
  const bool absent = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !absent) fail("the folder {} cannot be read: {}", directory.string(), error.message());
}

template <typename Take>
void for_each_folder(const fs::path& directory, Take take) {
  for_each_entry(directory, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) take(entry.path());
  });
}

bool has_manifest(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder / manifest_name, error);
  if (status.type() == fs::file_type::none) fail("{} cannot be looked into: {}", folder.string(), error.message());
  return fs::exists(status);
}

bool has_tensors(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") return true;
  }
  return false;
}

// The text of a file; empty if there is none, or something else has its name. One that cannot be read is not absent.
std::string text_if_there(const fs::path& file) {
  try {
    return read_whole_file(file.string());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::request) throw;
    return "";
  }
}

// The name in the file `latest`, without trailing white space.
std::optional<std::string> latest_in(const fs::path& directory) {
  const std::string text = text_if_there(directory / latest_name), name = text.substr(0, text.find('\n'));
  if (text.empty()) return std::nullopt;
  return name.substr(0, name.find_last_not_of(" \r\t") + 1);
}

// The lines of the file `best`, whether their checkpoints are there or not.
std::vector<BestCheckpoint> bests_in(const fs::path& directory) {
  std::vector<BestCheckpoint> bests;
  std::istringstream lines(text_if_there(directory / best_name));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, held_out;
    double loss = 0.0;
    if (!(words >> name >> loss)) continue;
    words >> held_out;  // older files have none
    if (const auto step = named_step(name)) bests.push_back({*step, loss, held_out});
  }
  return bests;
}

// Renames `from` to `to`. If `to` exists it gets the name `from`. If the file system cannot exchange names, `to` does
// not exist for a moment.
void take_place(const fs::path& from, const fs::path& to, const ExchangeNames& exchange) {
  const auto refuse = [&](int reason) {
    fail("{} cannot be renamed to {}: {}", from.string(), to.string(), std::strerror(reason));
  };
  std::error_code ignored;
  if (!fs::exists(to, ignored)) {
    if (rename(from.c_str(), to.c_str()) != 0) refuse(errno);
    return;
  }
  if (exchange(from.c_str(), to.c_str()) == 0) return;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) refuse(errno);
  const fs::path old = from.string() + ".replaced.tmp";
  fs::remove_all(old, ignored);
  if (rename(to.c_str(), old.c_str()) != 0) refuse(errno);
  if (rename(from.c_str(), to.c_str()) != 0) {
    const int reason = errno;
    rename(old.c_str(), to.c_str());  // restores the old folder if possible
    refuse(reason);
  }
  if (rename(old.c_str(), from.c_str()) != 0) refuse(errno);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}", name_prefix, step);
}

std::optional<std::int64_t> named_step(std::string_view name) {
  if (!name.starts_with(name_prefix)) return std::nullopt;
  name.remove_prefix(name_prefix.size());
  const auto step = parsed_number<std::int64_t>(name);
  // Only the spelling of checkpoint_name() counts, so that a step has exactly one name.
  const bool is_name = step && *step >= 0 && checkpoint_name(*step).substr(name_prefix.size()) == name;
  return is_name ? step : std::nullopt;
}

fs::path trial_path(const fs::path& directory, int rank) {
  return directory / fmt::format("{}{:05}{}", trial_prefix, rank, unfinished_suffix);
}

fs::path unfinished_path(const fs::path& directory, std::int64_t step) {
  return directory / (checkpoint_name(step) + std::string(unfinished_suffix));
}

std::vector<CheckpointFolder> find_checkpoints(const fs::path& directory) {
  std::vector<CheckpointFolder> found;
  for_each_folder(directory, [&](const fs::path& path) {
    const auto step = named_step(path.filename().string());
    if (step && has_manifest(path)) found.push_back({*step, path});
  });
  std::ranges::sort(found, std::greater(), &CheckpointFolder::step);
  return found;
}

std::vector<fs::path> find_unfinished(const fs::path& directory) {
  std::vector<fs::path> found;
  for_each_entry(directory, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    const bool folder = entry.is_directory(ignored) && name.starts_with(name_prefix);
    const bool trial = name.starts_with(trial_prefix) &&
                       (name.ends_with(unfinished_suffix) || name.ends_with(partial_path(unfinished_suffix).string()));
    const bool latest =
        name == partial_path(latest_name) || name == partial_path(latest_step_name) || name == partial_path(best_name);
    if (folder ? name.ends_with(unfinished_suffix) : trial || latest) found.push_back(entry.path());
  });
  std::ranges::sort(found);
  return found;
}

std::string find_lost_checkpoint(const fs::path& directory, const std::vector<CheckpointFolder>& complete) {
  const std::int64_t newest = complete.empty() ? -1 : complete.front().step;
  const std::string otherwise = complete.empty() ? "begin anew" : fmt::format("take {}", checkpoint_name(newest));
  fs::path lost;
  for_each_folder(directory, [&](const fs::path& path) {
    const auto step = named_step(path.filename().string());
    if (step && *step > newest && !has_manifest(path) && has_tensors(path)) lost = std::max(lost, path);
  });
  if (!lost.empty()) {
    return fmt::format(
        "{} has tensors and no {}: a copy that is not complete, or what is left of a checkpoint. Complete it, or "
        "remove the folder to {}",
        lost.string(), manifest_name, otherwise);
  }
  const std::optional<std::string> latest = latest_in(directory);
  if (!latest || named_step(*latest).value_or(newest + 1) <= newest) return {};
  return fmt::format("{} names {}, which is no checkpoint in {}. Bring it back, or remove that file to {}",
                     (directory / latest_name).string(), *latest, directory.string(), otherwise);
}

std::optional<fs::path> said_checkpoints(const fs::path& run) {
  const fs::path config = run / checkpoint_config_name;
  std::error_code absent;
  if (!fs::is_regular_file(config, absent)) return std::nullopt;
  const ConfigSources sources = gather_sources(config, read_text(config), {});
  const auto said = [&](const char* key) {
    const auto found = sources.entries.find(key);
    const auto* text = found == sources.entries.end() ? nullptr : std::get_if<std::string>(&found->second.value.data);
    return text == nullptr ? fs::path() : fs::path(*text);
  };
  const fs::path directory = said("checkpoint.directory");
  if (directory.empty()) return std::nullopt;
  // A run that was moved took along what is inside of it, however the two are spelled.
  const auto whole = [&](const fs::path& path) { return fs::absolute(path, absent).lexically_normal(); };
  const fs::path inside = whole(directory).lexically_relative(whole(said("run.directory")));
  return inside.empty() || *inside.begin() == ".." ? directory : run / inside;
}

CheckpointFolder resolve_checkpoint(const fs::path& path) {
  std::error_code error;
  const fs::path folder = path.filename().empty() ? path.parent_path() : path;
  if (folder.filename() == best_name && fs::is_regular_file(folder, error)) {
    const auto best = find_best(folder.parent_path());
    if (!best) fail_request("{} names no checkpoint that is there", folder.string());
    return {best->step, folder.parent_path() / checkpoint_name(best->step)};
  }
  if (!fs::is_directory(folder, error)) fail_request("{}: there is no such folder", folder.string());
  if (fs::exists(folder / manifest_name, error)) return {named_step(folder.filename().string()).value_or(0), folder};
  const auto said = said_checkpoints(folder);
  for (const fs::path& directory : {folder, said.value_or(folder / "checkpoints")}) {
    const auto found = find_checkpoints(directory);
    if (const std::string lost = find_lost_checkpoint(directory, found); !lost.empty()) {
      fail_request("{}, or name the checkpoint that is to be read", lost);
    }
    if (!found.empty()) return found.front();
  }
  if (said && !fs::exists(*said, error)) {
    fail_request(
        "{} says that its run saves to {} (checkpoint.directory), which is not there. Name a checkpoint, or call this "
        "where the run was started: a relative folder is below the working directory",
        (folder / checkpoint_config_name).string(), said->string());
  }
  if (fs::exists(folder / "metrics.jsonl", error)) {
    fail_request(
        "{} is the directory of a run that has no checkpoint: it ended before its first save, or saves nothing "
        "(checkpoint.at_end = false). Train it to its end, or with --checkpoint.interval=N, which saves every N steps",
        folder.string());
  }
  fail_request("{} is no checkpoint: it has no {}, and neither it nor {} has folders {}<number> with one",
               folder.string(), manifest_name, (folder / "checkpoints").string(), name_prefix);
}

int exchange_names(const char* a, const char* b) {
  return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

CheckpointFolder publish_checkpoint(const fs::path& directory, std::int64_t step, const ExchangeNames& exchange) {
  const fs::path unfinished = unfinished_path(directory, step), path = directory / checkpoint_name(step);
  std::error_code ignored;
  if (!fs::exists(unfinished / manifest_name, ignored)) fail("{} has no {}", unfinished.string(), manifest_name);
  flush_folder(unfinished);
  take_place(unfinished, path, exchange);
  flush_folder(directory);
  point_latest_at({step, path});
  fs::remove_all(unfinished, ignored);  // the folder that had the name `path` before
  return {step, path};
}

bool point_latest_at(const CheckpointFolder& newest) {
  const fs::path directory = newest.path.parent_path();
  if (latest_in(directory) == checkpoint_name(newest.step)) return false;
  replace_file(directory / latest_step_name, fmt::format("{}\n", newest.step));
  replace_file(directory / latest_name, checkpoint_name(newest.step) + "\n");
  flush_folder(directory);
  return true;
}

void remove_checkpoint(const fs::path& path) {
  const fs::path removed = path.string() + ".removed" + std::string(unfinished_suffix);
  std::error_code ignored;
  fs::remove_all(removed, ignored);
  if (rename(path.c_str(), removed.c_str()) != 0) return;
  // The new name is on disk before any file is removed.
  flush_folder(path.parent_path());
  fs::remove_all(removed, ignored);
}

void name_best(const fs::path& directory, const BestCheckpoint& best) {
  const auto line = [](const BestCheckpoint& one) {
    return fmt::format("{} {} {}\n", checkpoint_name(one.step), one.loss, one.held_out);
  };
  const std::optional<BestCheckpoint> before = find_best(directory, best.step - 1);
  replace_file(directory / best_name, line(best) + (before ? line(*before) : ""));
}

void forget_best_after(const fs::path& directory, std::int64_t newest) {
  if (const auto best = find_best(directory, newest)) return name_best(directory, *best);
  if (bests_in(directory).empty()) return;
  const fs::path file = directory / best_name;
  std::error_code error;
  fs::remove(file, error);
  if (error) fail("{} cannot be removed: {}", file.string(), error.message());
}

std::optional<BestCheckpoint> find_best(const fs::path& directory, std::int64_t newest) {
  for (const BestCheckpoint& best : bests_in(directory)) {
    std::error_code error;
    if (best.step <= newest && fs::exists(directory / checkpoint_name(best.step) / manifest_name, error)) return best;
  }
  return std::nullopt;
}

std::vector<CheckpointFolder> superseded(const std::vector<CheckpointFolder>& complete, std::int64_t keep_latest,
                                         std::int64_t keep_every, std::optional<std::int64_t> best) {
  std::vector<CheckpointFolder> rest;
  if (keep_latest == 0) return rest;
  for (std::size_t i = static_cast<std::size_t>(keep_latest); i < complete.size(); ++i) {
    const bool kept = (keep_every > 0 && complete[i].step % keep_every == 0) || complete[i].step == best;
    if (!kept) rest.push_back(complete[i]);
  }
  return rest;
}

}  // namespace weft
