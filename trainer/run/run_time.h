// The wall time of a run by what it went to. Each moment belongs to one part, so the parts sum to the wall time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "parallel/runtime/enum_names.h"

namespace weft {

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

}  // namespace weft
