// How far something that reads many bytes is, on standard error: on a terminal a line that is written over, elsewhere
// one now and then. Says nothing where it takes no time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace weft {

class ByteProgress {
 public:
  // "checked": what has been done with the bytes.
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
