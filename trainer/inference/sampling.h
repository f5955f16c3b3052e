// Samples the next token from the logits of the last token, by pure functions. The random number depends on the seed,
// the number of the sequence and the position in it, not on the layout or on earlier draws.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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

}  // namespace weft
