// `weft layout sweep`: a line of CSV for each combination that can be run, with the figures of `layout simulate`.
// Ranks and front are computed by brute force over those lines. The picture and wrong lists follow.
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "parallel/pipeline/orders/orders.h"
#include "tests/tools/program.h"
#include "trainer/planning/published.h"

namespace weft {
namespace {

using SweepRow = std::map<std::string, std::string>;

// RFC 4180: fields between quotes hold commas, and quotes twice.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  EXPECT_FALSE(quoted) << line;
  return fields;
}

class LayoutSweep : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    put("run.toml", small_run);
  }

  std::string content(const std::string& name) const { return run("cat '" + name + "'").output; }

  std::vector<SweepRow> rows(const std::string& name) const {
    std::istringstream text(content(name));
    std::string line;
    std::getline(text, line);
    const std::vector<std::string> header = fields_of(line);
    std::vector<SweepRow> rows;
    while (std::getline(text, line)) {
      const std::vector<std::string> fields = fields_of(line);
      EXPECT_EQ(fields.size(), header.size()) << line;
      if (fields.size() != header.size()) return {};
      SweepRow& row = rows.emplace_back();
      for (std::size_t i = 0; i < header.size(); ++i) row[header[i]] = fields[i];
    }
    return rows;
  }

  // The row's words give the row's figures.
  void expect_reproduced(const std::string& file, const SweepRow& row) const {
    const auto result = weft("layout simulate " + file + " --json " + row.at("words"));
    ASSERT_EQ(result.exit_code, 0) << row.at("words") << result.messages;
    const auto found = nlohmann::json::parse(result.output)["variants"][0];
    EXPECT_EQ(row.at("layout"), found["layout"].get<std::string>()) << row.at("words");
    for (const char* key : {"seconds", "bubble", "exposed_gathers", "exposed_reductions"}) {
      EXPECT_EQ(std::stod(row.at(key)), found[key].get<double>()) << key << " of " << row.at("words");
    }
    for (const char* key : {"peak_bytes", "fullest_rank", "gathers", "gathered_bytes", "reductions"}) {
      EXPECT_EQ(std::stoll(row.at(key)), found[key].get<std::int64_t>()) << key << " of " << row.at("words");
    }
    std::int64_t sum = 0;
    for (const auto& [bucket, bytes] : found["peak"].items()) {
      EXPECT_EQ(std::stoll(row.at(bucket)), bytes.get<std::int64_t>()) << bucket;
      sum += bytes.get<std::int64_t>();
    }
    EXPECT_EQ(sum, std::stoll(row.at("peak_bytes")));
  }
};

constexpr const char* lists =
    "--schedules gpipe,1f1b --chunks 1,2 --layouts 'auto,\"Ed|e*3L\",[3, 1]' "
    "--residencies 'reshard_after_use,while_on_stage,window 1,step' --microbatches 1,2,4,3 "
    "--training.global_batch_size=8";

