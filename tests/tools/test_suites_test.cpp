// tests/suites.cmake: the tests of ctest are those of the programs, each once; and none counts as skipped that failed.
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "tests/tools/documents.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

// A program of GoogleTest by what it prints: a long suite, a typed one, one of tests/exhaustive.cmake, and three short
// ones.
constexpr const char* fake_program = R"(#!/bin/sh
case "$1" in
*list_tests)
  echo 'Running main() from here'
  echo 'Long.'; i=0; while [ $i -lt 70 ]; do echo "  Test$i"; i=$((i + 1)); done
  printf 'Typed/0.  # TypeParam = int;[x\n  One\n  Two/a  # GetParam() = ;]\n'
  printf 'CheckLanes.\n  One\n  Two\nSkipping.\n  One\n  Two\nFailing.\n  One\n  Two\nDying.\n  One\n  Two\n' ;;
*Skipping*) printf '[  PASSED  ] 0 tests.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] Skipping.One\n' ;;
*Failing*)
  printf '[  PASSED  ] 0 tests.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] Failing.One\n'
  printf '[  FAILED  ] 1 test, listed below:\n[  FAILED  ] Failing.Two\n\n 1 FAILED TEST\n'; exit 1 ;;
*Dying*) kill -SEGV $$ ;;
esac
)";

class TestSuites : public ProgramTest {
 protected:
  // Has ctest find the suites of `program`, at most `most` tests in a process.
  ProgramResult ctest(const std::string& arguments, int most, const std::string& program = "fake") {
    put("fake", fake_program);
    std::filesystem::permissions(folder_ / "fake", std::filesystem::perms::owner_all);
    put("CTestTestfile.cmake", "include(" + (documents_root / "tests/suites.cmake").string() +
                                   ")\nweft_add_suites(parallel \"" + (folder_ / program).string() + "\" " +
                                   std::to_string(most) + ")\n");
    return run("ctest " + arguments);
  }
};

TEST_F(TestSuites, HaveEveryTestOnceInProcessesOfSoMany) {
  for (const int most : {1, 2, 32, 100}) {
    const auto listed = nlohmann::json::parse(ctest("--show-only=json-v1", most).output);
    std::map<std::string, int> tests;
    std::set<std::string> exhaustive, names;
    for (const auto& test : listed.at("tests")) {
      names.insert(test.at("name").get<std::string>());
      std::istringstream filter(
          test.at("command").at(1).get<std::string>().substr(std::string("--gtest_filter=").size()));
      int count = 0;
      for (std::string name; std::getline(filter, name, ':'); ++count) {
        ++tests[name];
        if (test.dump().find("\"exhaustive\"") != std::string::npos) exhaustive.insert(name);
      }
      EXPECT_LE(count, most);
    }
    EXPECT_EQ(names.size(), listed.at("tests").size()) << most;
    EXPECT_EQ(tests.size(), 80u) << most;
    for (const auto& [name, times] : tests) EXPECT_EQ(times, 1) << name;
    EXPECT_EQ(exhaustive, (std::set<std::string>{"CheckLanes.One", "CheckLanes.Two"}));
  }
}

TEST_F(TestSuites, TellSkippedFromFailed) {
  const ProgramResult result = ctest("", 32);
  EXPECT_NE(result.exit_code, 0);
  const auto says = [&](const std::string& name, const std::string& outcome) {
    std::istringstream lines(result.output);
    bool found = false;
    for (std::string line; std::getline(lines, line);) {
      found |= line.find(name + " ") != std::string::npos && line.find(outcome) != std::string::npos;
    }
    EXPECT_TRUE(found) << name << " " << outcome << "\n" << result.output;
  };
  says("parallel.Long (1 of 3)", "Passed");
  says("parallel.Typed/0", "Passed");
  says("parallel.CheckLanes (exhaustive)", "Passed");
  says("parallel.Skipping", "Skipped");
  says("parallel.Failing", "Failed");
  says("parallel.Dying", "Exception");
}

TEST_F(TestSuites, OfAProgramThatIsNotThereFail) {
  const ProgramResult result = ctest("", 32, "absent");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("parallel.NOT_BUILT"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace weft
