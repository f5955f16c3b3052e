// Text from a model, under any layout without context parallelism: the prompt in one pass, then a token a pass, sampled
// on one rank and told to all. How long a text can become is not limited by rotary angles, which exist for every
// position; what a model is worth beyond the positions that it was trained on is another matter.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/inference/generation_run.h"
#include "trainer/inference/sampling.h"

namespace weft {

struct GenerationRequest {
  std::string prompt = {};        // at least one byte, a token each
  std::int64_t max_tokens = 128;  // new ones of each sample
  std::int64_t samples = 1;
  SamplingOptions sampling = {};
  std::vector<std::string> stop = {};  // a sample ends where one of these begins
};

enum class Finish : std::uint8_t { length, stop };
std::string_view name_of(Finish finish);

struct GeneratedSample {
  std::string text;         // without prompt and stop
  std::int64_t tokens = 0;  // made, those of the stop included
  Finish finish = Finish::length;
};

struct GenerationResult {
  std::vector<GeneratedSample> samples;
  double prompt_seconds = 0.0, seconds = 0.0;    // of the prompt's pass, and of all behind it
  std::vector<BucketBytes> predicted, measured;  // of the ranks of this process, at their peaks
  std::int64_t tokens() const;
  // Behind the prompt's pass, all samples together.
  double tokens_per_second() const;
};

// Called with a sample's text as soon as it is certain, on the thread of this process's first rank.
using OnText = std::function<void(std::int64_t sample, std::string_view text)>;

// Throws Error (request) with everything in the request that makes no sense, or does not fit the model: its vocabulary
// must be that of its tokenizer.
void require_sound(const GenerationRequest& request, const Config& config);

// Runs the ranks of this process. `fill_weights` as in ForwardRun. Throws Error with the first failure.
GenerationResult generate(const Config& config, const GenerationRequest& request, const FillWeights& fill_weights = {},
                          const OnText& on_text = {}, const BackendFactory& make_backend = {});

}  // namespace weft
