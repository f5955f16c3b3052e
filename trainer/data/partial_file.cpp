#include "trainer/data/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::int64_t partial_buffer_bytes = std::int64_t{1} << 20;

[[noreturn]] void fail_file(const std::string& name, const char* what, int reason) {
  fail("\"{}\" cannot be {}: {}", name, what, std::strerror(reason));
}

// A renamed file is lost with the machine's power unless its folder is flushed too.
void flush_folder_of(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::absolute(name).parent_path();
  const FileDescriptor descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) fail_file(folder, "opened", errno);
  if (fsync(descriptor.get()) != 0) fail_file(folder, "flushed to disk", errno);
}

}  // namespace

PartialFile::PartialFile(std::string name, std::int64_t kept)
    : name_(std::move(name)), partial_(name_ + ".partial"), written_(kept), stays_(kept > 0) {
  open_alone(kept == 0);
  buffer_.reserve(partial_buffer_bytes);
  std::error_code error;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(partial_, error));
  if (!error && size >= kept && ftruncate(descriptor_.get(), kept) == 0) return;
  fail("\"{}\" has fewer bytes than the {} that were written", partial_, kept);
}

void PartialFile::open_alone(bool create) {
  while (true) {
    descriptor_ =
        FileDescriptor(open(partial_.c_str(), O_WRONLY | O_CLOEXEC | O_APPEND | (create ? O_CREAT : 0), 0666));
    if (!descriptor_) fail_file(partial_, create ? "created" : "opened", errno);
    if (flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      fail_request("\"{}\" is being written by another process; end that first, or choose another name", partial_);
    }
    // Between both calls the file may have been renamed or removed by its writer.
    struct stat own = {}, named = {};
    const bool same = fstat(descriptor_.get(), &own) == 0 && stat(partial_.c_str(), &named) == 0 &&
                      own.st_ino == named.st_ino && own.st_dev == named.st_dev;
    if (same) return;
  }
}

PartialFile::~PartialFile() {
  if (!in_place_ && !stays_) unlink(partial_.c_str());
}

void PartialFile::write(std::span<const std::uint8_t> bytes) {
  require(!synced_, "nothing is written behind the end of a file");
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (std::ssize(buffer_) >= partial_buffer_bytes) empty_buffer();
}

void PartialFile::write_all(const ByteSource& source) {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t offset = 0; offset < source.size; offset += std::ssize(bytes)) {
    bytes.resize(static_cast<std::size_t>(std::min(partial_buffer_bytes, source.size - offset)));
    source.read(offset, bytes);
    write(bytes);
  }
}

void PartialFile::empty_buffer() {
  std::span<const std::uint8_t> rest = buffer_;
  while (!rest.empty()) {
    const ssize_t count = ::write(descriptor_.get(), rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_file(partial_, "written", errno);
    if (count == 0) fail("\"{}\" cannot be written: the system takes no more bytes", partial_);
    rest = rest.subspan(static_cast<std::size_t>(count));
    written_ += count;
  }
  buffer_.clear();
}

ByteSource PartialFile::written() {
  empty_buffer();
  return open_source(partial_);
}

void PartialFile::flush() {
  empty_buffer();
  while (fsync(descriptor_.get()) != 0) {
    if (errno != EINTR) fail_file(partial_, "flushed to disk", errno);
  }
}

void PartialFile::sync() {
  flush();
  synced_ = true;
}

void PartialFile::put_in_place() {
  require(synced_ && !in_place_, "a file is put in place once, after it is on disk");
  if (std::rename(partial_.c_str(), name_.c_str()) != 0) fail_file(name_, "put in place", errno);
  in_place_ = true;
  descriptor_ = FileDescriptor();
  flush_folder_of(name_);
}

void write_small_file(const std::string& name, const std::string& text) {
  PartialFile file(name);
  file.write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  file.sync();
  file.put_in_place();
}

}  // namespace weft
