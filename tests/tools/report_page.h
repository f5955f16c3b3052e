// Reads a page of weft report by another way than its scripts.
#pragma once

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/browser.h"
#include "tests/tools/tiny_training.h"

namespace weft {

// The JSON of the script with this id: "report" or "data".
inline nlohmann::json page_json(const std::string& page, const std::string& id) {
  const std::string mark = "id=\"" + id + "\">";
  const std::size_t begin = page.find(mark);
  if (begin == std::string::npos) return nlohmann::json();
  const std::size_t from = begin + mark.size();
  return nlohmann::json::parse(page.substr(from, page.find("</script>", from) - from));
}

// Runs that train in milliseconds, with the directories out/<name>.
class ReportedRuns : public BrowserTest {
 protected:
  void SetUp() override {
    BrowserTest::SetUp();
    put("tiny.toml", tiny_run);
    put("run.toml", R"(include = ["tiny.toml"]
[run]
steps = 6
[parallelism]
tensor = 1
[training]
sequence_length = 16
[validation]
data = ["held.txt"]
interval = 2
)");
    std::string text;
    for (int i = 0; i < 200; ++i) text += "warp and weft ";
    put("text.txt", text);
    put("held.txt", "weft and warp and loom and shuttle");
  }

  void train(const std::string& more = "") const {
    const auto result = weft("train run.toml " + more);
    ASSERT_EQ(result.exit_code, 0) << result.messages;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> steps;
    std::ifstream lines(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line));
    return steps;
  }
  // The page of the runs, with options; a failure if there is none.
  std::string page_of(const std::string& arguments) const {
    const auto result = weft("report " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return result.output;
  }
};

}  // namespace weft
