// A file of lines that grows while a run goes on, and outlasts a full disk: lines that cannot be written wait in memory
// and are written with a later one. Of each line the file has all or nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace weft {

class LinesFile {
 public:
  // Goes on behind the first `bytes` of a file that is there. Throws Error (request) where it cannot be opened.
  LinesFile(std::string name, std::int64_t bytes);
  LinesFile(LinesFile&&) = delete;
  ~LinesFile();

  // `line` ends with a line break. A sentence when lines begin to wait, and when all have been written again; the
  // oldest of more than 10,000 that wait are lost.
  std::optional<std::string> append(std::string line);
  // Throws Error (failure) where lines still wait or have been lost.
  void finish();

 private:
  // Of the lines that wait, as many as the system takes. Its reason, or 0.
  int write_waiting();

  std::string name_;
  int descriptor_ = -1;
  std::int64_t bytes_;  // of whole lines
  std::deque<std::string> waiting_;
  std::int64_t lost_ = 0;
  int trouble_ = 0;  // why lines wait
};

}  // namespace weft
