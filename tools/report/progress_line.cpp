#include "tools/report/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include "parallel/runtime/quantities.h"
#include "parallel/runtime/standard_error.h"

namespace weft {

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (shown_ && terminal_) say("\r\x1b[K");
}

void ProgressLine::show(const std::function<std::string()>& text) {
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10))) return;
  last_ = now;
  shown_ = true;
  say("{}{}{}", terminal_ ? "\r\x1b[K" : "", text(), terminal_ ? "" : "\n");
}

void ProgressLine::part(std::int64_t done, std::int64_t all, const std::function<std::string()>& text) {
  if (done <= 0 || done == all) return;
  show([&] {
    const double spent = std::chrono::duration<double>(Clock::now() - begin_).count();
    return fmt::format("{}, {:.0f} s left", text(),
                       spent * static_cast<double>(all - done) / static_cast<double>(done));
  });
}

void ProgressLine::bytes(std::int64_t done, std::int64_t all, std::string_view verb) {
  part(done, all, [&] { return fmt::format("{} of {} {}", format_bytes(done), format_bytes(all), verb); });
}

}  // namespace weft
