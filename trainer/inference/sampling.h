// The next token from the logits of the last one, and the end of the text that tokens make. A sample's random number
// depends on the seed, the number of the sequence and the position in it. It does not depend on the layout or on
// earlier draws.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

struct SamplingOptions {
  double temperature = 1.0;                // divisor of the logits; 0: always the most probable token
  std::optional<std::int64_t> top_k = {};  // only the top_k most probable tokens
  double top_p = 1.0;                      // only the fewest most probable tokens with at least this total probability
  std::uint64_t seed = 1234;
};

// Throws Error (request) naming all invalid options.
void require_sound(const SamplingOptions& options);

// The probability of every token: softmax of logits / temperature, cut to top_k tokens, then to top_p of the remaining
// probability, and normalised to the kept tokens. Of equally probable tokens the lower ones are kept. Throws Error
// (failure) if a logit is NaN or +infinity, or if all are -infinity.
std::vector<double> token_probabilities(std::span<const float> logits, const SamplingOptions& options);

// The token at `uniform` in (0, 1) of the cumulative probabilities, in the order of tokens. Its probability is not 0.
std::int32_t token_at(std::span<const double> probabilities, double uniform);

// Samples a token of sequence 0, 1, ... `position` is the position of the new token, counted from the prompt's begin.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t sequence,
                          std::int64_t position);

// Cuts generated text before the first stop text, while the text grows. Bytes are returned as soon as they can no
// longer be the begin of a stop text.
class StopText {
 public:
  // The stop text that is complete first ends the text; the longest one, if several are complete with the same byte.
  // None is empty.
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

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
