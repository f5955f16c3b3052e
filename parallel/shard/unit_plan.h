// Which parameters travel together. Units are formed bottom-up along execution boundaries: the expert bank of a block,
// the dense rest of that block, embedding, final norm with head, and last the stage root for what is left; a wrap
// policy of each family makes them larger or smaller. Routing helpers belong to no unit: they are replicated.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/parameter.h"
#include "parallel/shard/wrap.h"

namespace weft {

// Parameters declared by one piece of the model, such as the attention part of block 3: scope "blocks.3", segment
// "blocks.3.attention". Scopes are the blocks that wrap policies count.
struct ScopedParameters {
  std::string scope;
  std::vector<ParameterSpec> parameters;
  std::string segment = {};
};

struct UnitPlan {
  // "blocks.3.experts", "blocks.3.dense", "blocks.3.attention", "blocks.0-1.dense", "embedding", "head.embedding" (of
  // another scope: a tied weight beside the head), "head", "stage.1.root", "stage.1.experts", "stage.1.routing"
  std::string name;
  Family family = Family::root;  // that of all parameters; of a root unit, which may hold several, `root`
  std::vector<ParameterSpec> parameters;
  std::string why = {};  // why they travel together, in words
  bool replicated() const { return family == Family::routing; }
};

struct WrapRules {
  WrapPolicies by_family = {};
  // What the units of a family are gathered and reduced over, and when, as the caller writes it: units are merged only
  // where it is equal. Families that share a root unit must have the key of Family::root, whose policy that unit gets.
  std::map<Family, std::string> merge_key = {};
  std::int64_t element_bytes = 4;  // of a gathered parameter: the compute dtype
};

// Units of one stage, in order of first declaration, the routing helpers last. Every rank of a stage forms the same
// units as long as ranks hold equal boxes of the blocks' parameters, which tensor and expert parallelism see to.
//
// Parameters of different families never share a unit, except that wrap "root" puts embedding, head and dense
// parameters into the stage's root unit, beside what is left over. Routed experts are sharded over another group and
// stand behind the dispatch: wrapped as "root" they are one unit of their own.
//
// Throws Error: failure naming a parameter declared twice, request where families of different keys would share a unit.
std::vector<UnitPlan> form_units(std::span<const ScopedParameters> pieces, int stage, const WrapRules& rules);
// Wrapped by block.
std::vector<UnitPlan> form_units(std::span<const ScopedParameters> pieces, int stage);

}  // namespace weft
