// The bytes of a file from its beginning to its end: as they are, or unpacked if the file was packed by gzip or zstd.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Used by one thread. A stream that is cut short or damaged throws; it never counts as the end.
class UnpackedFile {
 public:
  // Throws Error (request), `"name": why`, for a file that InputFile refuses.
  explicit UnpackedFile(const std::string& name);
  ~UnpackedFile();

  // The first bytes, `most` or all there are, before anything else is read. Valid until the next call.
  std::string_view beginning(std::size_t most);
  // Reads the next lines: those that end within `most` bytes, otherwise one. `lines` has them without their ends ("\n"
  // or "\r\n"); the last line of a file need not have one. They lie in `bytes`, with `padding` zeros behind the last.
  // False at the end of the file. Throws Error (request), `"name": why`, for damage and for a line of 1 GiB or more.
  bool next_lines(std::size_t most, std::string& bytes, std::vector<std::string_view>& lines);
  // For parsers that read a little ahead.
  static constexpr std::size_t padding = 64;
  // The rest of the file. Throws Error (request), `"name": why`, if it has 1 GiB or more.
  std::string rest();

  const std::string& name() const { return name_; }
  std::int64_t lines() const { return lines_; }  // read so far
  // Of the packed file: bytes consumed so far, for progress.
  std::int64_t position() const;

 private:
  struct Stream;
  struct Plain;
  struct Gzip;
  struct Zstd;
  std::size_t fill(std::size_t bytes);
  std::size_t end_of_lines(std::size_t most);

  std::string name_;
  std::unique_ptr<Stream> stream_;
  std::string buffer_;  // unpacked bytes that have not been returned
  std::int64_t lines_ = 0;
};

}  // namespace weft
