// Layouts as text: what is read, what is refused and where, and that what is printed reads back.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "trainer/config/layout_text.h"

namespace weft {
namespace {

std::vector<std::string> symbols_of(const LayoutText& layout) {
  std::vector<std::string> stages;
  for (const WrittenStage& stage : layout.stages) {
    stages.emplace_back();
    for (const LayoutSymbol& symbol : stage.symbols) stages.back() += symbol.symbol;
  }
  return stages;
}

// The stages, or the faults in their place.
std::vector<std::string> stages_of(const std::string& text) {
  const LayoutText layout = read_layout(text);
  if (layout.faults.empty()) return symbols_of(layout);
  std::vector<std::string> messages;
  for (const LayoutFault& fault : layout.faults) messages.push_back(fault.message);
  return messages;
}

using Strings = std::vector<std::string>;

TEST(LayoutText, RepeatsSymbolsGroupsAndStages) {
  EXPECT_EQ(stages_of("EdL"), (Strings{"EdL"}));
  EXPECT_EQ(stages_of("Ed|(e|)*3eL"), (Strings{"Ed", "e", "e", "e", "eL"}));
  EXPECT_EQ(stages_of("E|||L"), (Strings{"E", "", "", "L"}));
  EXPECT_EQ(stages_of("E|*3L"), (Strings{"E", "", "", "L"}));
  EXPECT_EQ(stages_of(" E , d * 2|\n\t( d e ) * 2 , L "), (Strings{"Edd", "dedeL"}));
  EXPECT_EQ(stages_of("E((d|)*2e|)*2(t)L"), (Strings{"Ed", "d", "e", "d", "d", "e", "tL"}));
  EXPECT_EQ(stages_of("(E)(((L)))"), (Strings{"EL"}));
  EXPECT_EQ(stages_of("E(t*2|)*002L"), (Strings{"Ett", "tt", "L"}));
}

// facts of Megatron-Core: m counts no layer; stage s runs on rank s % pipeline.
TEST(LayoutText, ReadsTheStringsOfMegatron) {
  struct Case {
    std::string text;
    std::size_t pipeline, chunks;
    std::vector<int> layers;  // of each rank
  };
  const std::vector<Case> cases = {
      {"Et*3|(tt|)*29,m|L", 8, 4, {9, 8, 8, 8, 8, 8, 6, 6}},
      {"E,t*3|(tt|)*29,m|L", 16, 2, {5, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2, 2}},
      {"Et|(tt|)*30mL", 8, 4, {7, 8, 8, 8, 8, 8, 8, 6}},
      {"Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", 8, 5, {10, 10, 10, 11, 10, 10, 10, 9}},
      {"E|t|t*2|t||(t|)*2,t*2,L", 4, 2, {0, 2, 3, 3}},
  };
  for (const Case& test : cases) {
    const Strings stages = stages_of(test.text);
    ASSERT_EQ(stages.size(), test.pipeline * test.chunks) << test.text;
    std::vector<int> layers(test.pipeline, 0);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      layers[s % test.pipeline] += static_cast<int>(std::count(stages[s].begin(), stages[s].end(), 't'));
    }
    EXPECT_EQ(layers, test.layers) << test.text;
  }
  // Which layers: [[],[]], [[1],[5]], [[2,3],[6]], [[4],[7,8]].
  EXPECT_EQ(stages_of("E|t|t*2|t||(t|)*2,t*2,L"), (Strings{"E", "t", "tt", "t", "", "t", "t", "ttL"}));
}

TEST(LayoutText, EveryFaultHasItsColumn) {
  const std::string accepted =
      "; accepted: E (embedding), d (dense block), e (MoE block), t (any block), m (predictor), L (head), | or (";
  const std::vector<std::pair<std::string, Strings>> cases = {
      {"Etm|tmL",
       {"column 5: a block behind an m: multi-token prediction follows the last block\n    Etm|tmL\n        ^"}},
      {"Etm|mL", {"column 5: an m on a second stage: all m stand on one\n    Etm|mL\n        ^"}},
      {"mEtL", {"column 1: m stands before the embedding: E comes first\n    mEtL\n    ^"}},
      {"EtLm", {"column 4: m stands behind the head: L comes last\n    EtLm\n       ^"}},
      {"Ed|x|eL", {"column 4: 'x' is no symbol of a layout" + accepted + "\n    Ed|x|eL\n       ^"}},
      {"Eäd", {"column 2: 'ä' is no symbol of a layout" + accepted + "\n    Eäd\n     ^"}},
      {"ä\x01L",
       {"column 1: 'ä' is no symbol of a layout" + accepted + "\n    ä L\n    ^",
        "column 2: the control character 1 is no symbol of a layout" + accepted + "\n    ä L\n     ^"}},
      {"E(d(eL", {"column 4: this ( is not closed\n    E(d(eL\n       ^"}},
      {"Ed)L", {"column 3: this ) closes nothing\n    Ed)L\n      ^"}},
      {"E()L", {"column 2: this group is empty\n    E()L\n     ^"}},
      {"Ed*L", {"column 4: a number is missing: how often 'd' is repeated, at least 1\n    Ed*L\n       ^"}},
      {"E(de)*",
       {"column 7: a number is missing: how often the group is repeated, at least 1\n    E(de)*\n          ^"}},
      {"Ed*0L", {"column 4: 0 repeats would lose 'd': at least 1\n    Ed*0L\n       ^"}},
      {"Ed*-1L", {"column 4: a number is missing: how often 'd' is repeated, at least 1\n    Ed*-1L\n       ^"}},
      {"Ed*99999999999999999999999L",
       {"column 4: more than 100000 repeats of 'd'\n    Ed*99999999999999999999999L\n       ^"}},
      {"E(d*1000|)*1000L",
       {"column 2: with its repeats the layout has more than 100000 symbols\n    E(d*1000|)*1000L\n     ^"}},
      {"Ed*2*3L",
       {"column 5: a * stands right behind what it repeats, and only once: e*3, (de)*2, ((de)*2)*3\n"
        "    Ed*2*3L\n        ^"}},
      {"E3dL", {"column 2: a number stands behind a *: e*3\n    E3dL\n     ^"}},
      {"d|EL", {"column 1: d stands before the embedding: E comes first\n    d|EL\n    ^"}},
      {"LdE",
       {"column 1: L stands before the embedding: E comes first\n    LdE\n    ^",
        "column 2: d stands behind the head: L comes last\n    LdE\n     ^"}},
      {"dL", {"column 1: no E before this: a layout begins with the embedding\n    dL\n    ^"}},
      {"",
       {"column 1: no E before this: a layout begins with the embedding\n    \n    ^",
        "column 1: no L up to here: a layout ends with the head\n    \n    ^"}},
      {"Ed", {"column 3: no L up to here: a layout ends with the head\n    Ed\n      ^"}},
      {"EdE*2L",
       {"column 3: a second E: the model has one embedding\n    EdE*2L\n      ^",
        "column 3: a second E: the model has one embedding\n    EdE*2L\n      ^"}},
      {"EdL|L", {"column 5: a second L: the model has one head\n    EdL|L\n        ^"}},
      {"EL|d", {"column 4: d stands behind the head: L comes last\n    EL|d\n       ^"}},
      {"|EdL",
       {"column 1: stage 0 is empty and stands before the embedding, where there is nothing to pass on: E comes first\n"
        "    |EdL\n    ^"}},
      {"Ed|L|",
       {"column 5: stage 2, which begins here, is empty and stands behind the head, where there is nothing to pass on: "
        "L comes last\n    Ed|L|\n        ^"}},
  };
  for (const auto& [text, messages] : cases) EXPECT_EQ(stages_of(text), messages) << text;
}

TEST(LayoutText, ManyFaultsAndDeepGroupsEndSoon) {
  EXPECT_EQ(stages_of(std::string(1'000'000, 'x')).size(), 10u);
  const Strings deep = stages_of(std::string(1'000'000, '('));
  ASSERT_EQ(deep.size(), 1u);
  EXPECT_TRUE(deep[0].starts_with("column 65: groups are nested more than 64 deep\n")) << deep[0];
}

// A line of a terminal holds what stands around the fault.
TEST(LayoutText, LongTextsAreCutAroundTheFault) {
  const std::string around(48, 't');
  const Strings messages = stages_of("E" + std::string(200, 't') + "x" + std::string(200, 't') + "L");
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].starts_with("column 202: ")) << messages[0];
  EXPECT_TRUE(
      messages[0].ends_with("\n    ..." + around + "x" + around.substr(1) + "...\n" + std::string(55, ' ') + "^"))
      << messages[0];
}

