// Text generation, under any layout without context parallelism: one pass for the prompt, then one pass for each token.
// One rank samples and broadcasts the token. Rotary angles exist for every position and do not limit the length of a
// text. The quality of a model beyond its trained positions is not assured.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/data/text_vocabulary.h"
#include "trainer/inference/generation_run.h"
#include "trainer/inference/sampling.h"

namespace weft {

struct GenerationRequest {
  std::string prompt = {};        // at least one byte
  std::int64_t max_tokens = 128;  // new tokens of each sample
  std::int64_t samples = 1;
  SamplingOptions sampling = {};
  std::vector<std::string> stop = {};  // a sample ends before the first of these texts
};

// The tokens of a prompt, behind those that its tokenizer puts before a text.
std::vector<std::int32_t> prompt_tokens(const TextVocabulary& vocabulary, std::string_view prompt);

// stop: at a stop text, or at the token that ends a text.
enum class Finish : std::uint8_t { length, stop };
constexpr auto enum_names(Finish) {
  return name_list("length", "stop");
}

struct GeneratedSample {
  std::string text;         // without prompt and stop
  std::int64_t tokens = 0;  // generated, including those of the stop text or the end
  Finish finish = Finish::length;
};

struct GenerationResult {
  std::vector<GeneratedSample> samples;
  std::int64_t prompt_tokens = 0;
  double prompt_seconds = 0.0, seconds = 0.0;    // of the prompt's pass, and of all later passes
  std::vector<BucketBytes> predicted, measured;  // by rank, at its peak; set only for the ranks of this process
  std::int64_t tokens() const;
  // Rate of all samples together after the prompt's pass.
  double tokens_per_second() const;
};

// Called with new text of a sample as soon as it is certain (StopText), on the thread of this process's first rank.
using OnText = std::function<void(std::int64_t sample, std::string_view text)>;

// Throws Error (request) with all faults of the request. The model must also have the vocabulary of its tokenizer.
void require_sound(const GenerationRequest& request, const Config& config);

// Runs the ranks of this process. `fill_weights` as in ForwardRun. Throws Error with the first failure.
GenerationResult generate(const Config& config, const GenerationRequest& request, const FillWeights& fill_weights = {},
                          const OnText& on_text = {}, const BackendFactory& make_backend = {});

}  // namespace weft
