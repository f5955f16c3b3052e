// A file that is written once, from front to back, and is on disk when finish() returns.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "parallel/runtime/file_descriptor.h"

namespace weft {

// The system calls that write a file; tests replace them to inject failures.
struct FileCalls {
  std::function<ssize_t(int descriptor, const void* data, std::size_t bytes)> write;
  std::function<int(int descriptor)> flush;
  static FileCalls of_system();
};

class OutputFile {
 public:
  // Creates the file, which must not exist. `calls` outlives it. All functions throw Error (failure) with the file and
  // the system's reason.
  OutputFile(const std::filesystem::path& path, const FileCalls& calls);

  void write(std::span<const std::uint8_t> bytes);
  void write(std::string_view text);
  std::int64_t bytes() const { return bytes_; }
  // Returns when everything is on disk. No write may follow.
  void finish();

 private:
  std::filesystem::path path_;
  const FileCalls& calls_;
  FileDescriptor descriptor_;
  std::int64_t bytes_ = 0;
};

// The temporary file of replace_file() for `path`; it is left over if the process is killed.
std::filesystem::path partial_path(const std::filesystem::path& path);
// Writes a file, which must not exist, and flushes it.
void write_new_file(const std::filesystem::path& path, std::string_view text,
                    const FileCalls& calls = FileCalls::of_system());
// Writes the whole file or nothing: writes a temporary file beside it, flushes it and renames it. `path` may exist.
void replace_file(const std::filesystem::path& path, std::string_view text,
                  const FileCalls& calls = FileCalls::of_system());
// Creates a folder and its missing parents, and flushes the folders that got a new entry.
void make_folder(const std::filesystem::path& path);
// Flushes the entries of a folder to disk.
void flush_folder(const std::filesystem::path& path);

}  // namespace weft
