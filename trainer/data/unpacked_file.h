// The bytes of a file from its beginning to its end: as they are, or unpacked if the file was packed by gzip or zstd.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace weft {

// Used by one thread. A stream that is cut short or damaged throws; it never counts as the end.
class UnpackedFile {
 public:
  // Throws Error (request), `"name": why`, for a file that InputFile refuses.
  explicit UnpackedFile(const std::string& name);
  ~UnpackedFile();

  // The first bytes, `most` or all there are, before anything else is read. Valid until the next call.
  std::string_view beginning(std::size_t most);
  // Reads the next line without its end ("\n" or "\r\n"); the last line need not have one. False at the end of the
  // file. Throws Error (request), `"name": why`, for damage and for a line of 1 GiB or more.
  bool next_line(std::string& line);
  // The rest of the file.
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
  bool fill();

  std::string name_;
  std::unique_ptr<Stream> stream_;
  std::string buffer_;  // unpacked bytes that have not been returned, from begin_ on
  std::size_t begin_ = 0;
  std::int64_t lines_ = 0;
};

}  // namespace weft