TEST_F(LayoutSweep, OneRowForEachValidCombination) {
  const auto result = weft(std::string("layout sweep run.toml --csv all.csv ") + lists);
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::vector<SweepRow> all = rows("all.csv");
  // Neither schedule runs two chunks, and four sequences do not make three microbatches.
  ASSERT_EQ(all.size(), 2u * 1 * 3 * 4 * 3);
  std::set<std::string> words;
  for (const SweepRow& row : all) words.insert(row.at("words"));
  EXPECT_EQ(words.size(), all.size());
  EXPECT_NE(result.output.find("\n192 combinations, 72 can be run, "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("\n120 of 192 combinations cannot be run:\n"), std::string::npos) << result.output;
  // The first reason counts: the number of microbatches, of 2 x 2 x 3 x 4, then the chunks of the others.
  EXPECT_NE(result.output.find("\n    48  4 sequences a data rank do not divide into 3 microbatches\n"),
            std::string::npos)
      << result.output;
  // Schedules come first in the order of choices, microbatches last.
  EXPECT_EQ(all[0].at("schedule"), "gpipe");
  EXPECT_EQ(all[0].at("microbatches"), "1");
  EXPECT_EQ(all[1].at("microbatches"), "2");
  EXPECT_EQ(all[3].at("residency"), "while_on_stage");
  EXPECT_EQ(all[36].at("schedule"), "1f1b");
  // Again, and the same bytes.
  const auto again = weft(std::string("layout sweep run.toml --csv again.csv ") + lists);
  EXPECT_EQ(again.output, result.output);
  EXPECT_EQ(content("again.csv"), content("all.csv"));
}

TEST_F(LayoutSweep, WordsReproduceTheFigures) {
  ASSERT_EQ(weft(std::string("layout sweep run.toml --csv all.csv ") + lists).exit_code, 0);
  const std::vector<SweepRow> all = rows("all.csv");
  for (std::size_t i = 0; i < all.size(); i += 7) expect_reproduced("run.toml", all[i]);
}

// Under a budget the blocks of an automatic layout are dealt with the timing: the layout without a limit is tried
// first.
TEST_F(LayoutSweep, WordsReproduceTheFiguresOfSolvedTimings) {
  const std::string file = "'" WEFT_SOURCE_DIR "/configs/layouts_h200.toml'";
  const auto result = weft("layout sweep " + file +
                           " --csv all.csv --schedules 1f1b,zb_h1,zbv --chunks 1,2 --layouts 'auto,Eddee|e*4|e*4|e*4L' "
                           "--residencies auto,step --budgets '18 GiB,24 GiB'");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::vector<SweepRow> all = rows("all.csv");
  std::map<std::string, std::set<std::string>> layouts;  // by residency
  for (const SweepRow& row : all) {
    expect_reproduced(file, row);
    layouts[row.at("residency")].insert(row.at("layout"));
  }
  // The given layout, and at least two that were dealt.
  for (const char* residency : {"auto", "step"}) EXPECT_GE(layouts[residency].size(), 3u) << residency;
}

TEST_F(LayoutSweep, TakesEverySchedule) {
  std::string names;
  std::set<std::pair<std::string, std::string>> expected;
  for (const Schedule& schedule : schedules()) {
    names += (names.empty() ? "" : ",") + std::string(schedule.name);
    for (const int chunks : {1, 2, 3}) {
      if (schedule.takes_chunks(chunks)) expected.emplace(schedule.name, std::to_string(chunks));
    }
  }
  const auto result = weft("layout sweep run.toml --csv all.csv --chunks 1,2,3 --schedules " + names +
                           " --training.global_batch_size=16");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  std::set<std::pair<std::string, std::string>> found;
  for (const SweepRow& row : rows("all.csv")) found.emplace(row.at("schedule"), row.at("chunks"));
  EXPECT_EQ(found, expected);
}

TEST_F(LayoutSweep, SolvesUnderEachBudget) {
  const auto result = weft(
      "layout sweep run.toml --csv all.csv --residencies while_on_stage,auto --budgets '1 kB,790 KiB,2 MiB' "
      "--training.global_batch_size=16");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::vector<SweepRow> all = rows("all.csv");
  ASSERT_EQ(all.size(), 3u) << result.output;
  EXPECT_EQ(all[0].at("residency"), "while_on_stage");
  EXPECT_EQ(all[0].at("memory_budget"), "");
  EXPECT_EQ(all[1].at("memory_budget"), "790 KiB");
  EXPECT_LE(std::stoll(all[1].at("peak_bytes")), 790 * 1024);
  EXPECT_LE(std::stoll(all[2].at("peak_bytes")), 2 * 1024 * 1024);
  // With room for all of it nothing is gathered twice.
  EXPECT_LE(std::stoi(all[2].at("gathers")), std::stoi(all[1].at("gathers")));
  EXPECT_LE(std::stod(all[2].at("seconds")), std::stod(all[0].at("seconds")));
  EXPECT_NE(result.output.find("\n     1  shard.memory_budget 1000 B is too small for any timing of this step"),
            std::string::npos)
      << result.output;
}

TEST_F(LayoutSweep, RanksByTimeAndFindsTheFront) {
  const auto result = weft(std::string("layout sweep run.toml --top 5 --csv all.csv --svg all.svg ") + lists);
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::vector<SweepRow> all = rows("all.csv");
  const auto figures = [](const SweepRow& row) {
    return std::pair(std::stod(row.at("seconds")), std::stoll(row.at("peak_bytes")));
  };
  std::set<int> ranks;
  std::size_t front = 0;
  std::set<std::pair<double, long long>> front_figures;
  for (const SweepRow& row : all) {
    const int rank = std::stoi(row.at("rank"));
    ranks.insert(rank);
    bool beaten = false;
    for (const SweepRow& other : all) {
      const auto [seconds, bytes] = figures(row);
      const auto [other_seconds, other_bytes] = figures(other);
      beaten = beaten || (other_seconds <= seconds && other_bytes <= bytes && figures(other) != figures(row));
      if (figures(other) < figures(row)) {
        EXPECT_LT(std::stoi(other.at("rank")), rank);
      }
    }
    EXPECT_EQ(row.at("front"), beaten ? "0" : "1") << row.at("words");
    if (!beaten) front_figures.insert(figures(row));
    front += !beaten;
  }
  // Modelled times that are no surer than a factor of each other share a rank.
  for (const SweepRow& row : all) {
    const auto surely_faster = std::ranges::count_if(
        all, [&](const SweepRow& other) { return figures(other).first * model_error.apart <= figures(row).first; });
    EXPECT_EQ(std::stoi(row.at("tied_rank")), 1 + surely_faster) << row.at("words");
  }
  EXPECT_NE(result.output.find("\nmodelled for cpu: no published run is behind it"), std::string::npos)
      << result.output;
  EXPECT_EQ(ranks.size(), all.size());
  EXPECT_EQ(*ranks.begin(), 1);
  EXPECT_EQ(*ranks.rbegin(), static_cast<int>(all.size()));
  // More than one is on the front, and some are beaten, or the test says nothing.
  EXPECT_GT(front_figures.size(), 1u);
  EXPECT_LT(front, all.size());

  // The printed table begins with the first rank; a line for each of five results, one for the header and the ruler.
  EXPECT_NE(result.output.find("\n1"), std::string::npos) << result.output;
  // The line of the front turns once at each of its figures.
  const std::string svg = content("all.svg");
  const std::size_t path = svg.find("<path id=\"front\"");
  ASSERT_NE(path, std::string::npos);
  const std::string line = svg.substr(path, svg.find("/>", path) - path);
  const std::string drawn = line.substr(line.find(" d=\""));
  EXPECT_EQ(static_cast<std::size_t>(std::count(drawn.begin(), drawn.end(), 'V')), front_figures.size());
}

TEST_F(LayoutSweep, ThePictureIsWellFormed) {
  ASSERT_EQ(weft(std::string("layout sweep run.toml --svg all.svg ") + lists).exit_code, 0);
  const std::string svg = content("all.svg");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "));
  // Every element that opens closes, in the order of nesting, and attributes have their quotes.
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag.starts_with("/")) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  for (const char* number : {"nan", "inf"}) EXPECT_EQ(svg.find(number), std::string::npos);
  for (const char* schedule : {">gpipe<", ">1f1b<"}) EXPECT_NE(svg.find(schedule), std::string::npos);
}

