// Cuts generated text before the first stop text, while the text grows: bytes are returned as soon as they can no
// longer be the begin of a stop text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

class StopText {
 public:
  // The stop text that is complete first ends the text; the longest one, if several are complete with the same byte.
  // Throws Error (request) if a stop text is empty.
  explicit StopText(std::vector<std::string> stops);

  // Adds bytes and returns the text that has become certain; nothing after a stop text.
  std::string feed(std::string_view bytes);
  // The text ends without a stop text: returns the bytes held back.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace weft
