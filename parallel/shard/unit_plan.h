// The formation of shard units: sets of parameters that are gathered and reduced together. Units follow execution
// boundaries, bottom-up: the expert bank of a block, the dense rest of that block, embedding, final norm with head. The
// stage root comes last, for all other parameters. The wrap policy of each family makes units larger or smaller.
// Weights of routers and their helpers belong to no unit: they are replicated.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/parameter.h"
#include "parallel/shard/wrap.h"

namespace weft {

// Parameters declared by one piece of the model, such as the attention part of block 3: scope "blocks.3", segment
// "blocks.3.attention". Wrap policies count scopes as blocks.
struct ScopedParameters {
  std::string scope;
  std::vector<ParameterSpec> parameters;
  std::string segment = {};
};

struct UnitPlan {
  // "blocks.3.experts", "blocks.3.dense", "blocks.3.attention", "blocks.0-1.dense", "embedding", "head.embedding" (in
  // another scope: a tied weight beside the head), "head", "head.projection" (alone), "stage.1.root",
  // "stage.1.experts", "stage.1.routing", "stage.1.helpers", "stage.1.dense.replicated"
  std::string name;
  Family family = Family::root;  // of all parameters; `root` for a root unit, which may hold several families
  std::vector<ParameterSpec> parameters;
  std::string why = {};   // why these parameters form a unit, in words
  bool as_asked = false;  // replicated by WrapRules::replicate or replicate_below
  bool replicated() const { return as_asked || is_replicated(family); }
};

struct WrapRules {
  WrapPolicies by_family = {};
  // The groups and times of a family's gathers and reductions, as text from the caller. Units are merged only if their
  // keys are equal. Families that share a root unit must have the key of Family::root, because that unit has its
  // policy.
  std::map<Family, std::string> merge_key = {};
  std::int64_t element_bytes = 4;  // of one element of a gathered parameter: the compute dtype
  // Names of parameters that form a unit of their own, whatever their family's wrap: those with copies on other stages.
  std::set<std::string> alone = {};
  // Patterns, with * and ?, of parameters that every rank of a stage has whole, outside shard units.
  std::vector<std::string> replicate = {};
  // Vectors of fewer elements likewise, except those of experts and those of `alone`.
  std::int64_t replicate_below = 0;
};

// Units of one stage, in order of first declaration, with routing helpers last. Every rank of a stage forms the same
// units if ranks hold equal boxes of the blocks' parameters; tensor and expert parallelism guarantee equal boxes.
//
// Parameters of different families never share a unit, with one exception. Wrap "root" puts embedding, head and dense
// parameters into the stage's root unit, together with the leftover parameters. Routed experts are sharded over another
// group and run after the dispatch, so experts wrapped as "root" form a separate unit.
//
// Throws Error: failure naming a parameter declared twice, request if families of different keys would share a unit.
// Without rules all families are wrapped by block.
std::vector<UnitPlan> form_units(std::span<const ScopedParameters> pieces, int stage, const WrapRules& rules = {});

}  // namespace weft
