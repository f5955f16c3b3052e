// Data sharding alone beside the hybrids of a search. It is FSDP over all ranks, without pipeline, tensor, context or
// expert ranks or replicas; hybrids are meshes with such ranks. The term of the step or of the memory that decides
// between them is given, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/planning/search.h"

namespace weft {

enum class LayoutKind : std::uint8_t { data_sharding, hybrid, neither };
constexpr auto enum_names(LayoutKind) {
  return name_list("data sharding alone", "hybrid", "neither");
}
LayoutKind kind_of(const Degrees& mesh);

struct BestOfKind {
  bool searched = false;  // whether the space has such meshes
  std::optional<Config> config = {};
  // The fastest that fits, or else the one that needs least memory. Absent if rules refuse all.
  std::optional<RunPlan> plan = {};
  bool fits() const { return plan && plan->verdict.fits(); }
};

// A term of the mean rank's step (StepPart), in seconds.
struct TermOfKinds {
  std::string what;
  double data_sharding = 0.0, hybrid = 0.0;
  double difference() const { return hybrid - data_sharding; }
};

struct KindsOfLayout {
  BestOfKind data_sharding, hybrid;
  // Of both plans; the largest difference first. Each plan's add up to its step.
  std::vector<TermOfKinds> terms = {};

  // One sentence: the term that decides, or the memory where only one fits.
  std::string decision() const;
};

// `found`: the search of the whole space. Its fastest plan is the best of its kind; the others are searched for.
KindsOfLayout compare_kinds(const SearchSpace& space, const SearchResult& found, std::size_t threads);

}  // namespace weft
