#include "parallel/runtime/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

namespace weft {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  fail_request("\"{}\": {}", name, why);
}

[[noreturn]] void refuse(const std::string& name, int reason, const std::string& why) {
  const ErrorKind kind = kind_of_refusal(reason);
  throw Error(kind, fmt::format("\"{}\"{}: {}", name, kind == ErrorKind::request ? "" : " cannot be read", why));
}

// Why `name` cannot be opened. An absent file is named as a whole path, and a pattern as what the shell expands.
std::string open_fault(const std::string& name, int reason) {
  if (reason == ENXIO) return "it is not a regular file";
  std::string text = std::strerror(reason);
  if (reason != ENOENT) return text;
  std::error_code unknown;
  const std::filesystem::path whole = std::filesystem::absolute(name, unknown);
  if (!unknown && whole != name) text += fmt::format(": {} was looked for", whole.string());
  if (name.find_first_of("*?[") != std::string::npos) text += "; patterns are not expanded: name each file";
  return text;
}

}  // namespace

ErrorKind kind_of_refusal(int reason) {
  switch (reason) {
    case EACCES:
    case EPERM:
      return ErrorKind::unreadable;
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
    case ENODEV:
    case ENXIO:
    case ENOTSUP:
      return ErrorKind::request;
    default:
      return ErrorKind::failure;
  }
}

// Does not wait for the writer of a pipe.
InputFile::InputFile(std::string name, bool may_be_empty)
    : name_(std::move(name)), descriptor_(open(name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!descriptor_) {
    const int reason = errno;
    refuse(name_, reason, open_fault(name_, reason));
  }
  struct stat status {};
  if (fstat(descriptor_.get(), &status) != 0) {
    const int reason = errno;
    refuse(name_, reason, std::strerror(reason));
  }
  if (!S_ISREG(status.st_mode)) refuse(name_, "it is not a regular file");
  size_ = status.st_size;
  if (size_ == 0 && !may_be_empty) refuse(name_, "the file is empty");
  modified_ = status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

void InputFile::read(std::int64_t offset, std::span<std::uint8_t> to) const {
  require(offset >= 0 && std::ssize(to) <= size_ - offset, "bytes are read from inside a file");
  while (!to.empty()) {
    const ssize_t count = pread(descriptor_.get(), to.data(), to.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      refuse(name_, reason, std::strerror(reason));
    }
    if (count == 0) refuse(name_, fmt::format("it was cut short while it was read: it ends before byte {}", offset));
    to = to.subspan(count);
    offset += count;
  }
}

std::string InputFile::text() const {
  std::string text(static_cast<std::size_t>(size_), '\0');
  read(0, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  return text;
}

std::string read_whole_file(const std::string& name) {
  return InputFile(name, /*may_be_empty=*/true).text();
}

}  // namespace weft
