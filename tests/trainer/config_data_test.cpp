// Settings of data that may be said, and those that are refused.
#include <gtest/gtest.h>

#include "tests/trainer/config_sample.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::message;

ResolvedConfig read_data(const Overrides& overrides) {
  return read_config_text(complete(), "run.toml", overrides);
}

void expect_refused(const Overrides& overrides, const std::string& part) {
  const std::string text = message(complete(), overrides);
  EXPECT_NE(text.find(part), std::string::npos) << part << "\nnot in\n" << text;
}

TEST(DataKeys, FilesHaveWeightsThatAreWrittenAsTheyAreRead) {
  const ResolvedConfig resolved =
      read_data({R"(data.train=["a.bin", {path = "b \"x\".bin", weight = 0.3}, {path = "c"}])"});
  const std::vector<DataSource> expected = {DataSource("a.bin"), DataSource("b \"x\".bin", 0.3), DataSource("c")};
  EXPECT_EQ(resolved.config.data.train, expected);
  EXPECT_NE(resolved.toml.find(R"(train = ["a.bin", {path = "b \"x\".bin", weight = 0.3}, "c"])"), std::string::npos)
      << resolved.toml;
  EXPECT_EQ(read_config_text(resolved.toml, "run.toml", {}).config, resolved.config);
  // In a file, with places.
  const std::string text = config_sample::with("[data]\n", "[data]\norder = \"megatron\"\nsplit = \"9,1\"\n");
  EXPECT_EQ(read_config_text(text, "run.toml", {}).config.data.order, DataOrder::megatron);
  EXPECT_EQ(read_config_text(text, "run.toml", {}).config.data.split, "9,1");
}

TEST(DataKeys, WhatIsNoFileWithAWeightIsRefused) {
  expect_refused({R"(data.train=[{path = "a", weight = -1}])"}, "at least 0 and finite");
  expect_refused({R"(data.train=[{path = "a", weight = nan}])"}, "at least 0 and finite");
  expect_refused({R"(data.train=[{path = "a", weight = inf}])"}, "at least 0 and finite");
  expect_refused({R"(data.train=[{path = "a", weight = "much"}])"}, "expected a number");
  expect_refused({R"(data.train=[{path = "a", weight = 0}, {path = "b", weight = 0}])"}, "all weights are 0");
  expect_refused({R"(data.train=[{path = "a", weight = 1e308}, {path = "b", weight = 1e308}])"}, "no finite number");
  expect_refused({R"(data.train=[{weight = 1}])"}, "a table names no path");
  expect_refused({R"(data.train=[{path = "", weight = 1}])"}, "the name of a file is empty");
  expect_refused({R"(data.train=[{path = "a", share = 1}])"}, "a file has a path and a weight, no share");
  expect_refused({R"(data.train=[["a"]])"}, "expected a string, or a table with path and weight");
  expect_refused({"data.train=[7]"}, "expected a string, or a table with path and weight");
}

TEST(DataKeys, AHeldOutPartNeedsASplitAndNoFiles) {
  EXPECT_TRUE(read_data({"data.split=969,30,1", "validation.split=true"}).config.validation.takes_place());
  expect_refused({"validation.split=true"}, "data.split names no parts");
  expect_refused({"data.split=9,1", "validation.split=true", "validation.data=[\"held\"]"},
                 "hold out one or the other");
  expect_refused({"data.order=megatron", "run.seed=4294967296"}, "the largest of data.order");
}

TEST(DataKeys, PackedDocumentsHaveNoOrderOfMegatron) {
  expect_refused({"data.documents=pack", "data.order=megatron"}, "reads through documents whatever their lengths");
}

}  // namespace
}  // namespace weft
