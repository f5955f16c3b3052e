// What a person sees of a run: a banner, a line a step, on a terminal a progress line with the time left, a table at
// the end. Used by rank 0 only; the loss is here whatever stage computed it.
#pragma once

#include <chrono>
#include <filesystem>
#include <iosfwd>
#include <ostream>
#include <span>
#include <string_view>

#include "trainer/config/config.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/rank/metrics.h"

namespace weft {

class Console {
 public:
  // `terminal`: progress lines may be drawn over. Plain logs get step lines only.
  Console(std::ostream& out, bool terminal) : out_(out), terminal_(terminal) {}

  void banner(const Config& config, const Program& program, const RoutedBytes& predicted);
  // A line of the banner that is known once ranks have been started.
  void note(std::string_view name, std::string_view text);
  void step(const StepMetrics& metrics, std::int64_t steps);
  // Predicted against measured bytes, by rank and bucket.
  void memory_table(std::span<const BucketBytes> predicted, std::span<const BucketBytes> measured);
  void finished(const RunTotals& totals, const std::filesystem::path& directory);

  // Nobody reads what is said any more: the other end of a pipe is closed. Where it cannot be written for another
  // reason, that is said once on standard error and the lines are lost.
  bool closed() const { return closed_; }

 private:
  void flush();

  std::ostream& out_;
  bool terminal_;
  bool closed_ = false, lost_ = false;
  std::int64_t taken_ = 0;  // steps of this process, which need not begin with the first
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace weft
