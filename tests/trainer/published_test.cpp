// The line that says how sure modelled times are says what the table of published runs gives, and no more than that.
#include "trainer/planning/published.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

const std::filesystem::path table = std::filesystem::path(WEFT_SOURCE_DIR) / "configs/published/runs.toml";

// As `weft bench published` measures it.
TEST(Published, TheErrorThatIsToldIsTheTables) {
  std::vector<PublishedStep> steps;
  for (const PublishedRun& run : read_published_runs(table)) steps.push_back(plan_published(run));
  const ModelError found = model_error_of(steps);
  EXPECT_EQ(model_error.runs, found.runs);
  EXPECT_EQ(model_error.pairs, found.pairs);
  EXPECT_EQ(model_error.misordered, found.misordered);
  // Rounded away from 1.
  EXPECT_EQ(model_error.least, std::floor(1000.0 * found.least) / 1000.0) << found.least;
  EXPECT_EQ(model_error.most, std::ceil(100.0 * found.most) / 100.0) << found.most;
  EXPECT_EQ(model_error.apart, std::ceil(10.0 * found.apart) / 10.0) << found.apart;
  // Step times that were published beside the rates, to the digits that they have.
  const std::map<std::string, double> seconds = {{"Qwen3-235B-A22B, fsdp, tp 2, ep 8", 17.6},
                                                 {"Qwen3-235B-A22B, pp 8 x 4, tp 2, ep 32", 19.7},
                                                 {"Qwen3-235B-A22B, pp 32 x 3, tp 2, ep 8", 24.2},
                                                 {"Qwen3-235B-A22B, pp 8 x 4, tp 4, ep 8", 29.0}};
  std::size_t compared = 0;
  for (const PublishedStep& step : steps) {
    const auto entry = seconds.find(step.run.name);
    if (entry == seconds.end()) continue;
    ++compared;
    EXPECT_NEAR(step.published, entry->second, 0.007 * entry->second) << step.run.name;
  }
  EXPECT_EQ(compared, seconds.size());
}

TEST(Published, TheLineHasTheFiguresAndTheHardwares) {
  const Hardware hardware = find_hardware("h100");
  const Certainty certainty = modelled_certainty(hardware);
  EXPECT_EQ(certainty.apart, model_error.apart);
  // A model that says 0.446 of the published time is exceeded by 1 / 0.446: rounded outwards, as the error is.
  double least = 0.0, most = 0.0;
  int runs = 0;
  ASSERT_EQ(std::sscanf(certainty.text.c_str(), "modelled: a run takes %lf to %lf times as long (%d published runs",
                        &least, &most, &runs),
            3)
      << certainty.text;
  EXPECT_LE(least * model_error.most, 1.0);
  EXPECT_GE((least + 0.01) * model_error.most, 1.0);
  EXPECT_GE(most * model_error.least, 1.0);
  EXPECT_LE((most - 0.01) * model_error.least, 1.0);
  EXPECT_EQ(runs, model_error.runs);
  const std::string figures =
      fmt::format("products at {:.0f} % of the peak, links as weft hardware has them", 100.0 * hardware.reached.value);
  EXPECT_NE(certainty.text.find(figures), std::string::npos) << certainty.text;
  EXPECT_NE(certainty.text.find(fmt::format("factor of {:.1f} tie", model_error.apart)), std::string::npos);
  EXPECT_EQ(certainty.text.find('\n'), std::string::npos);
  EXPECT_LE(certainty.text.size(), 190u);
  Config config;
  EXPECT_EQ(certainty_of(config, hardware).text, certainty.text);
  config.pipeline.costs = "costs.toml";
  EXPECT_EQ(certainty_of(config, hardware).text.find("costs of costs.toml, not modelled"), 0u);
  EXPECT_FALSE(certainty_of(config, hardware).ties(1.0, 1.0000001));
}

PublishedStep step_of(const char* model, double published, double modelled, std::int64_t sequences = 16) {
  return {.run = {.name = "a run", .model = model, .hardware = "h100", .source = "here", .words = {}},
          .gpus = 8,
          .sequence_length = 4096,
          .sequences = sequences,
          .published = published,
          .modelled = modelled};
}

// Modelled at 2, 1, 1/2 and 3 times the published times; the third is of another model, the last of another batch.
TEST(Published, LayoutsOfOneStepAreComparedWithEachOther) {
  const std::vector<PublishedStep> steps = {step_of("one", 10, 20), step_of("one", 30, 30), step_of("two", 8, 4),
                                            step_of("one", 10, 30, 32)};
  EXPECT_EQ(model_error_of(steps),
            (ModelError{.runs = 4, .least = 0.5, .most = 3.0, .pairs = 1, .misordered = 0, .apart = 2.0}));
  // Published 10 before 12, modelled the other way round, and told apart by 20/11 where it was 10/12.
  const std::vector<PublishedStep> crossed = {step_of("one", 10, 20), step_of("one", 12, 11)};
  const ModelError error = model_error_of(crossed);
  EXPECT_EQ(error.misordered, 1);
  EXPECT_DOUBLE_EQ(error.apart, (20.0 / 11.0) / (10.0 / 12.0));
}

TEST(Certainty, TiesShareARank) {
  const Certainty certainty{"", 2.0};
  EXPECT_TRUE(certainty.ties(10.0, 19.0));
  EXPECT_TRUE(certainty.ties(19.0, 10.0));
  EXPECT_FALSE(certainty.ties(10.0, 20.0));
  // 30 is surely slower than 10 alone; 45 than 10 and 19; infinity than all.
  const double none = std::numeric_limits<double>::infinity();
  const std::vector<double> seconds = {19.0, 10.0, 30.0, none, 45.0};
  const std::vector<int> ranks = ranks_with_ties(seconds, certainty);
  EXPECT_EQ(ranks, (std::vector<int>{1, 1, 2, 5, 3}));
  EXPECT_EQ(rank_text(ranks, 0), "1=");
  EXPECT_EQ(rank_text(ranks, 2), "2");
  // Times that are given differ as they do.
  EXPECT_EQ(ranks_with_ties(seconds, given_certainty("a run")), (std::vector<int>{2, 1, 3, 5, 4}));
}

TEST(Published, ATableNamesWhatIsMissing) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& text) {
    write_file(folder / "runs.toml", text);
    try {
      read_published_runs(folder / "runs.toml");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string named = "[[run]]\nname = \"a\"\nmodel = \"m.toml\"\nhardware = \"h100\"\n";
  EXPECT_NE(refusal("").find("has no [[run]]"), std::string::npos);
  EXPECT_NE(refusal(named).find("run 1 says no source"), std::string::npos);
  EXPECT_NE(refusal(named + "source = \"s\"\n").find("tokens_per_second or flops_per_second"), std::string::npos);
  EXPECT_EQ(refusal(named + "source = \"s\"\ntokens_per_second = 7.5\n"), "accepted");
  EXPECT_NE(refusal("[[run]\n").find("runs.toml"), std::string::npos);
}

}  // namespace
}  // namespace weft
