// Progress of work that reads many bytes, on standard error. A terminal gets one line that is overwritten; elsewhere a
// line appears now and then. Short work prints nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace weft {

class ByteProgress {
 public:
  // `done`: "checked", the past tense of the work.
  explicit ByteProgress(std::string done);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  void at(std::int64_t bytes, std::int64_t of);

 private:
  using Clock = std::chrono::steady_clock;
  std::string done_;
  bool terminal_, shown_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

}  // namespace weft
