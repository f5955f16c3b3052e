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

class RequirementScript : public ProgramTest {
 protected:
  ProgramResult list(const std::string& pattern) const {
    return run("BUILD='" + build_.string() + "' '" + (documents_root / "tools/requirement.sh").string() + "' --list '" +
               pattern + "'");
  }
  // Suite.Name of every test of a program, as it says itself: without instances and cases.
  std::set<std::string> tests_of(const std::string& program) const {
    std::set<std::string> tests;
    std::istringstream lines(run("'" + program + "' --gtest_list_tests").output);
    std::string suite;
    for (std::string line; std::getline(lines, line);) {
      std::string word = line.substr(line.find_first_not_of(' '));
      word = word.substr(0, word.find(' '));
      if (!line.starts_with("  ")) {
        suite = word.substr(word.find('/') + 1);
      } else {
        tests.insert(suite + word.substr(0, word.find('/')));
      }
    }
    return tests;
  }

  const std::filesystem::path build_ = std::filesystem::path(weft_program()).parent_path();
};

// Each test in a program that has it, or one that is not built here.
TEST_F(RequirementScript, NamesTheProgramOfEveryTest) {
  const ProgramResult listed = list("[SC].*");
  ASSERT_EQ(listed.exit_code, 0) << listed.messages;
  std::map<std::string, std::set<std::string>> programs;
  std::istringstream lines(listed.output);
  std::size_t commands = 0, expected = 0, held = 0;
  for (std::string program, arguments; lines >> program && std::getline(lines, arguments); ++commands) {
    if (program == (build_ / "weft").string() || !std::filesystem::exists(program)) continue;
    if (!programs.contains(program)) programs[program] = tests_of(program);
    const std::string option = " --gtest_filter=",
                      name = arguments.substr(option.size(), arguments.find(':') - option.size());
    EXPECT_EQ(arguments, option + name + ":*/" + name + "/*");
    EXPECT_TRUE(programs[program].contains(name)) << program << " has no " << name << ": is it built?";
    ++held;
  }
  for (const Requirement& row : requirements()) expected += quoted_in(row.seen_by).size();
  EXPECT_EQ(commands, expected);
  EXPECT_GT(held, 10u);  // those of test_tools at least
}

// Of a tree that has one test with parameters, in a program that tells its arguments.
TEST_F(RequirementScript, RunsWhatARowNames) {
  for (const char* folder : {"tools", "docs", "tests/layers", "build"}) {
    std::filesystem::create_directories(folder_ / folder);
  }
  std::filesystem::copy(documents_root / "tools/requirement.sh", folder_ / "tools");
  put("docs/requirements.md",
      "| S0-01 | one | `Suite.Name`, `weft keys` | works |\n| S0-02 | two | `Suite.Gone` | works |\n"
      "| S0-03 | three | none | missing |\n");
  put("tests/layers/suite_test.cpp", "TEST_P(Suite, Name) {}\n");
  EXPECT_EQ(run("tools/requirement.sh S0-01").exit_code, 1) << "nothing is built";
  put("build/weft", "#!/bin/sh\necho weft \"$@\"\n");
  put("build/test_layers",
      "#!/bin/sh\necho \"$@\"\ncase \"$*\" in *list*) cat build/tests ;; *) cat build/failed ;; esac\n");
  ASSERT_EQ(run("chmod +x build/*; echo >build/failed").exit_code, 0);
  put("build/tests", "");
  const auto older = run("tools/requirement.sh S0-01");
  EXPECT_EQ(older.exit_code, 1);
  EXPECT_NE(older.messages.find("build/test_layers is older than the test"), std::string::npos) << older.messages;

  put("build/tests", "All/Suite.\n  Name/0\n");
  const std::string filter = "--gtest_filter=Suite.Name:*/Suite.Name/*\n";
  const auto runs = run("tools/requirement.sh S0-01");
  EXPECT_EQ(runs.exit_code, 0) << runs.messages;
  EXPECT_EQ(runs.output, "build/test_layers " + filter + filter + "\nbuild/weft keys\nweft keys\n");
  EXPECT_EQ(run("tools/requirement.sh --list S0-01").output, "build/test_layers " + filter + "build/weft keys\n");
  std::filesystem::remove(folder_ / "build/failed");
  EXPECT_EQ(run("tools/requirement.sh S0-01").exit_code, 1) << "the test fails";
  for (const auto& [number, code] : {std::pair("S0-02", 1), {"S0-03", 1}, {"S0-04", 2}, {"", 2}}) {
    const auto refused = run(std::string("tools/requirement.sh ") + number);
    EXPECT_EQ(refused.exit_code, code) << number;
    EXPECT_NE(refused.messages, "") << number;
  }
}

}  // namespace
}  // namespace weft
