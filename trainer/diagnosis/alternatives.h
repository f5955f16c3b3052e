// Other settings of the same run, for rules to hold it against: each changes what one rule is about and nothing else.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trainer/diagnosis/evidence.h"

namespace weft {

void wrap_all(Config& config, const std::string& wrap);
// Gradients wait for the last microbatch, whole.
void defer_reductions(Config& config);
void set_residency(Config& config, const std::string& residency);
void compute_in_16_bits(Config& config);
void look_ahead(Config& config);

// data_shard cut into as few replicas as keep every shard group inside a node; nothing where the groups are so already,
// or where none that shards does.
std::optional<Config> hybrid_of(const Config& config, const RunHardware& hardware);

// What the run's peak is predicted to have more than that of the alternative, `words` saying which; absent where it has
// not.
std::optional<MemoryCost> predicted_excess(const RunEvidence& evidence, const ProgramFigures& alternative,
                                           std::string_view words);

// What the links of a rank would be busy for less with the other exchange, each call behind the one before it.
ModelledSeconds saved_on_links(const RunEvidence& evidence, const CommunicationCounters& own,
                               const CommunicationCounters& other);

// Whether so many bytes more would fit beside the measured peak, as fewer always do; nothing where the memory of a rank
// is not known.
std::optional<bool> fits(const RunEvidence& evidence, std::int64_t bytes_more);
// The same in words, for the evidence of a finding.
std::string memory_text(const RunEvidence& evidence, std::int64_t bytes_more);

}  // namespace weft
