// A file of lines, or of records (event_file.h), that grows during a run and survives a full disk. Lines that cannot be
// written wait in memory and are written with a later line. The file has either the whole of a line or nothing of it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace weft {

class LinesFile {
 public:
  // Appends after the first `bytes` bytes of an existing file. Throws Error (request) if it cannot be opened.
  LinesFile(std::string name, std::int64_t bytes);
  LinesFile(LinesFile&&) = delete;
  ~LinesFile();

  // A line ends with a line break. Returns a sentence when lines begin to wait, and when all waiting lines have been
  // written. At most 10,000 lines wait; older ones are lost.
  std::optional<std::string> append(std::string line);
  // Throws Error (failure) if lines still wait or have been lost.
  void finish();

 private:
  // Writes as many waiting lines as possible. Returns errno of the first failure, or 0.
  int write_waiting();

  std::string name_;
  int descriptor_ = -1;
  std::int64_t bytes_;  // of whole lines in the file
  std::deque<std::string> waiting_;
  std::int64_t lost_ = 0;
  int trouble_ = 0;  // why lines wait
};

}  // namespace weft
