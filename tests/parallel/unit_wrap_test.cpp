// The effect of wrap policies on the parameters that travel together, and the parameters that may never share a unit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "parallel/shard/unit_layout.h"
#include "parallel/shard/unit_plan.h"

namespace weft {
namespace {

ParameterSpec piece_parameter(const std::string& name, Family family, std::int64_t rows = 4) {
  return whole_parameter(name, family, rows, 4, Initializer::normal);
}

ScopedParameters attention(int block, std::int64_t rows = 4) {
  const std::string scope = fmt::format("blocks.{}", block);
  return {scope, {piece_parameter(scope + ".attention.q_proj", Family::dense, rows)}, scope + ".attention"};
}
ScopedParameters mlp(int block, std::int64_t rows = 4) {
  const std::string scope = fmt::format("blocks.{}", block);
  return {scope, {piece_parameter(scope + ".mlp.up_proj", Family::dense, rows)}, scope + ".mlp"};
}
ScopedParameters moe(int block) {
  const std::string scope = fmt::format("blocks.{}", block);
  return {scope,
          {piece_parameter(scope + ".moe.norm", Family::dense), piece_parameter(scope + ".router", Family::routing),
           piece_parameter(scope + ".experts.0.up_proj", Family::experts),
           piece_parameter(scope + ".experts.1.up_proj", Family::experts)},
          scope + ".experts"};
}

// Blocks 0 .. 4 of a whole model: dense, MoE, dense, MoE, MoE.
std::vector<ScopedParameters> hybrid() {
  return {{"embedding", {piece_parameter("embedding", Family::embedding)}, "embedding"},
          attention(0),
          mlp(0),
          attention(1),
          moe(1),
          attention(2),
          mlp(2),
          attention(3),
          moe(3),
          attention(4),
          moe(4),
          {"head", {piece_parameter("norm", Family::head), piece_parameter("head", Family::head)}, "head"}};
}

std::vector<std::string> unit_names(const std::vector<UnitPlan>& units) {
  std::vector<std::string> names;
  for (const UnitPlan& unit : units) names.push_back(unit.name);
  return names;
}

std::vector<std::string> parameter_names(const std::vector<UnitPlan>& units, const std::string& unit) {
  std::vector<std::string> names;
  for (const UnitPlan& plan : units) {
    if (plan.name != unit) continue;
    for (const ParameterSpec& spec : plan.parameters) names.push_back(spec.name);
  }
  return names;
}

std::vector<UnitPlan> form(const WrapPolicies& policies, int stage = 0) {
  return form_units(hybrid(), stage, {.by_family = policies});
}

using Names = std::vector<std::string>;

TEST(Wrap, ByBlockIsWhatNoPolicyGives) {
  const auto by_default = form_units(hybrid(), 0);
  const auto named = form({{Family::dense, {WrapKind::block}}, {Family::experts, {WrapKind::block}}});
  EXPECT_EQ(unit_names(by_default), unit_names(named));
  EXPECT_EQ(unit_names(by_default), (Names{"embedding", "blocks.0.dense", "blocks.1.dense", "blocks.1.experts",
                                           "blocks.2.dense", "blocks.3.dense", "blocks.3.experts", "blocks.4.dense",
                                           "blocks.4.experts", "head", "stage.0.routing"}));
}

TEST(Wrap, HalfBlocksAreTheSegments) {
  const auto units = form({{Family::dense, {WrapKind::half_block}}, {Family::experts, {WrapKind::half_block}}});
  EXPECT_EQ(unit_names(units),
            (Names{"embedding", "blocks.0.attention", "blocks.0.mlp", "blocks.1.attention", "blocks.1.experts.dense",
                   "blocks.1.experts", "blocks.2.attention", "blocks.2.mlp", "blocks.3.attention",
                   "blocks.3.experts.dense", "blocks.3.experts", "blocks.4.attention", "blocks.4.experts.dense",
                   "blocks.4.experts", "head", "stage.0.routing"}));
  EXPECT_EQ(parameter_names(units, "blocks.1.experts"),
            (Names{"blocks.1.experts.0.up_proj", "blocks.1.experts.1.up_proj"}));
}

TEST(Wrap, ConsecutiveBlocksShareAUnitOfTheirFamily) {
  const auto units = form({{Family::dense, {WrapKind::blocks, 2}}, {Family::experts, {WrapKind::blocks, 4}}});
  // Runs are counted over all blocks of the stage, so that a run of either family ends at the same places.
  EXPECT_EQ(unit_names(units), (Names{"embedding", "blocks.0-1.dense", "blocks.1-3.experts", "blocks.2-3.dense",
                                      "blocks.4.dense", "blocks.4.experts", "head", "stage.0.routing"}));
  EXPECT_EQ(parameter_names(units, "blocks.0-1.dense"), (Names{"blocks.0.attention.q_proj", "blocks.0.mlp.up_proj",
                                                               "blocks.1.attention.q_proj", "blocks.1.moe.norm"}));
}

// Blocks of 6, 2, 3, 9 and 1 rows of 4 columns, attention and MLP together: 96, 32, 48, 144 and 16 bytes in float32.
std::vector<ScopedParameters> uneven_blocks() {
  return {attention(0, 3), mlp(0, 3),       attention(1, 1), mlp(1, 1),      attention(2, 1),
          mlp(2, 2),       attention(3, 4), mlp(3, 5),       attention(4, 1)};
}

TEST(Wrap, SmallNeighboursAreMergedUntilTheyAreLargeEnough) {
  const auto form_at_least = [](std::int64_t bytes, std::int64_t element_bytes) {
    return unit_names(
        form_units(uneven_blocks(), 0,
                   {.by_family = {{Family::dense, {WrapKind::minimum_bytes, bytes}}}, .element_bytes = element_bytes}));
  };
  // 96 | 32 + 48 = 80 | 144 + the last 16, which has no neighbour behind it.
  EXPECT_EQ(form_at_least(80, 4), (Names{"blocks.0.dense", "blocks.1-2.dense", "blocks.3-4.dense"}));
  // One byte more: the 80 take the 144 in as well.
  EXPECT_EQ(form_at_least(81, 4), (Names{"blocks.0.dense", "blocks.1-4.dense"}));
  // The same halved: what counts is what a gather moves.
  EXPECT_EQ(form_at_least(40, 2), (Names{"blocks.0.dense", "blocks.1-2.dense", "blocks.3-4.dense"}));
  EXPECT_EQ(form_at_least(41, 2), (Names{"blocks.0.dense", "blocks.1-4.dense"}));
  EXPECT_EQ(form_at_least(1, 4).size(), 5u);
  EXPECT_EQ(form_at_least(1'000'000, 4), (Names{"blocks.0-4.dense"}));
}

TEST(Wrap, TheRootTakesDenseParametersAndExpertsStayApart) {
  const WrapPolicy root{WrapKind::root};
  const auto units =
      form({{Family::dense, root}, {Family::embedding, root}, {Family::head, root}, {Family::experts, root}}, 2);
  EXPECT_EQ(unit_names(units), (Names{"stage.2.root", "stage.2.experts", "stage.2.routing"}));
  EXPECT_EQ(units[0].family, Family::root);
  EXPECT_EQ(units[1].family, Family::experts);
  EXPECT_EQ(units[1].parameters.size(), 6u);

  // Leftovers are in it too, wherever they are declared.
  auto pieces = hybrid();
  pieces.insert(pieces.begin(), {"extra", {piece_parameter("temperature", Family::root)}});
  const auto embedding_only = form_units(pieces, 0, {.by_family = {{Family::embedding, root}}});
  EXPECT_EQ(parameter_names(embedding_only, "stage.0.root"), (Names{"temperature", "embedding"}));
}

TEST(Wrap, RefusesARootUnitOfTwoPolicies) {
  const WrapPolicy root{WrapKind::root};
  WrapRules rules{.by_family = {{Family::dense, root}, {Family::embedding, root}},
                  .merge_key = {{Family::dense, "dp_shard visit"},
                                {Family::embedding, "dp_shard visit"},
                                {Family::root, "dp_shard visit"},
                                {Family::experts, "edp_shard visit"}}};
  EXPECT_NO_THROW(form_units(hybrid(), 1, rules));
  rules.merge_key[Family::embedding] = "dp_shard step";
  try {
    form_units(hybrid(), 1, rules);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_STREQ(error.what(),
                 "stage 1: embedding parameters are wrapped into the root unit, but are sharded otherwise: \"dp_shard "
                 "step\" against \"dp_shard visit\" of the root; a unit has one policy");
  }
  // A family that is not wrapped into the root may have any policy.
  rules.by_family.erase(Family::embedding);
  EXPECT_NO_THROW(form_units(hybrid(), 1, rules));
}

TEST(Wrap, EveryUnitSaysWhyItIsOne) {
  const auto why = [](const std::vector<UnitPlan>& units, const std::string& name) -> std::string {
    for (const UnitPlan& unit : units) {
      if (unit.name == name) return unit.why;
    }
    return "no such unit";
  };
  const auto by_block = form({});
  EXPECT_EQ(why(by_block, "blocks.0.dense"),
            "dense parameters of blocks.0: used one after the other, so that one gather serves the block");
  EXPECT_EQ(why(by_block, "blocks.1.experts"),
            "routed experts of blocks.1, behind the dispatch and in the expert group: used one after the other, so "
            "that one gather serves the block");
  EXPECT_EQ(why(by_block, "embedding"),
            "embedding parameters of embedding: used at one end of the model, apart from all blocks");
  EXPECT_EQ(why(form({{Family::dense, {WrapKind::half_block}}}), "blocks.0.mlp"),
            "dense parameters of blocks.0: those of segment blocks.0.mlp alone, so that less is gathered at once");
  EXPECT_EQ(why(form({{Family::dense, {WrapKind::blocks, 2}}}), "blocks.2-3.dense"),
            "dense parameters of blocks.2-3: 2 consecutive blocks a unit, for fewer and larger gathers");
  EXPECT_EQ(why(form({{Family::embedding, {WrapKind::parameter}}}), "embedding"),
            "embedding parameters of embedding: one parameter alone, cut along its rows, with own collectives");
  const auto merged = form_units(uneven_blocks(), 0, {.by_family = {{Family::dense, {WrapKind::minimum_bytes, 80}}}});
  EXPECT_EQ(why(merged, "blocks.1-2.dense"),
            "dense parameters of blocks.1-2: 2 neighbouring blocks with 80 bytes, at least the 80 that a unit should "
            "have");
  EXPECT_EQ(why(merged, "blocks.0.dense"),
            "dense parameters of blocks.0: one block with 96 bytes, at least the 80 that a unit should have");
  const auto small = form_units(uneven_blocks(), 0, {.by_family = {{Family::dense, {WrapKind::minimum_bytes, 400}}}});
  EXPECT_EQ(why(small, "blocks.0-4.dense"),
            "dense parameters of blocks.0-4: all of its family on the stage, 336 bytes, fewer than the 400 that a unit "
            "should have");
  const auto root = form({{Family::dense, {WrapKind::root}}, {Family::embedding, {WrapKind::root}}}, 3);
  EXPECT_EQ(why(root, "stage.3.root"),
            "all embedding, dense parameters of stage 3: wrapped into its root unit, all gathered at once");
  EXPECT_EQ(why(root, "stage.3.routing"), "in no unit: small, on the routing path, whole and in float32 on every rank");
}

// Whatever the policies: every parameter in one unit, routed experts with experts only, blocks in whole runs.
TEST(Wrap, AnyPoliciesKeepEveryParameterOnceAndFamiliesApart) {
  const std::vector<WrapPolicy> choices = {
      {WrapKind::block},     {WrapKind::half_block},         {WrapKind::blocks, 1},
      {WrapKind::blocks, 2}, {WrapKind::blocks, 3},          {WrapKind::blocks, 9},
      {WrapKind::root},      {WrapKind::minimum_bytes, 100}, {WrapKind::minimum_bytes, 300}};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomStream random(seed, "wrap policies");
    WrapPolicies policies;
    std::uint64_t draw = 0;
    for (Family family : {Family::dense, Family::experts, Family::embedding, Family::head, Family::root}) {
      policies[family] = choices[random.bits(draw++) % choices.size()];
    }
    std::vector<ScopedParameters> pieces = {
        {"embedding", {piece_parameter("embedding", Family::embedding)}, "embedding"}};
    const int blocks = static_cast<int>(random.bits(draw++) % 7);
    for (int block = 0; block < blocks; ++block) {
      pieces.push_back(attention(block, 1 + static_cast<std::int64_t>(random.bits(draw++) % 9)));
      pieces.push_back(random.bits(draw++) % 2 == 0 ? mlp(block) : moe(block));
    }
    pieces.push_back({"head", {piece_parameter("head", Family::head)}, "head"});

    std::map<std::string, int> times;
    std::set<std::string> names;
    const auto units = form_units(pieces, 1, {.by_family = policies});
    for (const UnitPlan& unit : units) {
      EXPECT_TRUE(names.insert(unit.name).second) << unit.name;
      EXPECT_FALSE(unit.why.empty()) << unit.name;
      EXPECT_FALSE(unit.parameters.empty()) << unit.name;
      for (const ParameterSpec& spec : unit.parameters) {
        ++times[spec.name];
        if (unit.family != Family::root) {
          EXPECT_EQ(spec.family, unit.family) << spec.name << " in " << unit.name;
        } else {
          EXPECT_TRUE(spec.family != Family::experts && spec.family != Family::routing) << spec.name;
          EXPECT_EQ(policies[spec.family].kind, WrapKind::root) << spec.name;
        }
      }
      // Parameters keep the order of declaration, which is the order of use.
      Names declared, held;
      for (const ScopedParameters& piece : pieces) {
        for (const ParameterSpec& spec : piece.parameters) declared.push_back(spec.name);
      }
      for (const ParameterSpec& spec : unit.parameters) held.push_back(spec.name);
      const auto place = [&](const std::string& name) { return std::ranges::find(declared, name); };
      EXPECT_TRUE(std::ranges::is_sorted(held, {}, place)) << unit.name;
    }
    std::size_t declared = 0;
    for (const ScopedParameters& piece : pieces) {
      for (const ParameterSpec& spec : piece.parameters) EXPECT_EQ(times[spec.name], 1) << spec.name;
      declared += piece.parameters.size();
    }
    EXPECT_EQ(times.size(), declared);
    if (policies[Family::dense].kind == WrapKind::minimum_bytes) {
      // Either all are large enough, or there is one.
      std::vector<std::int64_t> sizes;
      for (const UnitPlan& unit : units) {
        if (unit.family != Family::dense) continue;
        sizes.push_back(0);
        for (const ParameterSpec& spec : unit.parameters) sizes.back() += 4 * spec.size();
      }
      const auto small =
          std::ranges::count_if(sizes, [&](std::int64_t size) { return size < policies[Family::dense].amount; });
      EXPECT_EQ(small, sizes.size() > 1 ? 0 : small);
    }
  }
}

// Names unchanged, and each parameter's rows cut by themselves where no product reads several.
TEST(Wrap, ByParameterGivesEachAUnitOfItsOwnName) {
  const WrapPolicy each{WrapKind::parameter};
  std::multiset<std::string> declared, formed;
  for (const ScopedParameters& piece : hybrid()) {
    for (const ParameterSpec& parameter : piece.parameters) declared.insert(parameter.name);
  }
  const auto units =
      form({{Family::dense, each}, {Family::experts, each}, {Family::embedding, each}, {Family::head, each}});
  for (const UnitPlan& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters) formed.insert(parameter.name);
    if (unit.replicated()) continue;
    ASSERT_EQ(unit.parameters.size(), 1u);
    EXPECT_EQ(unit.name, unit.parameters.front().name);
    const UnitLayout layout = lay_out_unit(unit.parameters, 4);
    // Rows are dealt whole: a shard has the same number of them, the last ones perhaps fewer.
    const std::int64_t rows = unit.parameters.front().rows, columns = unit.parameters.front().columns;
    EXPECT_EQ(layout.shard_size, (rows + 3) / 4 * columns);
    EXPECT_EQ(layout.padding(), layout.shard_size * 4 - rows * columns);
  }
  EXPECT_EQ(formed, declared);
}

