// Text that ends where a stop text begins, while it is being made: bytes are given on as soon as they can no longer be
// the beginning of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

class StopText {
 public:
  // Of several stop texts the one that is complete first ends the text; of those complete with one byte the longest.
  // None is empty.
  explicit StopText(std::vector<std::string> stops);

  // What can be given on once these bytes are there; nothing behind a stop.
  std::string feed(std::string_view bytes);
  // The text ends without one: what was held back.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace weft
