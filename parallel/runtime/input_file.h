// A file that another process may write to while it is read. Bytes are copied out of the file, never mapped: a file cut
// short meanwhile causes an error with the file's name, not a signal.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "parallel/runtime/error.h"
#include "parallel/runtime/file_descriptor.h"

namespace weft {

// The kind of error that the system's `reason` (errno) against reading a file is. Absent files are a request; a
// shortage of descriptors or memory and a bad disk are a failure.
ErrorKind kind_of_refusal(int reason);

// Movable. Several threads may read at the same time.
class InputFile {
 public:
  // `name` is relative to the current directory. Throws Error (request), `"name": why`, for anything but a regular
  // file, and for an empty file unless it may be empty. Throws Error of kind_of_refusal() if the system refuses. A pipe
  // is refused immediately, without waiting for a writer.
  explicit InputFile(std::string name, bool may_be_empty = false);

  const std::string& name() const { return name_; }
  // Bytes at the time of opening.
  std::int64_t size() const { return size_; }
  // Nanoseconds from 1970 to the last change before opening, as the file system tells them.
  std::int64_t modified() const { return modified_; }
  // Reads bytes from `offset` on, inside `size`. Throws Error (request), `"name": why`, if the file has become shorter.
  void read(std::int64_t offset, std::span<std::uint8_t> to) const;
  // The whole file.
  std::string text() const;

 private:
  std::string name_;
  FileDescriptor descriptor_;
  std::int64_t size_ = 0, modified_ = 0;
};

// The whole file, which may be empty. Throws as InputFile.
std::string read_whole_file(const std::string& name);

}  // namespace weft
