// Which parameters travel together. Units are formed bottom-up along execution boundaries: the expert bank of a block,
// the dense rest of that block, embedding, final norm with head, and last the stage root for what is left. Routing
// helpers belong to no unit: they are replicated.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/parameter.h"

namespace weft {

// Parameters declared by one piece of the model, such as the attention part of block 3; scope "blocks.3".
struct ScopedParameters {
  std::string scope;
  std::vector<ParameterSpec> parameters;
};

struct UnitPlan {
  std::string name;  // "blocks.3.experts", "blocks.3.dense", "embedding", "head", "stage.1.root", "stage.1.routing"
  Family family = Family::root;
  std::vector<ParameterSpec> parameters;
  bool replicated() const { return family == Family::routing; }
};

// The unit that a parameter of this scope and family travels in.
std::string unit_name(const std::string& scope, Family family, int stage);

// Units of one stage, in order of first declaration, the routing helpers last. Throws Error (failure) naming a
// parameter declared twice.
std::vector<UnitPlan> form_units(std::span<const ScopedParameters> pieces, int stage);

}  // namespace weft
