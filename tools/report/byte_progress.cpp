#include "tools/report/byte_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "parallel/runtime/quantities.h"

namespace weft {

ByteProgress::ByteProgress(std::string done) : done_(std::move(done)), terminal_(isatty(STDERR_FILENO) != 0) {}

ByteProgress::~ByteProgress() {
  if (shown_ && terminal_) fmt::print(stderr, "\r\x1b[K");
}

void ByteProgress::at(std::int64_t bytes, std::int64_t of) {
  const auto now = Clock::now();
  const bool due = now - last_ >= (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10));
  if (!due || bytes <= 0 || bytes == of) return;
  last_ = now;
  shown_ = true;
  const double spent = std::chrono::duration<double>(now - begin_).count();
  const double left = spent * static_cast<double>(of - bytes) / static_cast<double>(bytes);
  fmt::print(stderr, "{}{} of {} {}, {:.0f} s left{}", terminal_ ? "\r\x1b[K" : "", format_bytes(bytes),
             format_bytes(of), done_, left, terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace weft
