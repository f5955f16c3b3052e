// `weft bench defaults` against plans made one by one, sizes derived from a model, and the document that shows it.
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "tests/tools/documents.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

constexpr double gib = 0x1p30;

std::string shipped(const std::string& name) {
  return "'" WEFT_SOURCE_DIR "/configs/" + name + ".toml'";
}

struct DefaultRow {
  double before = 0.0, now = 0.0;                  // GiB
  double before_seconds = 0.0, now_seconds = 0.0;  // of rows in seconds
  std::string verdict;
};

// Rows with peaks in GiB and steps in seconds, by the values in the place of the default.
std::map<std::string, DefaultRow> rows_by_value(const std::string& text) {
  const std::regex row(
      R"(\n\w+ +([\w, ]*\w) +([\d.]+) GiB +([\d.]+) GiB +\S+ % +([\d.]+) s +([\d.]+) s +\S+ % +(\w+))");
  std::map<std::string, DefaultRow> rows;
  for (auto found = std::sregex_iterator(text.begin(), text.end(), row); found != std::sregex_iterator(); ++found) {
    const auto number = [&](int group) { return std::stod((*found)[static_cast<std::size_t>(group)]); };
    // Of accumulation without a known card and with one, the first.
    rows.try_emplace((*found)[1], DefaultRow{number(2), number(3), number(4), number(5), (*found)[6]});
  }
  return rows;
}

using BenchDefaults = ProgramTest;

TEST_F(BenchDefaults, FiguresAreThoseOfPlansMadeOneByOne) {
  const std::string file = shipped("plan_llama3_8b");
  const auto result = weft("bench defaults " + file);
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const auto rows = rows_by_value(result.output);
  const std::map<std::string, std::string> words = {{"float32", "--precision.compute=float32"},
                                                    {"unsharded", "--shard.accumulation=unsharded"},
                                                    {"post, none", "--shard.backward_prefetch=post"},
                                                    {"0", "--shard.lookahead=0"}};
  for (const auto& [value, word] : words) {
    SCOPED_TRACE(value);
    ASSERT_TRUE(rows.contains(value)) << result.output;
    const DefaultRow& row = rows.at(value);
    const auto expect_plan = [&](const std::string& given, double peak, double seconds) {
      const auto plan = nlohmann::json::parse(weft("plan --json " + file + " " + given).output);
      EXPECT_NEAR(peak, (plan["needed_bytes"].get<double>() - plan["reserved_bytes"].get<double>()) / gib, 0.005);
      EXPECT_NEAR(seconds, plan["step_seconds"].get<double>(), 0.005);
    };
    expect_plan(word, row.before, row.before_seconds);
    expect_plan("", row.now, row.now_seconds);
    const bool less = row.now < row.before, faster = row.now_seconds < row.before_seconds;
    EXPECT_EQ(row.verdict, less && faster ? "gains" : "trades");
  }
  // The first of two stages keeps the whole table of the embedding for microbatches under way, in two bytes.
  ASSERT_TRUE(rows.contains("reshard_after_use"));
  const DefaultRow& root = rows.at("reshard_after_use");
  EXPECT_NEAR(root.now - root.before, 128256 * 4096 * 2 / gib, 0.01);
  EXPECT_EQ(root.now_seconds, root.before_seconds);
  EXPECT_EQ(root.verdict, "loses");
  // A gather ahead is one block: queries and output, keys and values of a quarter, the MLP and two norms.
  const double block = (2.5 * 4096 * 4096 + 3.0 * 4096 * 14336 + 2 * 4096) * 2 / gib;
  EXPECT_NEAR(rows.at("0").now - rows.at("0").before, block, 0.01);
}

TEST_F(BenchDefaults, LeavesOutWhatIsAlikeAndSaysWhatIsRefused) {
  // One microbatch of two ranks that keep everything: nothing is prefetched or added up. A CPU computes in float32.
  const auto alike = weft("bench defaults " + shipped("bench_cpu"));
  ASSERT_EQ(alike.exit_code, 0) << alike.messages;
  EXPECT_EQ(alike.output.find("bench_cpu "), std::string::npos) << alike.output;
  const auto tied = weft("bench defaults " + shipped("dictionary"));
  EXPECT_NE(tied.output.find("dictionary cannot: tie_word_embeddings makes"), std::string::npos) << tied.output;
  EXPECT_EQ(weft("bench defaults absent.toml").exit_code, 2);
}

TEST_F(BenchDefaults, TheDocumentShowsWhatTheCommandPrints) {
  const auto result = weft("bench defaults '" WEFT_SOURCE_DIR "'/configs/*.toml");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_NE(text_of_document(documents_root / "docs/sharding.md")
                .find("$ build/weft bench defaults configs/*.toml\n" + result.output + "```"),
            std::string::npos)
      << "tools/docs-tables.sh docs/sharding.md writes the tables anew";
}

}  // namespace
}  // namespace weft
