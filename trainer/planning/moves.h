// What can be changed about a run that does not fit, by what fills its memory, in the order in which it should be
// tried: what is free or cheap first, what changes the arithmetic of the run last. A move is words for the command
// line, so that what is planned is what somebody can type; whether the configuration can take them, its reader says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

// Why a rank's memory is full: buckets that the same moves lower.
enum class Cause : std::uint8_t {
  activations,
  state,  // parameters at rest, gradients at rest, optimizer state
  unsharded_parameters,
  unsharded_gradients,
  routing,
  communication,
  workspace,
};
inline constexpr std::size_t cause_count = 7;
std::string_view name_of(Cause cause);
Cause cause_of(Bucket bucket);
std::int64_t bytes_of(Cause cause, const BucketBytes& bytes);
// The one with most bytes.
Cause largest_cause(const BucketBytes& bytes);

// One strength of a move. `by_family` are further words that are needed only where the file says otherwise of a family
// than of all.
struct MoveWords {
  Overrides words;
  Overrides by_family = {};
  bool operator==(const MoveWords&) const = default;
};

enum class MoveKind : std::uint8_t {
  layout,      // the run computes the same
  arithmetic,  // it rounds or steps otherwise
};

struct Move {
  std::string_view name;
  std::string_view why;   // it lowers the bucket
  std::string_view cost;  // in words; the plan has the time
  MoveKind kind = MoveKind::layout;
  // Mildest first; none where there is nothing left to change.
  std::vector<MoveWords> (*strengths)(const Config& config) = nullptr;
};

// In the order in which they should be tried. More GPUs are not among them (explain.h looks for their number).
std::span<const Move> moves_for(Cause cause);
// What people try, and what does not touch this cause.
std::span<const Move> moves_that_cannot_help(Cause cause);
// What goes with more ranks, in the order to add it, where state is not all that there is too much of.
std::span<const Move> moves_beside_more_ranks();

// `words`, with those of `more` in place of the ones for the same key.
Overrides merged_words(const Overrides& words, const Overrides& more);

// The same degrees over more ranks, each with as much to do: `data_shard` ranks, and a batch that grows with them.
Overrides scaled_words(const Config& config, int data_shard);

}  // namespace weft
