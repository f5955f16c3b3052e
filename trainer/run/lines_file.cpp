#include "trainer/run/lines_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::size_t most_waiting_lines = 10'000;

}  // namespace

LinesFile::LinesFile(std::string name, std::int64_t bytes) : name_(std::move(name)), bytes_(bytes) {
  descriptor_ = open(name_.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail_request("{} cannot be written: {}", name_, std::strerror(errno));
}

LinesFile::~LinesFile() {
  close(descriptor_);
}

std::optional<std::string> LinesFile::append(std::string line) {
  waiting_.push_back(std::move(line));
  const int before = std::exchange(trouble_, write_waiting());
  if (waiting_.size() > most_waiting_lines) {
    waiting_.pop_front();
    ++lost_;
  }
  if ((before == 0) == (trouble_ == 0)) return std::nullopt;
  if (trouble_ == 0) return fmt::format("{} is written again; {} lines were lost", name_, lost_);
  return fmt::format("{} cannot be written: {}; the last {} lines wait in memory", name_, std::strerror(trouble_),
                     most_waiting_lines);
}

void LinesFile::finish() {
  trouble_ = write_waiting();
  if (waiting_.empty() && lost_ == 0) return;
  fail("{} lacks {} lines: {}", name_, std::ssize(waiting_) + lost_,
       trouble_ == 0 ? "they were lost while it could not be written" : std::strerror(trouble_));
}

int LinesFile::write_waiting() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const std::string& line = waiting_.front();
    const ssize_t written = pwrite(descriptor_, line.data(), line.size(), bytes_);
    const int reason = written < 0 ? errno : ENOSPC;
    if (written == std::ssize(line)) {
      bytes_ += written;
      continue;
    }
    // Removes the partially written line, which a reader would take for a whole line.
    [[maybe_unused]] const int cut = ftruncate(descriptor_, bytes_);
    return reason;
  }
  return 0;
}

}  // namespace weft