TEST(LayoutText, AListHasATextForEachStage) {
  EXPECT_EQ(symbols_of(read_layout(Strings{"E d*2", "", "e", "eL"})), (Strings{"Edd", "", "e", "eL"}));
  const LayoutText layout = read_layout(Strings{"Ed", "x(", "e|e", "L"});
  ASSERT_EQ(layout.faults.size(), 3u);
  EXPECT_TRUE(layout.faults[0].message.starts_with("stage 1, column 1: 'x' is no symbol")) << layout.faults[0].message;
  EXPECT_EQ(layout.faults[1].message, "stage 1, column 2: this ( is not closed\n    x(\n     ^");
  EXPECT_EQ(layout.faults[2].message,
            "stage 2, column 2: | parts stages, but each text of a list is one stage\n    e|e\n     ^");
  EXPECT_EQ(layout.faults[2].text, 2u);
  const LayoutText headless = read_layout(Strings{"Ed", "e"});
  ASSERT_EQ(headless.faults.size(), 1u);
  EXPECT_EQ(headless.faults[0].message,
            "stage 1, column 2: no L up to here: a layout ends with the head\n    e\n     ^");
}

TEST(LayoutText, IsPrintedShort) {
  const std::vector<std::pair<Strings, std::string>> cases = {
      {{"EdL"}, "EdL"},
      {{"Ed", "e", "e", "e", "eL"}, "Ed|(e|)*3eL"},
      {{"Ed", "e", "e", "eL"}, "Ed|e|e|eL"},
      {{"Eddd", "dd", "ddL"}, "Ed*3|dd|ddL"},
      {{"E", "", "", "", "", "L"}, "E|||||L"},
      {{"E", "", "", "", "", "", "", "L"}, "E|(|)*6L"},
      {{"Ed", "e", "d", "e", "d", "e", "dL"}, "Ed|(e|d|)*2e|dL"},
      {{"E", "dde", "dde", "dde", "L"}, "E|(dde|)*3L"},
      {{"Edd", "eee", "e", "dd", "eee", "e", "dd", "eee", "e", "L"}, "Edd|(e*3|e|dd|)*2e*3|e|L"},
  };
  for (const auto& [stages, text] : cases) {
    EXPECT_EQ(format_layout(stages), text);
    EXPECT_EQ(stages_of(text), stages);
  }
  EXPECT_EQ(spaced_symbols("EdeeL"), "E d e*2 L");
  EXPECT_EQ(spaced_symbols(""), "");
}

