// Where a rank's time goes: seconds by phase, for `weft bench step` and the trace. One per rank; not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace weft {

enum class Phase : std::uint8_t { products, attention, elementwise, communication, optimizer };
inline constexpr std::size_t phase_count = 5;
constexpr std::string_view name_of(Phase phase) {
  constexpr std::string_view names[] = {"products", "attention", "elementwise", "communication", "optimizer"};
  return names[static_cast<std::size_t>(phase)];
}

class PhaseClock {
 public:
  double seconds(Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }
  void reset() { seconds_ = {}; }

  // Adds the time of its scope to a phase. Scopes do not nest: the innermost work is measured where it is done.
  class Scope {
   public:
    Scope(PhaseClock& clock, Phase phase) : clock_(clock), phase_(phase), begin_(Clock::now()) {}
    ~Scope() {
      clock_.seconds_[static_cast<std::size_t>(phase_)] +=
          std::chrono::duration<double>(Clock::now() - begin_).count();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    PhaseClock& clock_;
    Phase phase_;
    Clock::time_point begin_;
  };

 private:
  std::array<double, phase_count> seconds_{};
};

}  // namespace weft
