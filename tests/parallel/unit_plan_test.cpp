// The parameters that travel together: units of dense and MoE blocks, of the ends of the model, and the rest.
#include "parallel/shard/unit_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

ParameterSpec parameter(const std::string& name, Family family) {
  return whole_parameter(name, family, 4, 4, Initializer::normal);
}

// A stage with every kind of piece, routing helpers in the middle as a MoE block declares them.
std::vector<ScopedParameters> whole_model() {
  return {
      {"embedding", {parameter("embedding.weight", Family::embedding)}},
      {"blocks.0",
       {parameter("blocks.0.attention.norm.weight", Family::dense),
        parameter("blocks.0.attention.q_proj.weight", Family::dense)}},
      {"blocks.0", {parameter("blocks.0.mlp.up_proj.weight", Family::dense)}},
      {"blocks.1", {parameter("blocks.1.attention.q_proj.weight", Family::dense)}},
      {"blocks.1",
       {parameter("blocks.1.moe.norm.weight", Family::dense), parameter("blocks.1.moe.router.weight", Family::routing),
        parameter("blocks.1.moe.experts.0.up_proj.weight", Family::experts),
        parameter("blocks.1.moe.experts.1.up_proj.weight", Family::experts),
        parameter("blocks.1.moe.shared.up_proj.weight", Family::dense)}},
      {"blocks.2", {parameter("blocks.2.moe.router.weight", Family::routing)}},
      {"head", {parameter("final_norm.weight", Family::head), parameter("head.weight", Family::head)}},
      {"extra", {parameter("temperature", Family::root)}},
  };
}

std::vector<std::string> names_of(const UnitPlan& unit) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : unit.parameters) names.push_back(spec.name);
  return names;
}

TEST(UnitPlan, FormsUnitsInOrderOfDeclarationWithRoutingLast) {
  struct Expected {
    std::string name;
    Family family;
    std::vector<std::string> parameters;
  };
  const std::vector<Expected> expected = {
      {"embedding", Family::embedding, {"embedding.weight"}},
      {"blocks.0.dense",
       Family::dense,
       {"blocks.0.attention.norm.weight", "blocks.0.attention.q_proj.weight", "blocks.0.mlp.up_proj.weight"}},
      {"blocks.1.dense",
       Family::dense,
       {"blocks.1.attention.q_proj.weight", "blocks.1.moe.norm.weight", "blocks.1.moe.shared.up_proj.weight"}},
      {"blocks.1.experts",
       Family::experts,
       {"blocks.1.moe.experts.0.up_proj.weight", "blocks.1.moe.experts.1.up_proj.weight"}},
      {"head", Family::head, {"final_norm.weight", "head.weight"}},
      {"stage.3.root", Family::root, {"temperature"}},
      {"stage.3.routing", Family::routing, {"blocks.1.moe.router.weight", "blocks.2.moe.router.weight"}},
  };
  const std::vector<UnitPlan> units = form_units(whole_model(), 3);
  ASSERT_EQ(units.size(), expected.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    EXPECT_EQ(units[i].name, expected[i].name);
    EXPECT_EQ(units[i].family, expected[i].family);
    EXPECT_EQ(names_of(units[i]), expected[i].parameters);
    EXPECT_EQ(units[i].replicated(), expected[i].family == Family::routing);
  }
}

TEST(UnitPlan, PutsEveryParameterIntoExactlyOneUnitOfItsFamily) {
  const std::vector<UnitPlan> units = form_units(whole_model(), 0);
  std::map<std::string, int> times;
  for (const UnitPlan& unit : units) {
    for (const ParameterSpec& spec : unit.parameters) {
      ++times[spec.name];
      // In particular no expert parameter travels with a block's dense rest.
      EXPECT_EQ(spec.family, unit.family) << spec.name << " in " << unit.name;
    }
  }
  std::size_t declared = 0;
  for (const ScopedParameters& piece : whole_model()) {
    for (const ParameterSpec& spec : piece.parameters) {
      EXPECT_EQ(times[spec.name], 1) << spec.name;
      ++declared;
    }
  }
  EXPECT_EQ(times.size(), declared);
}

TEST(UnitPlan, AStageWithoutParametersHasNoUnits) {
  EXPECT_TRUE(form_units({}, 0).empty());
  EXPECT_TRUE(form_units(std::vector<ScopedParameters>{{"blocks.0", {}}}, 0).empty());
}

TEST(UnitPlan, RefusesAParameterDeclaredTwiceEvenInDifferentPieces) {
  std::vector<ScopedParameters> pieces = whole_model();
  pieces.push_back({"blocks.2", {parameter("blocks.0.mlp.up_proj.weight", Family::experts)}});
  try {
    form_units(pieces, 2);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_STREQ(error.what(), "parameter blocks.0.mlp.up_proj.weight is declared twice on stage 2");
  }
}

}  // namespace
}  // namespace weft
