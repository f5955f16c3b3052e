#include "trainer/run/run_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weft {

void RunTimer::add(RunPart part) {
  const Clock::time_point before = std::exchange(last_, Clock::now());
  seconds_[static_cast<std::size_t>(part)] += std::chrono::duration<double>(last_ - before).count();
}

void RunTimer::take_from_steps(RunPart part, double seconds) {
  double& steps = seconds_[static_cast<std::size_t>(RunPart::steps)];
  const double taken = std::min(seconds, steps);
  steps -= taken;
  seconds_[static_cast<std::size_t>(part)] += taken;
}

double RunTimer::goodput() const {
  return wall_seconds() > 0.0 ? seconds(RunPart::steps) / wall_seconds() : 0.0;
}

std::string RunTimer::text() const {
  constexpr double noticeable = 1e-3;
  std::string text = fmt::format("{:.1f} s", wall_seconds());
  const char* mark = ": ";
  for (const RunPart part : all_values<RunPart>) {
    if (seconds(part) < noticeable * wall_seconds()) continue;
    std::string name(name_of(part));
    std::ranges::replace(name, '_', part == RunPart::start_up ? '-' : ' ');
    text += fmt::format("{}{} {:.1f} s", std::exchange(mark, ", "), name, seconds(part));
  }
  return fmt::format("{}; goodput {:.1f} %", text, 100.0 * goodput());
}

}  // namespace weft
