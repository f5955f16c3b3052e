#include "trainer/tokenizer/tokenizer_speed.h"

#include <algorithm>
#include <chrono>

#include "parallel/runtime/error.h"

namespace weft {

TokenizerSpeed measure_tokenizer(const Tokenizer& tokenizer, std::string_view text, std::int64_t document_bytes,
                                 int passes) {
  require(!text.empty() && document_bytes > 0 && passes > 0, "a tokenizer is measured on some text");
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  TokenizerSpeed speed;
  speed.bytes = static_cast<std::int64_t>(text.size());
  for (int pass = 0; pass < passes; ++pass) {
    std::vector<std::int32_t> ids;
    std::vector<std::size_t> ends;
    const auto encoding = Clock::now();
    for (std::size_t at = 0; at < text.size(); at += static_cast<std::size_t>(document_bytes)) {
      tokenizer.append(text.substr(at, static_cast<std::size_t>(document_bytes)), SpecialTokens::recognised, ids);
      ends.push_back(ids.size());
    }
    const double encoded = seconds_since(encoding);
    const auto decoding = Clock::now();
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      tokenizer.decode(std::span(ids).subspan(begin, end - begin));
      begin = end;
    }
    const double decoded = seconds_since(decoding);
    speed.tokens = static_cast<std::int64_t>(ids.size());
    speed.encode_seconds = pass == 0 ? encoded : std::min(speed.encode_seconds, encoded);
    speed.decode_seconds = pass == 0 ? decoded : std::min(speed.decode_seconds, decoded);
  }
  return speed;
}

}  // namespace weft