std::string random_text(std::mt19937& random) {
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  const Strings pieces = {"d",   "e", "t", "|",   "|",  "(d|)*3", "(de|t)", "*2",     "*3",
                          "*17", "(", ")", "d*2", "||", " ",      ",",      "(|)*4",  "((e)*2|)*2",
                          "E",   "L", "m", "*0",  "*",  "7",      "\xc3",   "*99999", "t*40000"};
  // Most of what is drawn makes sense, so that both ways are walked.
  std::string text = below(20) == 0 ? "" : "E";
  for (std::size_t i = below(12); i > 0; --i) text += pieces[below(4) == 0 ? below(pieces.size()) : below(7)];
  if (below(20) > 0) text += "L";
  for (std::size_t i = below(3); i > 1 && !text.empty(); --i) text.erase(below(text.size()), 1);
  return text;
}

TEST(LayoutText, RandomTextsAreReadOrRefusedAndReadBackAsPrinted) {
  int accepted = 0, refused = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const std::string text = random_text(random);
    const LayoutText layout = read_layout(text);
    if (!layout.faults.empty()) {
      ++refused;
      for (const LayoutFault& fault : layout.faults) {
        EXPECT_TRUE(fault.message.starts_with("column ") && fault.message.ends_with("^")) << text << fault.message;
      }
      continue;
    }
    ++accepted;
    const Strings stages = symbols_of(layout);
    const std::string printed = format_layout(stages);
    EXPECT_EQ(stages_of(printed), stages) << text << " printed as " << printed;
    EXPECT_EQ(symbols_of(read_layout(stages)), stages) << text;
    std::size_t plain = stages.size() - 1;
    for (const std::string& stage : stages) plain += stage.size();
    EXPECT_LE(printed.size(), plain) << text << " printed as " << printed;
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace weft
