// Changes that lower the memory of a run that does not fit, by the cause that fills the memory. They stand in the order
// to try them: free or cheap changes first, changes of the run's arithmetic last. A remedy is words for the command
// line, so every planned run can be typed. The configuration's reader decides whether the configuration can take the
// words.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

// The causes of a full rank: groups of the ledger's buckets that the same remedies lower.
enum class Cause : std::uint8_t {
  activations,
  state,  // parameters at rest, gradients at rest, optimizer state
  unsharded_parameters,
  unsharded_gradients,
  routing,
  communication,
  workspace,
};
constexpr auto enum_names(Cause) {
  return name_list("activations", "state", "unsharded parameters", "unsharded gradients", "routing of experts",
                   "communication", "workspace");
}
Cause cause_of(Bucket bucket);
std::int64_t bytes_of(Cause cause, const BucketBytes& bytes);
// The cause with most bytes.
Cause largest_cause(const BucketBytes& bytes);

// One strength of a remedy. `by_family`: further words, needed only if the file sets a family differently from the
// default.
struct RemedyOverrides {
  Overrides words;
  Overrides by_family = {};
};

enum class RemedyKind : std::uint8_t {
  layout,      // the result of the run stays the same
  arithmetic,  // rounding or the update changes
};

struct Remedy {
  std::string_view name;
  std::string_view why;   // why the remedy lowers the bucket
  std::string_view cost;  // in words; the time is in the plan
  // Mildest first; empty if nothing is left to change.
  std::vector<RemedyOverrides> (*strengths)(const Config& config) = nullptr;
  RemedyKind kind = RemedyKind::layout;
};

// Remedies in the order to try them. More GPUs are not among them (explain.h looks for their number).
std::span<const Remedy> remedies_for(Cause cause);
// Where the host's memory is too small, whatever the cause on the device.
std::span<const Remedy> remedies_against_host();
// Remedies that people try and that do not touch this cause.
std::span<const Remedy> remedies_that_cannot_help(Cause cause);
// Remedies to combine with more ranks, in the order to add them, if more than state is too large.
std::span<const Remedy> remedies_beside_more_ranks();

// A key set on the command line: "--parallelism.pipeline=4".
template <typename Value>
std::string word(std::string_view key, const Value& value) {
  return fmt::format("--{}={}", key, value);
}
// A word for each of `keys`, by path, that `now` reads and that has another value in `before`.
Overrides changed_words(const Config& before, const Config& now, const std::vector<std::string>& keys);
// `words` with those of `more`; `more` wins if both have a key.
Overrides merged_words(const Overrides& words, const Overrides& more);
// The same degrees over more ranks, with the same work per rank: `data_shard` ranks, and a batch that grows with them.
Overrides scaled_words(const Config& config, int data_shard);

}  // namespace weft
