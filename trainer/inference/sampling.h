// The next token, from the logits of the last one: pure functions. What is drawn depends on the seed, the number of the
// sequence and the position in it, never on a layout or on what was drawn before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace weft {

struct SamplingOptions {
  double temperature = 1.0;                // logits are divided by it; 0: the most probable token, always
  std::optional<std::int64_t> top_k = {};  // of so many most probable tokens only
  double top_p = 1.0;                      // of the fewest most probable tokens that together have this probability
  std::uint64_t seed = 1234;
};

// Throws Error (request) naming the options that make no sense, all of them.
void require_sound(const SamplingOptions& options);

// The probability of every token: softmax of the logits over the temperature, cut to top_k tokens, then to top_p of
// what is left, and divided by what both have left. Of equally probable tokens the lower ones are kept. Throws Error
// (failure) when a logit is NaN or all are -infinity.
std::vector<double> token_probabilities(std::span<const float> logits, const SamplingOptions& options);

// The token at `uniform` in (0, 1) of the cumulative probabilities, in the order of tokens; never one of probability 0.
std::int32_t token_at(std::span<const double> probabilities, double uniform);

// Of sequence 0, 1, ...; `position` is that of the token to come, the prompt counted.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t sequence,
                          std::int64_t position);

}  // namespace weft
