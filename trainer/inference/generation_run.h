// One rank of a model that generates: a forward program of one microbatch (forward_plan.h), in which attention reads a
// cache and the head returns logits. Every data rank computes the same. A pass takes any number of tokens and stores
// their keys and values in the cache. It returns the logits of the last tokens on ranks with the head.
#pragma once

#include <span>
#include <vector>

#include "layers/generation.h"
#include "parallel/runtime/staging.h"
#include "trainer/inference/forward_run.h"

namespace weft {

// The configuration for generation: for_inference(), with one microbatch a pass. Experts have no capacity and are
// chosen by scores, so that a sample's text depends on no other sample. Throws Error (request) for context parallelism:
// it splits a sequence, and the cache of a sequence is on one rank.
Config for_generation(Config config);

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
  // Predicted buckets of this rank at the largest peak of all passes; caches are counted as activations.
  const BucketBytes& predicted() const { return predicted_; }

 private:
  // Plans segments and program for passes of this shape, if it differs from the last shape.
  void take_shape(const GenerationShape& shape);

  const Config& config_;
  const Mesh& mesh_;
  Coordinates at_;
  std::int64_t sequences_, capacity_;
  int sampler_ = 0;
  std::int64_t cache_bytes_ = 0;
  GenerationShape shape_;  // of the last pass
  std::unique_ptr<ForwardRun> run_;
  GenerationState state_;
  Tensor report_;  // required by MoE blocks for their counts; never read
  BucketBytes predicted_;
};

}  // namespace weft
