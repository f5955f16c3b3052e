// Progress on standard error. A terminal gets one line that is overwritten; elsewhere a line appears now and then.
// Short work prints nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace weft {

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows the text if a line is due.
  void show(const std::function<std::string()>& text);
  // The same with the time left, where `done` of `all` pieces of work are done; nothing before the first and at the
  // end.
  void part(std::int64_t done, std::int64_t all, const std::function<std::string()>& text);
  // The same for bytes; `verb`: "checked", the past tense of the work.
  void bytes(std::int64_t done, std::int64_t all, std::string_view verb);

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_, shown_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

}  // namespace weft
