// Alternative settings of the same run, for rules to compare the run with. Each changes one thing and nothing else.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trainer/diagnosis/evidence.h"

namespace weft {

void wrap_all(Config& config, const std::string& wrap);
// Gradients are reduced at the last microbatch only, unsharded until then.
void defer_reductions(Config& config);
void set_residency(Config& config, const std::string& residency);
void compute_in_16_bits(Config& config);
void look_ahead(Config& config);

// The configuration with data_shard split into the fewest replicas that keep every shard group inside a node. Absent if
// no shard group crosses nodes, or if no split that still shards achieves it.
std::optional<Config> hybrid_of(const Config& config, const RunHardware& hardware);

// Predicted peak of the run minus that of the alternative; `words` name the alternative. Absent if the difference is
// not positive.
std::optional<MemoryCost> predicted_excess(const RunEvidence& evidence, const ProgramFigures& alternative,
                                           std::string_view words);

// Seconds that the links of a rank would be busy less with the other exchange, with calls one after the other.
ModelledSeconds saved_on_links(const RunEvidence& evidence, const CommunicationCounters& own,
                               const CommunicationCounters& other);

// Whether so many more bytes fit beside the measured peak; true for a negative number. Absent if the memory of a rank
// is unknown.
std::optional<bool> fits(const RunEvidence& evidence, std::int64_t bytes_more);
// The same in words, for the evidence of a finding.
std::string memory_text(const RunEvidence& evidence, std::int64_t bytes_more);

}  // namespace weft
