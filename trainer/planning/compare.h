// Plans every way of sharding a model's state over its data ranks for one configuration, and recommends one on given
// hardware: the fastest that fits. The recommendation also says under which conditions another would be chosen.
//
// Each way is the configuration with other degrees and another shard policy. It is checked by the rules of the reader
// and planned like any other run (run_plan.h). Each strategy is used as its preset (unit_policy.h), with the preset's
// residency, reduction and accumulation. Settings of a family that differ from the default policy stay as written.
// Lookahead, wrap and dtypes stay as written for all families.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/planned_variants.h"
#include "trainer/planning/run_plan.h"

namespace weft {

enum class Sharding : std::uint8_t {
  as_configured,         // if the configuration is none of the others
  full_shard,            // over all data ranks
  shard_grad_op,         // over all data ranks
  optimizer,             // over all data ranks
  hybrid,                // full_shard over the data ranks of a node, replicated over nodes
  hybrid_shard_grad_op,  // as hybrid, with shard_grad_op
  island,                // full_shard; after a forward, parameters stay sharded over the ranks of a node
  no_shard,
};
constexpr auto enum_names(Sharding) {
  return name_list("as_configured", "full_shard", "shard_grad_op", "optimizer", "hybrid", "hybrid_shard_grad_op",
                   "island", "no_shard");
}

struct StrategyPlan {
  Sharding sharding = Sharding::full_shard;
  Config config = {};                   // the configuration of such a run
  std::vector<std::string> words = {};  // overrides of the given configuration: "--shard.strategy=shard_grad_op"
  std::string refused = {};             // why the strategy does not apply; the fields below are then empty
  std::optional<RunPlan> plan = {};

  // Bytes of the fullest rank at its peak. The rest of the peak is activations, unsharded gradients and the like.
  std::int64_t state_bytes = 0;           // parameters, gradients and optimizer state that persist across steps
  std::int64_t full_parameter_bytes = 0;  // gathered, or converted to the compute dtype
  std::int64_t collectives = 0;           // of a step, of the rank with most
  // Seconds that the traffic of a step out of the busiest node takes at the rate of all the node's adapters.
  double egress_seconds = 0.0;

  double seconds = 0.0;          // of a step, simulated
  double exposed_seconds = 0.0;  // compute waits for collectives beside it, of the rank with most
  // Tokens per rank and step at which compute takes as long as the traffic out of a node that does not grow with
  // tokens. Such traffic is gathers and reductions of units. 0 if nothing leaves a node.
  double break_even = 0.0;

  bool fits() const { return plan && plan->verdict.fits(); }
};

// Every way but `as_configured`, in the order of Sharding, with configuration and words and without a plan.
std::vector<StrategyPlan> unplanned_strategies(const Config& config, const Hardware& hardware);

// Adds words for families that give the default policy's values themselves, which the words of that do not reach.
// `read` reads the given configuration.
void reach_families(std::vector<StrategyPlan>& plans, const Config& given, const ReadWith& read);

// Plans in the order of Sharding. Throws Error (request) for the configuration itself as plan_run does.
std::vector<StrategyPlan> compare_strategies(const Config& config, const Hardware& hardware);

// The largest training.microbatch_size that fits (Verdict::limit), as the plan's dry runs say. It is given without
// recomputation, and with that of all blocks that the configuration lets be recomputed ("full"). A step has as many
// microbatches as before, so its batch grows. It is judged by RunPlan::judging(). 0 if no size fits; sizes above `most_sequences` are not tried.
struct LargestMicrobatch {
  std::int64_t plain = 0, recomputed = 0;
  bool operator==(const LargestMicrobatch&) const = default;
};
inline constexpr std::int64_t most_sequences = 1 << 12;
// Of each of the plans; absent for those that are refused. Hardware without memory has no limits: all are absent.
std::vector<std::optional<LargestMicrobatch>> largest_microbatches(std::span<const StrategyPlan> plans,
                                                                   const Hardware& hardware);

// Seconds of computation of the mean rank in the simulated step of the first plan, attention and recomputation
// included; 0 if all plans are refused.
double compute_seconds(std::span<const StrategyPlan> plans);

// Tokens per rank and step at which 6 `parameters` tokens / `flops_per_second` equals `egress_bytes` /
// `node_bytes_per_second`. `flops_per_second` is the rate that one card reaches.
double break_even_tokens(double egress_bytes, double node_bytes_per_second, double parameters, double flops_per_second);

struct Recommendation {
  std::optional<std::size_t> chosen = {};  // index into the plans; absent if none fits
  std::vector<std::string> reasons;        // sentences; the first says what was chosen
  // Conditions under which another plan would be chosen, or the chosen plan would not fit.
  std::vector<std::string> flips;
};

// Chooses the fastest of the plans that fit. Among plans within 1 % (timing_tie) of the fastest:
//
//   over several nodes   the plan with least memory: the memory left allows more tokens a step, and more tokens hide
//                        traffic over a slow link
//   on one node          the plan that sends least, then the plan with fewest collectives: traffic is hidden already,
//                        and free memory brings nothing
//
// Less memory decides last. `plans` come from compare_strategies for the same hardware.
Recommendation recommend(std::span<const StrategyPlan> plans, const Hardware& hardware);

// The longest sequence with which the fullest rank is within Verdict::limit of the card, everything else as configured.
// Powers of two times `config`'s length are tried, then eighths above the largest of them that fits. Absent if the
// configuration itself does not fit, or if the hardware has no memory of its own. Each length tried is a dry run.
std::optional<std::int64_t> longest_sequence(const Config& config, const Hardware& hardware,
                                             Routing routing = Routing::even);

}  // namespace weft