// Labels hold what differs, of each mark another; what is alike in all of them stands in no label.
TEST_F(LayoutSweep, LabelsHoldWhatDiffers) {
  const auto labels = [&](const std::string& options) {
    EXPECT_EQ(weft("layout sweep run.toml --svg all.svg " + options).exit_code, 0);
    const std::string svg = content("all.svg");
    std::set<std::string> found;
    for (std::size_t at = svg.find("class=\"label\""); at != std::string::npos;
         at = svg.find("class=\"label\"", at + 1)) {
      const std::size_t begin = svg.find('>', at) + 1;
      EXPECT_TRUE(found.insert(svg.substr(begin, svg.find('<', begin) - begin)).second);
    }
    return found;
  };
  EXPECT_EQ(labels("--schedules 1f1b"), (std::set<std::string>{"1f1b"}));
  for (const std::string& label : labels("--microbatches 2,4")) {
    EXPECT_TRUE(label == "2 microbatches" || label == "4 microbatches") << label;
  }
  const auto both = labels("--schedules gpipe,1f1b --residencies reshard_after_use,step");
  EXPECT_GT(both.size(), 1u);
  for (const std::string& label : both) {
    EXPECT_TRUE(label.starts_with("gpipe, ") || label.starts_with("1f1b, ")) << label;
    EXPECT_EQ(label.find("microbatches"), std::string::npos) << label;
  }
}

TEST_F(LayoutSweep, WithoutListsThereIsOneCombination) {
  const auto result = weft("layout sweep run.toml --csv one.csv --svg one.svg --costs forward=1");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::vector<SweepRow> all = rows("one.csv");
  ASSERT_EQ(all.size(), 1u);
  // Two ranks and four microbatches.
  EXPECT_NEAR(std::stod(all[0].at("seconds")), 15.0, 1e-12);
  EXPECT_EQ(all[0].at("front"), "1");
  EXPECT_EQ(all[0].at("words"), "");
}

TEST_F(LayoutSweep, WrongListsEndWithTwoAndAllFaults) {
  const auto result = weft(
      "layout sweep run.toml --schedules 1f1b,2f2b,1f1b --chunks one,0 --layouts 'auto,Ed|xL' --residencies "
      "'while_on_stage,forever,' --microbatches 0,many");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  for (const char* fault :
       {"--schedules names 1f1b twice", "--pipeline.schedule=2f2b: error: ", "--pipeline.chunks=one: error: ",
        "--pipeline.chunks=0: error: ", "column 4: 'x' is no symbol of a layout",
        "--shard.residency=forever: error: ", "--residencies \"while_on_stage,forever,\": an entry is empty",
        "--microbatches: 0 is not a number of at least 1", "--microbatches: many is not a number of at least 1"}) {
    EXPECT_NE(result.messages.find(fault), std::string::npos) << fault << "\n" << result.messages;
  }
  const std::pair<const char*, const char*> requests[] = {
      {"--layouts '\"Ed|e'", "a \" is not closed"},
      {"--schedules 1f1b --pipeline.chunks=2", "pipeline.chunks"},
      {"--microbatches 3", "none of the combinations can be run"},
      {"--hardware abacus", "hardware abacus is not known"},
      {"--fast", "unknown option --fast; see weft layout sweep --help"},
  };
  for (const auto& [arguments, message] : requests) {
    const auto wrong = weft(std::string("layout sweep run.toml ") + arguments);
    EXPECT_EQ(wrong.exit_code, 2) << arguments;
    EXPECT_NE(wrong.messages.find(message), std::string::npos) << arguments << "\n" << wrong.messages;
  }
}

}  // namespace
}  // namespace weft
