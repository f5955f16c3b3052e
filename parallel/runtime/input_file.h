// A file that is read where somebody else may write to it: bytes are copied out of it, never mapped, so that one that
// is cut short meanwhile is an error with its name and no signal.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace weft {

// Movable. Safe to read from several threads at once.
class InputFile {
 public:
  // `name` is relative to the current directory. Throws Error (request), `"name": why`: also for an empty file, and at
  // once for what is no regular file: a pipe would be waited for.
  explicit InputFile(std::string name);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& name() const { return name_; }
  // When it was opened.
  std::int64_t size() const { return size_; }
  // Bytes from `offset` on, inside `size`. Throws Error (request), `"name": why`, where the file has become shorter.
  void read(std::int64_t offset, std::span<std::uint8_t> to) const;
  // All of it.
  std::string text() const;

 private:
  std::string name_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

// All of a file, which may be empty. Throws Error (request), `"name": why`.
std::string read_whole_file(const std::string& name);

}  // namespace weft
