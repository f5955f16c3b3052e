// The console output of a run: a banner, a line for each reported step, and a table at the end. On a terminal it has a
// progress line with the time left. Plain text without colours. Used by rank 0 only; rank 0 has the loss in every
// layout.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include "trainer/config/config.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/rank/metrics.h"

namespace weft {

// A file descriptor as a stream's buffer that never waits for its reader, such as a paused terminal. So a step goes on,
// and saves and signals take their course. What the reader has not taken waits in memory. Beyond `most_waiting` bytes
// the oldest lines are dropped.
class PatientOutput final : public std::stringbuf {
 public:
  explicit PatientOutput(int descriptor, std::size_t most_waiting = 1 << 20)
      : std::stringbuf(std::ios_base::out | std::ios_base::ate), descriptor_(descriptor), most_waiting_(most_waiting) {}
  PatientOutput(const PatientOutput&) = delete;
  PatientOutput& operator=(const PatientOutput&) = delete;
  ~PatientOutput() override {
    finish([] { return true; });
  }

  // Waits until the reader has taken all, or until `gives_up` and a second has passed. Returns false if any of the
  // output was refused.
  bool finish(const std::function<bool()>& gives_up);
  // Bytes that the reader has not taken.
  std::size_t waiting() const { return view().size(); }
  // errno of the last write that was refused, or 0.
  int refused() const { return refused_; }
  int descriptor() const { return descriptor_; }

 protected:
  // Fails with errno if the descriptor refuses what it is given.
  int sync() override { return write_some(0) ? 0 : -1; }

 private:
  // Waits so many milliseconds for the reader to take the next piece.
  bool write_some(int wait);

  int descriptor_;
  std::size_t most_waiting_;
  int refused_ = 0;
};

class Console {
 public:
  // `terminal`: progress lines are written and later overwritten. Other outputs get step lines only.
  Console(std::ostream& out, bool terminal) : out_(out), terminal_(terminal) {}

  void banner(const Config& config, const Program& program, const RoutedBytes& predicted);
  // A line of the banner with values that are known only after ranks have started.
  void note(std::string_view name, std::string_view text);
  // The line of a reported step (ReportedSteps), of at most 120 characters for usual values.
  void step(const StepMetrics& reported, std::int64_t steps);
  // Called after each step, and after its line: the progress line.
  void progress(std::int64_t step, std::int64_t steps);
  // Predicted against measured bytes, by rank and bucket.
  void memory_table(std::span<const BucketBytes> predicted, std::span<const BucketBytes> measured);
  void finished(const RunTotals& totals, const std::filesystem::path& directory);
  // The last line of a run that was stopped: `by` names the signal, `checkpoint` the folder that it goes on from.
  void stopped(std::string_view by, std::int64_t step, std::int64_t steps, const std::filesystem::path& checkpoint);

  // Whether the reader has closed the other end of a pipe. After any failed write, one message goes to standard error
  // and the lines are lost.
  bool closed() const { return closed_; }

 private:
  void flush();

  std::ostream& out_;
  bool terminal_;
  bool closed_ = false, lost_ = false;
  std::int64_t taken_ = 0;  // steps of this process, without those before the checkpoint
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace weft
