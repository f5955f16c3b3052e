// Texts of JSON objects, read by simdjson at some 2 GB/s. A build without that library finds none, and its documents go
// the slower way (document_parser.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Used by one thread. Lines share its memory.
class JsonTexts {
 public:
  JsonTexts();
  ~JsonTexts();
  JsonTexts(JsonTexts&&) noexcept;

  // The texts at `paths`, each the keys from the object of `line` inwards. The last of equal keys counts. False where
  // the line is no JSON (RFC 8259, in UTF-8, nested at most 256 deep) or a path leads to no text. False also where this
  // reader cannot tell. The other reader then decides. UnpackedFile::padding bytes behind the line may be read.
  bool find(std::string_view line, std::span<const std::vector<std::string>> paths, std::vector<std::string>& texts);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace weft
