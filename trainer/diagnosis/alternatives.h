// Alternative settings of the same run, for rules to compare the run with. Each changes one thing and nothing else.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/diagnosis/evidence.h"

namespace weft {

// Gradients are reduced at the last microbatch only, unsharded until then.
void defer_reductions(ShardPolicy& policy);
// Parameters are kept for the step.
void keep_parameters(ShardPolicy& policy);
void compute_in_16_bits(Config& config);

// Changes the default policy and the policy of every family.
void change_policies(Config& config, const std::function<void(ShardPolicy&)>& change);

// The figures of another configuration beside those of the run.
struct Alternative : ProgramFigures {
  // Of the fullest rank's predicted peak, beyond that of the run; negative where it takes less.
  std::int64_t bytes_more = 0;
  // Whether so many more bytes fit beside the measured peak. Absent if the memory of a rank is unknown.
  std::optional<bool> fits = true;
  std::string memory = {};  // the same in words
};
// The configuration is resolved anew; absent if it is refused.
std::optional<Alternative> alternative_of(const RunEvidence& evidence, const Config& config);
// The configuration of the run after a change of all policies.
std::optional<Alternative> alternative_with(const RunEvidence& evidence,
                                            const std::function<void(ShardPolicy&)>& change);

// The settings of a key of [shard] with a value for which `holds` is true, of families that read the key. These are the
// keys of families with a value written for themselves, after "shard.KEY" if another of the families inherits it. Empty
// if there is no such family.
std::string policy_setting(const RunEvidence& evidence, std::string_view key,
                           const std::function<bool(const ShardPolicy&)>& holds);
// The same for precision.compute and families that compute in float32.
std::string float32_setting(const RunEvidence& evidence);

// The configuration with data_shard split into the fewest replicas that keep every shard group inside a node. Absent if
// no shard group crosses nodes, or if no split that still shards achieves it.
std::optional<Config> hybrid_of(const Config& config, const RunHardware& hardware);

// Predicted peak of the run minus that of the alternative; `words` name the alternative. Absent if the difference is
// not positive.
std::optional<MemoryCost> predicted_excess(const Alternative& alternative, std::string_view words);

// Seconds that the links of a rank would be busy less with the exchange of the alternative, with calls one after the
// other.
StepCost saved_on_links(const RunEvidence& evidence, const ProgramFigures& alternative);

// The measured memory beside what the alternative takes: "`what` takes ...".
EvidenceLine memory_line(const RunEvidence& evidence, std::string_view what, const Alternative& alternative);

}  // namespace weft
