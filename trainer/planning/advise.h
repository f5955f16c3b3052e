// Advice on the sharding of one configuration, key after key. First comes the wrap of segments into units, then the
// strategy with its times to gather and drop. Then comes the lead of gathers, or that of a backward's alone, and last
// what backwards recompute. At the end keys go back to their configured values where that does as well. Each value is a
// run of its own, planned as PlannedVariants plan one, with the other keys as kept so far. Settings of a family stay as
// written, as in a comparison (compare.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/planning/planned_variants.h"

namespace weft {

struct TriedValue {
  std::string value;       // "blocks 2", "hybrid"; of "taken back" a step; of the first value of a step "as before"
  PlannedVariant variant;  // with the words of this value and of all steps before
};

struct AdvisedStep {
  std::string_view what;          // "wrap", "strategy", "lookahead", "recompute", "taken back"
  std::vector<TriedValue> tried;  // the first is the run before the step
  std::size_t kept = 0;           // index into `tried`

  const PlannedVariant& before() const { return tried.front().variant; }
  const PlannedVariant& after() const { return tried[kept].variant; }
};

// The value to keep: never slower than the first, if that fits. Of those that fit, the one of least memory within 1 %
// (timing_tie) of the fastest; if none fits, the one of least memory. Of those within 1 % of that memory it is the
// fastest, of equal ones the earliest.
std::size_t value_to_keep(std::span<const TriedValue> tried);

// The four steps in order, and one "taken back" for each step with keys that went back. The words of the last one's
// after() make the result. Throws Error (request) if the configuration itself cannot be planned.
std::vector<AdvisedStep> advise(const ReadWith& read, const Hardware& hardware);

}  // namespace weft
