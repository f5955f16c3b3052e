// Ways to share a model's state among its data ranks, planned beside each other for one configuration, and which of
// them to take on given hardware: the fastest that fits, and with what it would be another.
//
// Every way is the configuration with other degrees and another shard policy, checked by the rules of the reader and
// planned like any other (run_plan.h). A strategy is taken as the preset that it is (unit_policy.h): residency,
// reduction and accumulation as it says. What a family says of itself, other than the default policy does, stays as
// written, and so do lookahead, wrap and dtypes of all.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/costs/hardware.h"
#include "trainer/planning/run_plan.h"

namespace weft {

enum class Sharding : std::uint8_t {
  as_configured,         // where it is none of the others
  full_shard,            // over all data ranks
  shard_grad_op,         // over all data ranks
  optimizer,             // over all data ranks
  hybrid,                // full_shard over the data ranks of a node, replicated over nodes
  hybrid_shard_grad_op,  // the same of shard_grad_op
  island,                // full_shard; after a forward the ranks of a node keep the parameters among them
  no_shard,
};
std::string_view name_of(Sharding sharding);

struct StrategyPlan {
  Sharding sharding = Sharding::full_shard;
  Config config = {};                   // what a run of it has
  std::vector<std::string> words = {};  // what makes it of the given configuration: "--shard.strategy=shard_grad_op"
  std::string refused = {};             // why it does not apply; then nothing below is there
  std::optional<RunPlan> plan = {};

  // Of the fullest rank at its peak. What is left of the peak is activations, gradients that are not sharded, and the
  // like.
  std::int64_t state_bytes = 0;  // parameters, gradients and optimizer state that the run keeps from step to step
  std::int64_t full_parameter_bytes = 0;  // gathered, or copied to the dtype of compute
  std::int64_t collectives = 0;           // that a rank takes part in, in a step, of the rank with most
  // Out of the node that most leaves in a step, at the rate of all its adapters.
  double egress_seconds = 0.0;
  // What of it does not grow with tokens: gathers and reductions of units.
  double unit_egress_bytes = 0.0;

  double seconds = 0.0;          // of a step, simulated
  double exposed_seconds = 0.0;  // in which computation waits for gathers and reductions, of the rank with most
  // With how many tokens a rank and step the computation takes as long as that; 0 where nothing leaves a node.
  double break_even = 0.0;

  bool fits() const { return plan && plan->verdict.fits(); }
};

// In the order of Sharding. Throws Error (request) as plan_run does of the configuration itself.
std::vector<StrategyPlan> compare_strategies(const Config& config, const Hardware& hardware);

// Products of a step on one rank, 6 x active parameters x tokens of the rank over `reached` of the peak: without scores
// of attention, recomputation and bubbles.
double compute_seconds(const Config& config, const Hardware& hardware);

// Tokens a rank and step with which 6 `parameters` tokens / `flops_per_second` equals
// `egress_bytes` / `node_bytes_per_second`. The rate is what is reached of one card's peak.
double break_even_tokens(double egress_bytes, double node_bytes_per_second, double parameters, double flops_per_second);
// What products reach on one card, in the dtype of dense parts.
double reached_flops_per_second(const Config& config, const Hardware& hardware);

struct Recommendation {
  std::optional<std::size_t> chosen = {};  // of the plans; nothing where none fits
  std::vector<std::string> reasons;        // sentences; the first says what was chosen
  // With what another would be chosen, or this one not fit.
  std::vector<std::string> flips;
};

// Of those that fit, the fastest. Of those within 1 % of it:
//
//   over several nodes   the one that takes least memory: more tokens a step, for which it leaves room, are what hides
//                        traffic over a slow link
//   on one node          the one that sends least, of these the one with fewest collectives: traffic is hidden already,
//                        and memory that is left is of no use
//
// Less memory decides last. `plans` are of compare_strategies for the same hardware.
Recommendation recommend(std::span<const StrategyPlan> plans, const Hardware& hardware);
inline constexpr double tie = 1.01;

// The longest sequence, in steps of `config`'s own or of an eighth of the power of two times it, with which the fullest
// rank is within Verdict::limit of the card, everything else as configured. Nothing where the configuration itself does
// not fit or the hardware has no memory of its own. Each length tried is a dry run.
std::optional<std::int64_t> longest_sequence(const Config& config, const Hardware& hardware);

}  // namespace weft
