// Text generation, under any layout without context parallelism: one pass for the prompt, then one pass for each token.
// One rank samples and broadcasts the token. Rotary angles exist for every position and do not limit the length of a
// text. The quality of a model beyond its trained positions is not assured.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layers/generation.h"
#include "parallel/runtime/enum_names.h"
#include "trainer/data/text_vocabulary.h"
#include "trainer/inference/forward_run.h"
#include "trainer/inference/sampling.h"

namespace weft {

// The configuration for generation: for_inference(), with one microbatch a pass. Experts have no capacity and are
// chosen by scores, so that a sample's text depends on no other sample. Throws Error (request) for context parallelism:
// it splits a sequence, and the cache of a sequence is on one rank.
Config for_generation(Config config);

// One rank of a model that generates: a forward program of one microbatch (forward_plan.h), in which attention reads a
// cache and the head returns logits. Every data rank computes the same. A pass takes any number of tokens and stores
// their keys and values in the cache. It returns the logits of the last tokens on ranks with the head.
class GenerationRun {
 public:
  // Collective over the context's world. `config` is from for_generation(). Caches are allocated for `sequences`
  // sequences of `capacity` positions. Config, mesh and context outlive the run.
  GenerationRun(const Config& config, const Mesh& mesh, std::int64_t sequences, std::int64_t capacity,
                const FillWeights& fill_weights, const RankContext& context);

  // Feeds the next tokens [sequences * n], sequence after sequence, the same on all ranks. Collective over the world.
  // Before share_first_sequence(), `sequences` may be 1: the tokens of the first sequence alone. Returns the logits of
  // the last `wanted` tokens of each sequence, [sequences * wanted, vocabulary], on ranks with the head; nothing on
  // other ranks.
  std::vector<float> feed(std::span<const std::int32_t> tokens, std::int64_t sequences, std::int64_t wanted = 1);
  // Copies the cache of the first sequence to all other sequences.
  void share_first_sequence();
  // Number of tokens of each sequence so far.
  std::int64_t position() const { return state_.position; }

  // The rank that samples: the first rank with the head.
  int sampler() const { return sampler_; }
  // Broadcasts the sampler's tokens [sequences] in place to all ranks. Collective over the world. Waits for the device.
  void broadcast(std::span<std::int32_t> tokens);

  ForwardRun& run() { return *run_; }

 private:
  // Plans segments and program for passes of this shape, if it differs from the last shape.
  void take_shape(const GenerationShape& shape);

  const Config& config_;
  const Mesh& mesh_;
  Coordinates at_;
  std::int64_t sequences_, capacity_;
  int sampler_ = 0;
  GenerationShape shape_;  // of the last pass
  std::unique_ptr<ForwardRun> run_;
  GenerationState state_;
  Tensor report_;  // required by MoE blocks for their counts; never read
};

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
  double prompt_seconds = 0.0, seconds = 0.0;  // of the prompt's pass, and of all later passes
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
