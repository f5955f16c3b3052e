// A file that gets its name when it is whole: it is written as "name.partial", flushed to disk and renamed.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/file_descriptor.h"
#include "trainer/data/byte_source.h"

namespace weft {

// Used by one thread. Errors are Error (failure) with the file and the system's reason: a full disk is no wrong
// request.
class PartialFile {
 public:
  // Creates "name.partial" in place of one that a killed process left. With `kept` bytes it goes on behind so many of
  // that one, and stays (stay()); throws if it has fewer. Throws Error (request) while another object has it, of any
  // process (flock, where the file system has it).
  explicit PartialFile(std::string name, std::int64_t kept = 0);
  // Removes "name.partial" unless it was put in place or is to stay.
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // Takes the bytes into a buffer of 1 MiB and writes that when it is full.
  void write(std::span<const std::uint8_t> bytes);
  // Takes all bytes of a source, in pieces of 1 MiB.
  void write_all(const ByteSource& source);
  // Bytes taken so far.
  std::int64_t bytes() const { return written_ + std::ssize(buffer_); }
  // Everything written so far, to be read back. Requires that something was written.
  ByteSource written();
  // Whether "name.partial" stays when this object ends.
  void stay(bool stays) { stays_ = stays; }
  // Returns when everything so far is on disk. More may follow.
  void flush();
  // Returns when everything is on disk. Afterwards only put_in_place() follows.
  void sync();
  // Renames the file to its name and flushes the folder. Requires sync(). A file of that name is replaced.
  void put_in_place();

 private:
  void empty_buffer();
  void open_alone(bool create);

  std::string name_, partial_;
  FileDescriptor descriptor_;
  std::int64_t written_ = 0;
  std::vector<std::uint8_t> buffer_;
  bool synced_ = false, in_place_ = false, stays_;
};

// A whole file at once, on disk and in place when this returns.
void write_small_file(const std::string& name, const std::string& text);

}  // namespace weft