// Queries of 8 rows, keys and values of 4 each are 16 rows, of which four ranks have 4: one has the keys whole.
TEST(Wrap, ParametersOfOneProductAreCutAsOneMatrix) {
  ScopedParameters piece = attention(0, 8);
  for (const char* which : {"k_proj", "v_proj"}) {
    piece.parameters.push_back(piece_parameter(std::string("blocks.0.attention.") + which, Family::dense));
    piece.parameters.back().stacked = true;
  }
  const auto units = form_units(std::vector{piece}, 0, {.by_family = {{Family::dense, {WrapKind::parameter}}}});
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units.front().name, "blocks.0.attention.q_proj");
  EXPECT_EQ(units.front().why,
            "dense parameters of blocks.0: those that one product reads, cut along their rows as one matrix, with own "
            "collectives");
  const UnitLayout layout = lay_out_unit(units.front().parameters, 4);
  EXPECT_EQ(layout.padding(), 0);
  std::vector<std::string> owned;
  for (int shard = 0; shard < 4; ++shard) {
    for (const RowBlock& rows : layout.rows_of_shard(shard)) {
      owned.push_back(fmt::format("{}: {} to {} of {}", shard, rows.row_begin, rows.row_begin + rows.rows - 1,
                                  layout.parameters[rows.parameter].name.substr(19)));
    }
  }
  EXPECT_EQ(owned, (Names{"0: 0 to 3 of q_proj", "1: 4 to 7 of q_proj", "2: 0 to 3 of k_proj", "3: 0 to 3 of v_proj"}));
}

