// metrics.jsonl as a page reads it: of runs that go on, were killed, came back, or are of another version.
#include "tools/run_page/reported_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

class StepTableTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }
  StepTable read(const std::string& text) const {
    std::ofstream(file_) << text;
    return read_step_table(file_);
  }
  std::string fault(const std::string& text) const {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "none";
  }
  const std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("weft-step-table-" + std::to_string(getpid()));
};

TEST_F(StepTableTest, SumsAndColumns) {
  const StepTable table = read(
      R"({"step":1,"loss":5.5,"tokens":64,"seconds":0.5,"lr":0.1,"memory":{"activations":10}})"
      "\n"
      R"({"step":2,"loss":null,"tokens":64,"seconds":0.25,"lr":{"dense":0.1,"router":0.3},"spike":{"what":"loss"},"mfu":0.4})"
      "\n"
      R"({"step":3,"loss":4.5,"tokens":32,"seconds":1,"lr":null,"spike":false,"validation":{"loss":4.75},)"
      R"("moe":[{"block":2,"max_over_mean":1.5},{"block":11,"max_over_mean":3,"entropy":1.25}]})"
      "\n");
  EXPECT_EQ(table.steps, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(table.tokens, (std::vector<double>{64, 128, 160}));
  EXPECT_EQ(table.seconds, (std::vector<double>{0.5, 0.75, 1.75}));
  EXPECT_EQ(table.spikes, std::vector<std::size_t>{1});
  EXPECT_FALSE(table.cut_off);
  const StepColumn& loss = *table.find("loss");
  EXPECT_EQ(loss.rows, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(loss.values[0], 5.5);
  EXPECT_TRUE(std::isnan(loss.values[1]));  // not finite, in the words of the run
  EXPECT_EQ(loss.values[2], 4.5);
  EXPECT_EQ(table.find("lr")->values[1], 0.3);
  EXPECT_EQ(table.find("mfu")->rows, std::vector<std::size_t>{1});  // absent elsewhere, which is no gap
  EXPECT_EQ(table.find("validation.loss")->rows, std::vector<std::size_t>{2});
  EXPECT_EQ(table.find("validation.loss")->values, std::vector<double>{4.75});
  EXPECT_EQ(table.find("memory.activations")->values, std::vector<double>{10});
  EXPECT_EQ(table.find("moe.11.entropy")->values, std::vector<double>{1.25});
  EXPECT_EQ(table.find("moe.2.entropy"), nullptr);
}

TEST_F(StepTableTest, ALineThatIsCutOffIsLeftOut) {
  const StepTable table = read("{\"step\":1,\"loss\":2,\"tokens\":1,\"seconds\":1}\n{\"step\":2,\"lo");
  EXPECT_EQ(table.steps.size(), 1u);
  EXPECT_TRUE(table.cut_off);
}

TEST_F(StepTableTest, AStepThatComesAgainReplacesThoseBehindIt) {
  const StepTable table = read(
      "{\"step\":1,\"loss\":5,\"tokens\":8,\"seconds\":1}\n{\"step\":2,\"loss\":4,\"tokens\":8,\"seconds\":1,"
      "\"spike\":true}\n{\"step\":3,\"loss\":9,\"tokens\":8,\"seconds\":1}\n"
      "{\"step\":2,\"loss\":3,\"tokens\":8,\"seconds\":4}\n");
  EXPECT_EQ(table.steps, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(table.find("loss")->values, (std::vector<double>{5, 3}));
  EXPECT_EQ(table.tokens.back(), 16);
  EXPECT_EQ(table.seconds.back(), 5);
  EXPECT_TRUE(table.spikes.empty());
}

// Steps 1 and 2 are under configuration a, 3 under b; a run that comes back to step 2 under a has one part.
TEST_F(StepTableTest, TheLastConfigurationHasRowsOfItsOwn) {
  const auto line = [](int step, const char* configuration) {
    return fmt::format(
        R"({{"step":{0},"peak_bytes":{0},"hashes":{{"configuration":"{1}","layout":"l","program":"p"}}}})"
        "\n",
        step, configuration);
  };
  const std::string parts = line(1, "a") + line(2, "a") + line(3, "b") + "{\"step\":4,\"peak_bytes\":4}\n";
  const StepTable table = read(parts);
  EXPECT_EQ(table.first_own_row, 2u);
  EXPECT_EQ(table.own("peak_bytes").values, (std::vector<double>{3, 4}));
  EXPECT_TRUE(table.own("loss").values.empty());
  EXPECT_EQ(read(parts + line(2, "a")).first_own_row, 0u);
  EXPECT_EQ(read(parts + line(5, "a")).first_own_row, 4u);
}

TEST_F(StepTableTest, FaultsNameFileAndLine) {
  const std::string place = file_.string();
  EXPECT_EQ(fault("{\"step\":1}\nnonsense\n"), place + ":2: not the metrics of a step: the line is no JSON object");
  EXPECT_EQ(fault("{\"step\":1}\n{\"loss\":1}\n"), place + ":2: the line has no \"step\"");
  for (const char* text : {"", "{\"step\":1"}) {
    EXPECT_EQ(fault(text), place + " holds no whole step: the run has not ended its first one") << text;
  }
}

}  // namespace
}  // namespace weft
