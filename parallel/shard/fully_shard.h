// The call that turns segments and a policy into shard units: what each unit holds, over how many ranks and in which
// dtypes. Plain data, the same on every rank of the stage; ShardUnit (unit.h) is a unit at run time. The times of
// gathers, drops and reductions are the program's (pipeline/program). tests/parallel/fully_shard_example_test.cpp
// trains a model of its own with it.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/shard/unit.h"
#include "parallel/shard/unit_plan.h"

namespace weft {

struct FullyShardPolicy {
  WrapRules wrap = {};
  // Ranks over which units of a family are sharded; 1: every rank keeps them whole. Called for families that form
  // units.
  std::function<std::int64_t(Family)> shards;
  std::function<UnitPrecision(Family)> precision = [](Family) { return UnitPrecision(); };
  std::set<Family> frozen = {};
};

struct FullyShardedUnit {
  UnitPlan plan;
  UnitLayout layout;        // of the boxes that the rank holds; unused for replicated parameters
  UnitPrecision precision;  // of replicated parameters: float32, with a copy to compute with if as asked
  bool frozen = false;
};

// Throws Error as form_units (unit_plan.h) and lay_out_unit (unit_layout.h).
std::vector<FullyShardedUnit> fully_shard(std::span<const ScopedParameters> pieces, int stage,
                                          const FullyShardPolicy& policy);

// A warning that names parameters without a family, which lie in a root unit; empty if the unit has none.
std::string family_warning(const UnitPlan& plan);

// The declarations of segments, each parameter once: those of embedding and head may be declared by several segments of
// a stage. Segments are pointers to objects with scope(), name() and parameters().
template <typename Segments>
std::vector<ScopedParameters> pieces_of(const Segments& segments) {
  std::vector<ScopedParameters> pieces;
  std::set<std::string_view> declared;
  for (const auto& segment : segments) {
    ScopedParameters& piece = pieces.emplace_back(segment->scope(), std::vector<ParameterSpec>(), segment->name());
    for (const ParameterSpec& parameter : segment->parameters()) {
      const bool shared = (parameter.family == Family::embedding || parameter.family == Family::head) &&
                          declared.contains(parameter.name);
      if (!shared) piece.parameters.push_back(parameter);
      declared.insert(parameter.name);
    }
  }
  return pieces;
}

}  // namespace weft
