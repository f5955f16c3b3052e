// Time of a rank by phase and stream, in seconds, for `weft bench step`. One per rank; not thread-safe.
//
// A device that runs behind the host does the work of a scope after the scope has ended on the host. The host's clock
// cannot measure that work; mode `stream` uses the stream's clock. It costs two events a scope, so the mode is `off`
// unless times are wanted.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <string_view>
#include <vector>

#include "parallel/runtime/device.h"
#include "parallel/runtime/enum_names.h"

namespace weft {

enum class Phase : std::uint8_t { products, attention, elementwise, communication, optimizer };
constexpr auto enum_names(Phase) {
  return name_list("products", "attention", "elementwise", "communication", "optimizer");
}
inline constexpr std::size_t phase_count = all_values<Phase>.size();

// On the host's clock.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class PhaseClock {
 public:
  enum class Mode : std::uint8_t { host, stream, off };

  // Call between steps.
  void set_mode(Mode mode) { mode_ = mode; }

  // Summed over streams, which may have worked at the same time.
  double seconds(Phase phase) const {
    double sum = 0.0;
    for (const auto& [stream, seconds] : seconds_) sum += seconds[static_cast<std::size_t>(phase)];
    return sum;
  }
  double seconds(Phase phase, const Stream& stream) const {
    const auto found = seconds_.find(&stream);
    return found == seconds_.end() ? 0.0 : found->second[static_cast<std::size_t>(phase)];
  }
  void reset() {
    pending_.clear();
    seconds_.clear();
  }

  // Mode `stream`: waits for the recorded scopes and adds their times.
  void collect() {
    for (const Pending& pending : pending_) {
      pending.end->synchronize();
      add(pending.phase, *pending.stream, pending.end->seconds_since(*pending.begin));
    }
    pending_.clear();
  }

  // Adds the time of its scope to a phase. Mode `host`: the host's time. Mode `stream`: the stream's time from the
  // first to the last work queued in the scope. Scopes do not nest: only the innermost work has a scope.
  class Scope {
   public:
    Scope(PhaseClock& clock, Phase phase, Stream& stream) : clock_(clock), phase_(phase), stream_(stream) {
      if (clock.mode_ == Mode::host) begin_ = Clock::now();
      if (clock.mode_ == Mode::stream) begin_fence_ = stream.record_time();
    }
    ~Scope() noexcept(false) {
      if (clock_.mode_ == Mode::host) {
        clock_.add(phase_, stream_, seconds_since(begin_));
      }
      // A failed stream would only fail again.
      if (begin_fence_ != nullptr && std::uncaught_exceptions() == 0) {
        clock_.pending_.push_back({phase_, &stream_, std::move(begin_fence_), stream_.record_time()});
      }
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    PhaseClock& clock_;
    Phase phase_;
    Stream& stream_;
    Clock::time_point begin_;
    Fence begin_fence_;
  };

 private:
  struct Pending {
    Phase phase;
    const Stream* stream;
    Fence begin, end;
  };
  void add(Phase phase, const Stream& stream, double seconds) {
    seconds_[&stream][static_cast<std::size_t>(phase)] += seconds;
  }

  Mode mode_ = Mode::host;
  std::map<const Stream*, std::array<double, phase_count>> seconds_;
  std::vector<Pending> pending_;
};

}  // namespace weft
