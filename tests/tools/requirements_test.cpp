// docs/requirements.md: every row once, with a state; every test that it names exists, and every command runs.
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "tests/tools/documents.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

// Suite and name of every test in the sources.
std::set<std::string> all_tests() {
  const std::regex test(R"((?:^|\n)TEST(?:_F|_P)?\((\w+), (\w+)\))");
  std::set<std::string> tests;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(documents_root / "tests")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = text_of_document(entry.path());
    for (auto found = std::sregex_iterator(text.begin(), text.end(), test); found != std::sregex_iterator(); ++found) {
      tests.insert((*found)[1].str() + "." + (*found)[2].str());
    }
  }
  return tests;
}

struct Requirement {
  std::string number, seen_by, state;
};

std::vector<Requirement> requirements() {
  const std::regex row(R"(\| ((?:S\d|C)-\d\d) \| [^|]+ \| ([^|]+) \| ([^|]+) \|)");
  std::vector<Requirement> rows;
  std::istringstream lines(text_of_document(documents_root / "docs/requirements.md"));
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, found, row)) rows.push_back({found[1], found[2], found[3]});
  }
  return rows;
}

std::vector<std::string> quoted_in(const std::string& cell) {
  const std::regex quoted("`([^`]+)`");
  std::vector<std::string> words;
  for (auto found = std::sregex_iterator(cell.begin(), cell.end(), quoted); found != std::sregex_iterator(); ++found) {
    words.push_back((*found)[1]);
  }
  return words;
}

TEST(Requirements, HaveARowEachAndAState) {
  const std::map<std::string, int> numbers = {{"S0", 37}, {"S1", 37}, {"S2", 15}, {"S3", 16}, {"C", 51}};
  std::map<std::string, int> rows, states;
  for (const Requirement& row : requirements()) {
    const std::size_t dash = row.number.find('-');
    EXPECT_EQ(std::stoi(row.number.substr(dash + 1)), ++rows[row.number.substr(0, dash)]) << row.number;
    const std::string state = row.state.starts_with("works")       ? "work"
                              : row.state.starts_with("in part: ") ? "in part"
                                                                   : row.state;
    EXPECT_TRUE(state == "work" || state == "in part" || state == "missing") << row.number << ": " << row.state;
    EXPECT_EQ(quoted_in(row.seen_by).empty(), state == "missing") << row.number;
    ++states[state];
  }
  EXPECT_EQ(rows, numbers);
  const std::string totals = std::to_string(states["work"]) + " work, " + std::to_string(states["in part"]);
  EXPECT_NE(text_of_document(documents_root / "docs/requirements.md").find(totals), std::string::npos) << totals;
}

TEST(Requirements, NameTestsThatExist) {
  const std::set<std::string> tests = all_tests();
  EXPECT_GT(tests.size(), 1500u);
  for (const Requirement& row : requirements()) {
    for (const std::string& seen : quoted_in(row.seen_by)) {
      EXPECT_TRUE(seen.starts_with("weft ") || tests.contains(seen)) << row.number << ": " << seen;
    }
  }
}

class RequirementCommands : public ProgramTest {};

TEST_F(RequirementCommands, Run) {
  std::filesystem::create_directory_symlink(documents_root / "configs", folder_ / "configs");
  int commands = 0;
  for (const Requirement& row : requirements()) {
    for (const std::string& seen : quoted_in(row.seen_by)) {
      if (!seen.starts_with("weft ")) continue;
      ++commands;
      const ProgramResult result = weft(seen.substr(5));
      EXPECT_EQ(result.exit_code, 0) << row.number << ": " << seen << "\n" << result.messages;
    }
  }
  EXPECT_GT(commands, 8);
}

}  // namespace
}  // namespace weft
