// One rank of a model that generates: tokens go in, their keys and values stay in the cache, and the logits of the last
// ones come out where the head is. Several tokens a pass or one, in passes of any lengths.
#pragma once

#include <span>
#include <vector>

#include "parallel/runtime/staging.h"
#include "trainer/inference/forward_run.h"
#include "trainer/inference/generation_plan.h"

namespace weft {

class GenerationRun {
 public:
  // Collective over the seat's world. `config` is for_generation(). Caches are made for `sequences` sequences of
  // `capacity` positions. Config, mesh and seat outlive the run.
  GenerationRun(const Config& config, const Mesh& mesh, std::int64_t sequences, std::int64_t capacity,
                const FillWeights& fill_weights, const RankSeat& seat);

  // The next tokens [sequences * n], sequence after sequence; the same on all ranks, over whose world the call is
  // collective. They may be those of the first sequence alone (`sequences` 1) until share_first_sequence(). Logits of
  // the last `wanted` tokens of each, [sequences * wanted, vocabulary], come back on the ranks that have the head,
  // nothing on others.
  std::vector<float> feed(std::span<const std::int32_t> tokens, std::int64_t sequences, std::int64_t wanted = 1);
  // All other sequences have the beginning that the first one has.
  void share_first_sequence();
  // So many tokens of each sequence have come.
  std::int64_t position() const { return state_.position; }

  // The rank that samples: the first that has the head.
  int sampler() const { return sampler_; }
  // In place, [sequences]: what the sampler has, on all ranks. Collective over the world; waits for the device.
  void broadcast(std::span<std::int32_t> tokens);

  ForwardRun& run() { return *run_; }
  // Buckets of this rank at the peak of any pass, the caches among the activations.
  const BucketBytes& predicted() const { return predicted_; }

 private:
  // Segments and program for passes of this shape.
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
  Tensor report_;  // what experts count goes here, and nobody reads it
  BucketBytes predicted_;
};

}  // namespace weft
