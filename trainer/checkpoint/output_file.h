// A file that is written once, front to back, and is on disk when it says so.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// What a file is written with; tests put failures in.
struct FileCalls {
  std::function<ssize_t(int descriptor, const void* data, std::size_t bytes)> write;
  std::function<int(int descriptor)> flush;
  static FileCalls of_system();
};

class OutputFile {
 public:
  // Creates the file, which must not be there. `calls` outlives it. All throw Error (failure) with the file and the
  // system's reason.
  OutputFile(const std::filesystem::path& path, const FileCalls& calls);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::uint8_t> bytes);
  void write(std::string_view text);
  std::int64_t bytes() const { return bytes_; }
  // Returns once everything is on disk; nothing is written afterwards.
  void finish();

 private:
  std::filesystem::path path_;
  const FileCalls& calls_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
};

// Where replace_file() writes what shall be `path`, and leaves it where the process is killed.
std::filesystem::path partial_path(const std::filesystem::path& path);
// Whole, under a name that may be taken: written beside it, flushed and renamed; or not at all.
void replace_file(const std::filesystem::path& path, std::string_view text, const FileCalls& calls);
// Makes a folder and those above it, where they are not there yet, with names that last.
void make_folder(const std::filesystem::path& path);
// Makes names in a folder last.
void flush_folder(const std::filesystem::path& path);

}  // namespace weft
