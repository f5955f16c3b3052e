// The files a run leaves behind: config.toml at the start, metrics.jsonl a line as soon as a step ends, summary.json at
// the end, and where [profiling] asks for it trace_rank<R>.json after the last step that is recorded. Files that are
// written whole appear whole (temporary file and rename).
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "trainer/rank/metrics.h"
#include "trainer/rank/step_trace.h"
#include "trainer/run/lines_file.h"
#include "trainer/run/run_lock.h"

namespace weft {

// Recorded in the summary.
struct RunRecord {
  std::string command_line;
  std::string versions;
};

// What keeps the directory from being created or written to; nothing is made to find that out. Empty where nothing
// does.
std::string run_directory_fault(const std::filesystem::path& path);

class RunDirectory {
 public:
  // Creates the directory and holds its lock (run_lock.h). Throws Error (request) when either is refused.
  RunDirectory(const std::filesystem::path& path, const std::string& resolved_toml);

  // Before the first step: the metrics of steps after `step`, which will be taken again, go; 0: all of them.
  void begin_after(std::int64_t step);

  const std::filesystem::path& path() const { return path_; }
  // false: the file system has no locks, and nothing keeps a second run out.
  bool locked() const { return lock_.held(); }
  // What is wrong with the file of metrics, when it changes; the run goes on (lines_file.h).
  std::optional<std::string> append(const StepMetrics& metrics);
  // Throws Error (failure) where the summary, or a line of metrics, is not in its file.
  void summary(const RunTotals& totals, std::span<const BucketBytes> predicted, std::span<const BucketBytes> measured,
               const RunRecord& record);

 private:
  std::filesystem::path path_;
  RunLock lock_;
  std::optional<LinesFile> metrics_;
};

// The file of one rank in an existing directory; ranks may write theirs at the same time.
void write_trace(const std::filesystem::path& directory, int rank, std::span<const TraceSpan> spans,
                 std::span<const TraceSpan> work = {});

}  // namespace weft
