// The output files of a run. config.toml is written before the first step, a line of metrics.jsonl after each step, and
// a record of an event file after each reported step. summary.json comes at the end. If [profiling] asks for it,
// trace_rank<R>.json comes after the last recorded step. All files except those that grow are replaced as a whole
// (temporary file and rename). A lock keeps a second run out of the directory.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/file_descriptor.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/compute_times.h"
#include "trainer/rank/metrics.h"
#include "trainer/rank/step_trace.h"
#include "trainer/run/event_file.h"

namespace weft {

// The wall time of a run by what it went to. Each moment belongs to one part, so the parts sum to the wall time.
// start_up: until the first step; planning, starting ranks, loading. data_wait: ranks stand still for text.
// checkpoints: the run waits for a save. other: metrics, comparisons of copies, and the end of the run.
enum class RunPart : std::uint8_t { start_up, data_wait, steps, checkpoints, validation, other };
constexpr auto enum_names(RunPart) {
  return name_list("start_up", "data_wait", "steps", "checkpoints", "validation", "other");
}

// As the rank sees it that has the timer. Not thread-safe.
class RunTimer {
 public:
  // The time since the last call, or since construction, went to `part`.
  void add(RunPart part);
  // Of the time that went to steps, these seconds went to `part`.
  void take_from_steps(RunPart part, double seconds);

  double seconds(RunPart part) const { return seconds_[static_cast<std::size_t>(part)]; }
  // From construction to the last add().
  double wall_seconds() const { return std::chrono::duration<double>(last_ - begin_).count(); }
  // The fraction of the wall time that went to steps.
  double goodput() const;
  // "12.3 s: start-up 1.2 s, steps 10.9 s, other 0.2 s; goodput 88.6 %": parts of at least a thousandth.
  std::string text() const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
  std::array<double, all_values<RunPart>.size()> seconds_ = {};
};

inline constexpr const char* run_lock_name = "run.lock";

// Allows one run at a time in a directory. It is an exclusive flock(2) on a file in it, which the kernel releases when
// the holder ends for any reason. The file of a killed run does not block; its content is used for messages only.
class RunLock {
 public:
  // Creates the directory if it does not exist; `key` is its key in the configuration. Throws Error (request) if it
  // cannot be created, or, naming process, host and start time of the holder, if the lock is held. The holder's files
  // are not changed.
  RunLock(const std::filesystem::path& directory, const char* key);

  // False if the file system has no locks.
  bool held() const { return held_; }

 private:
  FileDescriptor descriptor_;  // its end releases the lock; the file stays, since another run may have just opened it
  bool held_ = false;
};

// The measurements of a run over its steps, for the summary.
struct RunFigures {
  RunTotals totals;                              // of the steps of this process, without those before the checkpoint
  std::vector<BucketBytes> predicted, measured;  // by rank, at its largest peak of a step
  std::vector<RankCompute> compute = {};         // by rank (compare_ranks)
  std::vector<BucketBytes> byte_steps = {};      // by rank, of its program (live_integral)
  std::vector<HostBytes> host = {};              // by rank
  RunTimer timer = {};
};

// The facts of the run beside its steps, for the summary.
struct RunRecord {
  std::string command_line;
  std::string versions;
  std::string card = {};        // the GPU of rank 0; empty on a CPU
  std::string attention = {};   // its kernel (RankRun::attention)
  bool forced_balance = false;  // experts were dealt in turn (forces_balance)
  std::optional<RunHashes> hashes = {};
};

// The reason why the folder that `key` names cannot be created or written to; empty if it can. Leaves nothing behind.
std::string folder_fault(const std::filesystem::path& path, std::string_view key);

class RunDirectory {
 public:
  // Creates the directory and takes its lock (RunLock). Throws Error (request) if either is refused.
  explicit RunDirectory(const std::filesystem::path& path);

  // Before the first step: writes config.toml, and removes the metrics of steps after `step`, which are repeated; with
  // 0 all metrics and event files. Begins an event file if `events`. Returns a sentence if lines of earlier steps
  // cannot be read; they are left out. Throws as read_whole_file, before it writes, if the whole file cannot be read.
  std::optional<std::string> begin_after(std::int64_t step, const std::string& resolved_toml, bool events);
  // Before a recording: removes the traces of an earlier one, which may have had other ranks. Rank 0 calls it before
  // its first step; the others write after a later step, whose totals wait for rank 0.
  void remove_traces() const;

  const std::filesystem::path& path() const { return path_; }
  // False if the file system has no locks; then a second run in the directory is not refused.
  bool locked() const { return lock_.held(); }
  // Returns a sentence when writing metrics.jsonl begins to fail or works again; the run continues (LinesFile).
  std::optional<std::string> append(const StepMetrics& metrics);
  // The same for the event file, if there is one.
  std::optional<std::string> report(const StepMetrics& reported);
  // Of a run with a step. Throws Error (failure) if the summary, a line of metrics or a record could not be written.
  void summary(const RunFigures& figures, const RunRecord& record);

 private:
  std::filesystem::path path_;
  RunLock lock_;
  std::string configuration_;  // the checksum of config.toml
  std::optional<LinesFile> metrics_;
  std::optional<EventFile> events_;
};

// Writes the trace file of one rank to an existing directory. Several ranks may write at once.
void write_trace(const std::filesystem::path& directory, int rank, std::span<const TraceSpan> spans,
                 std::span<const TraceSpan> work = {}, const std::map<std::string, std::string>& hashes = {});

}  // namespace weft