TEST(Wrap, PoliciesReadAsTheyAreWritten) {
  for (const char* text :
       {"parameter", "block", "half_block", "blocks 2", "minimum_bytes 4000000", "buckets", "root"}) {
    EXPECT_EQ(to_string(parse_wrap(text)), text);
  }
  EXPECT_EQ(parse_wrap("blocks 12"), (WrapPolicy{WrapKind::blocks, 12}));
  for (const char* text : {"", "blok", "block 2", "blocks", "blocks ", "blocks 0", "blocks -1", "blocks 2 ",
                           "blocks two", "blocks 2x", " block", "minimum_bytes 99999999999999999999", "root 1"}) {
    try {
      parse_wrap(text);
      ADD_FAILURE() << "accepted \"" << text << '"';
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      EXPECT_EQ(std::string(error.what()).find(fmt::format("\"{}\" is no way", text)), 0u) << error.what();
    }
  }
}

TEST(Wrap, GatheringAStageAtOnceIsWarnedOf) {
  const WrapPolicy root{WrapKind::root};
  EXPECT_TRUE(wrap_warnings({}).empty());
  EXPECT_TRUE(
      wrap_warnings({{Family::dense, {WrapKind::blocks, 4}}, {Family::head, root}, {Family::embedding, root}}).empty());
  const auto all = wrap_warnings({{Family::dense, root}, {Family::embedding, root}, {Family::head, root}});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NE(all[0].find("everything is gathered at once: peak is the whole stage"), std::string::npos) << all[0];
  const auto both = wrap_warnings({{Family::dense, root}, {Family::experts, root}});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].find("wrap \"root\" for dense: the dense parameters of all blocks"), 0u) << both[0];
  EXPECT_EQ(both[1].find("wrap \"root\" for experts"), 0u) << both[1];
}

}  // namespace
}  // namespace weft
