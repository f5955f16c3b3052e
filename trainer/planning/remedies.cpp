#include "trainer/planning/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "trainer/planning/remedy_overrides.h"

namespace weft {
namespace {

using namespace remedy_overrides;

constexpr Remedy selective{"recompute selective", "norms, rotary embedding and SwiGLU are recomputed instead of kept",
                           "no product more, some memory traffic", RemedyKind::layout, recompute_selective};
constexpr Remedy full_recompute{"recompute full", "a block keeps its input alone, and one block is whole at a time",
                                "a third more of the products of blocks", RemedyKind::layout, recompute_full};
constexpr Remedy microbatch{"microbatch_size down, accumulation up", "fewer sequences are there at a time",
                            "smaller products; gathers as often as there are microbatches", RemedyKind::layout,
                            smaller_microbatch};
constexpr Remedy tensor{"tensor up", "heads, widths and, as sequence parallelism, the tokens between them are split",
                        "collectives in every block, which want to stay inside a node", RemedyKind::layout,
                        more_tensor};
constexpr Remedy context{"context up", "the positions of each sequence are split",
                         "keys and values of every block travel", RemedyKind::layout, more_context};
constexpr Remedy pipeline{"pipeline up", "a rank holds fewer blocks", "a bubble, and messages between stages",
                          RemedyKind::layout, more_pipeline};
constexpr Remedy schedule{"a schedule with fewer microbatches in flight",
                          "fewer microbatches are kept for their backward", "a bubble of another size",
                          RemedyKind::layout, leaner_schedule};
constexpr Remedy expert{"expert up", "a rank holds fewer experts", "tokens travel further", RemedyKind::layout,
                        more_expert};
constexpr Remedy replicas{"data_replicate down, data_shard up", "what was replicated is sharded",
                          "gathers over more ranks, which may leave a node", RemedyKind::layout, fewer_replicas};
constexpr Remedy strategy{"strategy up", "more of parameters, gradients and optimizer state is sharded",
                          "parameters are gathered more often", RemedyKind::layout, stronger_strategy};
constexpr Remedy residency{"residency shorter", "full parameters are dropped sooner",
                           "they are gathered again for the next use", RemedyKind::layout, shorter_residency};
constexpr Remedy lookahead{"lookahead down", "fewer units are gathered ahead of their turn",
                           "compute waits for gathers", RemedyKind::layout, shorter_lookahead};
constexpr Remedy wrap{"smaller units", "less is whole at a time", "more and smaller collectives", RemedyKind::layout,
                      smaller_wrap};
constexpr Remedy each_microbatch{"reduction each_microbatch", "gradients are whole only while their unit is at work",
                                 "a reduction of everything for every microbatch", RemedyKind::layout,
                                 reduce_each_microbatch};
constexpr Remedy accumulation{"accumulation sharded", "gradients add up in shards",
                              "a reduce-scatter of everything for every microbatch", RemedyKind::layout,
                              accumulate_shards};
constexpr Remedy reduce_inputs{"reduce_inputs down", "fewer full gradients wait beside the one being filled",
                               "compute waits for reductions", RemedyKind::layout, fewer_reduce_inputs};
constexpr Remedy bf16_reduction{"reduction in bfloat16", "what is sent is half as wide", "gradients are rounded",
                                RemedyKind::arithmetic, narrow_reduction};
constexpr Remedy bf16_compute{"compute in bfloat16", "what is gathered and kept is half as wide",
                              "products of bfloat16, sums in float32", RemedyKind::arithmetic, narrow_compute};
constexpr Remedy bf16_state{"optimizer state in bfloat16", "moments are half as wide", "rounded stochastically",
                            RemedyKind::arithmetic, narrow_state};
constexpr Remedy bf16_parameters{"parameters stored in bfloat16", "shards are half as wide", "rounded stochastically",
                                 RemedyKind::arithmetic, narrow_parameters};
constexpr Remedy rule{"a rule with fewer states", "lion keeps one state for each parameter, sgd without momentum none",
                      "another optimizer: its learning rate has to be found anew", RemedyKind::arithmetic, leaner_rule};

constexpr Remedy element_rule{"adamw in place of muon", "no whole matrices are gathered for a step",
                              "another optimizer, which keeps two states for each parameter", RemedyKind::arithmetic,
                              rule_of_elements};

constexpr std::array for_activations = {selective, full_recompute, microbatch, tensor,
                                        context,   pipeline,       schedule,   bf16_compute};
constexpr std::array for_state = {strategy, replicas, expert, tensor, pipeline, bf16_state, bf16_parameters, rule};
constexpr std::array for_parameters = {strategy, residency, lookahead, wrap, tensor, pipeline, expert, bf16_compute};
constexpr std::array for_gradients = {strategy, each_microbatch, accumulation, reduce_inputs,
                                      wrap,     tensor,          pipeline,     expert};
constexpr std::array for_routing = {full_recompute, microbatch, tensor, context, expert, bf16_compute};
constexpr std::array for_communication = {microbatch, wrap,           each_microbatch, tensor,
                                          pipeline,   bf16_reduction, element_rule};
constexpr std::array for_workspace = {microbatch, tensor, context, element_rule};
constexpr std::array beside_more_ranks = {selective, full_recompute, microbatch};

// Remedies that are tried first at their best, and that cannot help.
constexpr std::array not_for_state = {microbatch, full_recompute};
constexpr std::array not_for_activations = {strategy, bf16_state};
constexpr std::array not_for_units = {microbatch, full_recompute};
constexpr std::array not_for_gradients = {microbatch, residency, lookahead};
constexpr std::array not_for_scratch = {strategy, bf16_state};

std::string_view key_of(std::string_view word) {
  return word.substr(0, word.find('='));
}

}  // namespace

std::string_view name_of(Cause cause) {
  constexpr std::string_view names[] = {
      "activations",   "state",    "unsharded parameters", "unsharded gradients", "routing of experts",
      "communication", "workspace"};
  return names[static_cast<std::size_t>(cause)];
}

Cause cause_of(Bucket bucket) {
  switch (bucket) {
    case Bucket::sharded_parameters:
    case Bucket::replicated_parameters:
    case Bucket::sharded_gradients:
    case Bucket::optimizer_state:
      return Cause::state;
    case Bucket::unsharded_parameters:
      return Cause::unsharded_parameters;
    case Bucket::unsharded_gradients:
      return Cause::unsharded_gradients;
    case Bucket::activations:
      return Cause::activations;
    case Bucket::moe_routing:
      return Cause::routing;
    case Bucket::communication:
      return Cause::communication;
    case Bucket::workspace:
      break;
  }
  return Cause::workspace;
}

std::int64_t bytes_of(Cause cause, const BucketBytes& bytes) {
  std::int64_t sum = 0;
  for (std::size_t b = 0; b < bucket_count; ++b) {
    const auto bucket = static_cast<Bucket>(b);
    if (cause_of(bucket) == cause) sum += bytes[bucket];
  }
  return sum;
}

Cause largest_cause(const BucketBytes& bytes) {
  Cause largest = Cause::activations;
  for (std::size_t c = 0; c < cause_count; ++c) {
    const auto cause = static_cast<Cause>(c);
    if (bytes_of(cause, bytes) > bytes_of(largest, bytes)) largest = cause;
  }
  return largest;
}

std::span<const Remedy> remedies_for(Cause cause) {
  switch (cause) {
    case Cause::activations:
      return for_activations;
    case Cause::state:
      return for_state;
    case Cause::unsharded_parameters:
      return for_parameters;
    case Cause::unsharded_gradients:
      return for_gradients;
    case Cause::routing:
      return for_routing;
    case Cause::communication:
      return for_communication;
    case Cause::workspace:
      break;
  }
  return for_workspace;
}

std::span<const Remedy> remedies_that_cannot_help(Cause cause) {
  switch (cause) {
    case Cause::activations:
      return not_for_activations;
    case Cause::state:
      return not_for_state;
    case Cause::unsharded_parameters:
      return not_for_units;
    case Cause::unsharded_gradients:
      return not_for_gradients;
    default:
      break;
  }
  return not_for_scratch;
}

std::span<const Remedy> remedies_beside_more_ranks() {
  return beside_more_ranks;
}

Overrides merged_words(const Overrides& words, const Overrides& more) {
  Overrides merged;
  for (const std::string& word : words) {
    const auto same_key = [&](const std::string& other) { return key_of(other) == key_of(word); };
    if (std::ranges::none_of(more, same_key)) merged.push_back(word);
  }
  merged.insert(merged.end(), more.begin(), more.end());
  return merged;
}

Overrides scaled_words(const Config& config, int data_shard) {
  const std::int64_t of_one = config.training.global_batch_size / config.parallelism.data_shard;
  return {fmt::format("--parallelism.data_shard={}", data_shard),
          fmt::format("--training.global_batch_size={}", of_one * data_shard)};
}

}  // namespace weft
