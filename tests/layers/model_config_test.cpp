#include "layers/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

std::string letters(std::string_view pattern) {
  std::string text;
  for (const ModelBlock& block : parse_layers(pattern).blocks) text += block_symbol(block);
  return text;
}

TEST(LayerPattern, RepeatsItemsAndGroups) {
  EXPECT_EQ(letters("d e*3"), "deee");
  EXPECT_EQ(letters("(d e)*2 d"), "deded");
  EXPECT_EQ(letters("((d)*2e)*2"), "ddedde");
}

// The letters of requirement C-32 that Weft has; one of the others is refused. Published hybrids repeat a pattern that
// does not divide their depth.
TEST(LayerPattern, HasBlocksOfOnePartAndRepeatsThemUpToADepth) {
  EXPECT_EQ(letters("A M D E:3"), "AMDE:3");
  EXPECT_EQ(letters("(d M*2)~5 e"), "dMMdMe");
  EXPECT_EQ(letters("d~3"), "ddd");
  const std::string tiled = letters("(AEMEAEMEAEMM)~52");
  ASSERT_EQ(tiled.size(), 52u);
  for (const auto& [letter, count] : {std::pair('A', 13), {'E', 22}, {'M', 17}}) {
    EXPECT_EQ(std::ranges::count(tiled, letter), count) << letter;
  }
  for (const std::size_t place : {11, 23, 35, 47}) EXPECT_EQ(tiled.substr(place - 1, 2), "MM");
  const ModelLayers layers = parse_layers("A M D E");
  EXPECT_EQ(layers.blocks[0], ModelBlock(BlockKind::none, 0, Mixer::attention));
  EXPECT_EQ(layers.blocks[1], ModelBlock(BlockKind::none, 0, Mixer::state_space));
  EXPECT_EQ(layers.blocks[2], ModelBlock(BlockKind::dense, 0, Mixer::none));
  EXPECT_EQ(layers.blocks[3], ModelBlock(BlockKind::moe, 0, Mixer::none));
}

TEST(LayerPattern, GivesBlocksWidthsOfTheirOwn) {
  ModelConfig model;
  model.intermediate_size = 7;
  model.moe.moe_intermediate_size = 5;
  const ModelLayers layers = parse_layers("d d:64 (e:3 e)*2 m");
  model.blocks = layers.blocks;
  std::vector<std::int64_t> widths;
  for (const ModelBlock& block : model.blocks) widths.push_back(model.width(block));
  EXPECT_EQ(widths, (std::vector<std::int64_t>{7, 64, 3, 5, 3, 5, 5}));
  EXPECT_EQ(model.widths(BlockKind::dense), (std::vector<std::int64_t>{7, 64}));
  EXPECT_EQ(model.widths(BlockKind::moe), (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(model.count(BlockKind::moe), 5);
  EXPECT_TRUE(model.uses_width_of(BlockKind::dense));
  model.blocks = parse_layers("d:64 e").blocks;
  EXPECT_FALSE(model.uses_width_of(BlockKind::dense));
  EXPECT_TRUE(model.has(BlockKind::dense));
}

TEST(LayerPattern, NamesTheColumnOfAFault) {
  const auto message = [](std::string_view pattern) -> std::string {
    try {
      parse_layers(pattern);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message("d x").find("column 3"), std::string::npos) << message("d x");
  EXPECT_NE(message("(d e").find("not closed"), std::string::npos);
  EXPECT_NE(message("d*0").find("at least 1"), std::string::npos);
  EXPECT_NE(message("d*99999999").find("more than 1024 blocks"), std::string::npos);
  EXPECT_NE(message("((d*64)*8)*9").find("more than 1024 blocks"), std::string::npos);
  EXPECT_NE(message("  ").find("no block"), std::string::npos);
  EXPECT_NE(message("d e: m").find("column 6 of \"d e: m\": expected a width, at least 1"), std::string::npos)
      << message("d e: m");
  EXPECT_NE(message("(A E R)~52").find("column 6"), std::string::npos) << message("(A E R)~52");
  EXPECT_NE(message("d A:3").find("A and M have no width"), std::string::npos) << message("d A:3");
  EXPECT_NE(message("d E m").find("column 5"), std::string::npos) << message("d E m");
  EXPECT_NE(message("()~3").find("empty group"), std::string::npos) << message("()~3");
  EXPECT_NE(message("d~1025").find("more than 1024 blocks"), std::string::npos);
  EXPECT_NE(message("d~0").find("at least 1"), std::string::npos);
  EXPECT_NE(message("e:0").find("at least 1"), std::string::npos);
  EXPECT_NE(message("e:2147483648").find("less than 2^31"), std::string::npos);
  EXPECT_NE(message("e m:4").find("column 4"), std::string::npos) << message("e m:4");
}

// A pattern that is read by recursion must not be as deep as a stack is long, nor be repeated in full by its message.
TEST(LayerPattern, HasABoundToItsParentheses) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '(') + "d" + std::string(depth, ')'); };
  EXPECT_EQ(letters(nested(64)), "d");
  try {
    parse_layers(nested(50'000));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    const std::string_view text = error.what();
    EXPECT_NE(text.find("more than 64 parentheses inside each other"), std::string::npos);
    EXPECT_LT(text.size(), 400u);
  }
}

// Null slots by the formulas of docs/experts.md; one at least, and no more choices than there are candidates.
TEST(MoeConfig, NullSlotsOfARealFraction) {
  for (const auto& [experts, each, fraction, copies, choices] :
       {std::tuple(64, 6, 0.5, 64, 12), std::tuple(64, 6, 0.75, 21, 8), std::tuple(64, 6, 0.8, 16, 8),
        std::tuple(4, 2, 0.9, 1, 3), std::tuple(2, 2, 0.6, 1, 3), std::tuple(8, 1, 0.01, 792, 100),
        std::tuple(64, 6, 1.0, 0, 6)}) {
    const MoeConfig moe{.num_experts = experts, .num_experts_per_tok = each, .real_fraction = fraction};
    SCOPED_TRACE(fmt::format("{} of {} experts, {}", each, experts, fraction));
    EXPECT_EQ(moe.null_copies(), copies);
    EXPECT_EQ(moe.pool(), experts + copies);
    EXPECT_EQ(moe.router_rows(), experts + (copies > 0 ? 1 : 0));
    EXPECT_EQ(moe.choices(), choices);
  }
}

// A token chooses an expert once, so a sequence of S tokens fills no more than S places, whatever the factor.
TEST(MoeCapacity, IsAtMostTheTokensOfASequence) {
  MoeConfig moe{.num_experts = 8, .num_experts_per_tok = 2};
  for (const auto& [factor, capacity] :
       {std::pair(0.5, 2), std::pair(0.6, 3), std::pair(1.0, 4), std::pair(4.0, 16), std::pair(4.1, 16),
        std::pair(1e19, 16), std::pair(1e300, 16), std::pair(std::numeric_limits<double>::max(), 16)}) {
    moe.capacity_factor = factor;
    EXPECT_EQ(moe.capacity(16), capacity) << factor;
    EXPECT_EQ(moe.capacity_rows(6, 1, 16), std::min(6, capacity)) << factor;
    EXPECT_EQ(moe.capacity_rows(48, 3, 16), 3 * capacity) << factor;
  }
}

}  // namespace
}  // namespace weft
