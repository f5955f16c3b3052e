// `weft receipt` on runs of the program itself: every field, by the files that a run leaves; and runs that have none.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "parallel/runtime/checksum.h"
#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class ReceiptCommand : public TinyTraining {
 protected:
  void train(const std::string& arguments) const {
    const auto result = weft("train run.toml " + arguments);
    ASSERT_EQ(result.exit_code, 0) << result.messages;
  }
  SortedJson file(const std::string& name) const { return SortedJson::parse(std::ifstream(folder_ / name)); }
  SortedJson receipt(const std::string& run = "out/tiny") const {
    const auto result = weft("receipt --json " + run);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return SortedJson::parse(result.output);
  }
  std::vector<SortedJson> metrics() const {
    std::vector<SortedJson> lines;
    std::ifstream text(folder_ / "out/tiny/metrics.jsonl");
    for (std::string line; std::getline(text, line);) lines.push_back(SortedJson::parse(line));
    return lines;
  }
  std::string refusal() const {
    const auto result = weft("receipt out/tiny");
    EXPECT_EQ(result.exit_code, 2) << result.output;
    return result.messages;
  }
};

double sum_of_time(const SortedJson& time) {
  double sum = 0.0;
  for (const char* part : {"start_up", "data_wait", "steps", "checkpoints", "validation", "other"}) {
    EXPECT_GE(time.at(part).get<double>(), 0.0) << part;
    sum += time.at(part).get<double>();
  }
  return sum;
}

TEST_F(ReceiptCommand, HasEveryFieldOfARun) {
  train("--run.steps=5 --profiling.first_step=5");
  const SortedJson receipt = this->receipt(), summary = file("out/tiny/summary.json");
  const std::vector<SortedJson> lines = metrics();
  ASSERT_EQ(lines.size(), 5u);

  EXPECT_EQ(receipt.at("command_line"), summary.at("command_line"));
  const SortedJson& model = receipt.at("model");
  EXPECT_EQ(model.at("layers"), "d e");
  // By hand: embedding; attention with three norms; its norm and an MLP; its norm, a router and four experts; norm and
  // head.
  const int attention = 2 * 16 * 16 + 2 * 8 * 16 + 16 + 4 + 4;
  EXPECT_EQ(model.at("parameters"),
            256 * 16 + (attention + 16 + 3 * 24 * 16) + (attention + 16 + 4 * 16 + 4 * 3 * 8 * 16) + 16 + 256 * 16);
  ASSERT_EQ(model.at("auxiliary_losses").size(), 1u);
  EXPECT_EQ(model.at("auxiliary_losses")[0], SortedJson({{"name", "load balance, sequence"}, {"coefficient", 0.01}}));
  EXPECT_EQ(receipt.at("schedule").at("name"), "1f1b");
  EXPECT_EQ(receipt.at("schedule").at("stages"), 2);
  EXPECT_EQ(receipt.at("schedule").at("microbatches"), 4);
  EXPECT_EQ(receipt.at("layout").at("ranks"), 8);
  EXPECT_EQ(receipt.at("layout").at("tensor"), 2);
  EXPECT_NE(receipt.at("layout").at("stages").get<std::string>().find('|'), std::string::npos);
  for (const char* family : {"dense", "experts", "embedding", "head"}) {
    EXPECT_EQ(receipt.at("sharding").at(family).at("strategy"), "full_shard") << family;
    EXPECT_EQ(receipt.at("sharding").at(family).at("reduction"), "last_microbatch") << family;
    EXPECT_EQ(receipt.at("sharding").at(family).at("gradients"), "reduced after the last microbatch") << family;
    EXPECT_FALSE(receipt.at("sharding").at(family).at("residency").empty()) << family;
  }
  EXPECT_EQ(receipt.at("device").at("device"), "cpu");
  EXPECT_EQ(receipt.at("device").at("ranks_are"), "threads");
  EXPECT_EQ(receipt.at("device").at("attention"), "in blocks, by the CPU");
  EXPECT_TRUE(receipt.at("device").at("card").is_null());
  EXPECT_EQ(receipt.at("device").at("versions"), summary.at("versions"));

  ASSERT_EQ(receipt.at("ranks").size(), 8u);
  for (int rank = 0; rank < 8; ++rank) {
    std::int64_t planned = 0;
    for (const auto& [name, bucket] : summary.at("ranks")[rank].at("buckets").items()) {
      planned += bucket.at("predicted").get<std::int64_t>();
    }
    EXPECT_EQ(receipt.at("ranks")[rank].at("planned_bytes"), planned);
    EXPECT_EQ(receipt.at("ranks")[rank].at("peak_bytes"), summary.at("ranks")[rank].at("peak_bytes"));
  }
  // The first step apart; of steps 3 to 5 the one in the middle.
  EXPECT_DOUBLE_EQ(receipt.at("first_step").at("milliseconds"), 1e3 * lines[0].at("seconds").get<double>());
  std::vector<double> seconds;
  for (std::size_t i = 2; i < 5; ++i) seconds.push_back(lines[i].at("seconds"));
  std::ranges::sort(seconds);
  EXPECT_EQ(receipt.at("median_step").at("steps"), 3);
  EXPECT_DOUBLE_EQ(receipt.at("median_step").at("milliseconds"), 1e3 * seconds[1]);
  EXPECT_NEAR(receipt.at("median_step").at("tokens_per_second"), 64.0 / seconds[1], 1e-6 * 64.0 / seconds[1]);
  EXPECT_TRUE(receipt.at("median_step").at("mfu").is_null());
}

// With a peak, MFU is that of the metrics; text has a line of everything.
TEST_F(ReceiptCommand, TellsItInText) {
  train("--run.steps=4 --hardware.flops_per_second=1e12");
  std::vector<double> mfu = {metrics()[2].at("mfu"), metrics()[3].at("mfu")};
  EXPECT_NEAR(receipt().at("median_step").at("mfu"), (mfu[0] + mfu[1]) / 2.0, 1e-9 * mfu[0]);
  const auto text = weft("receipt out/tiny");
  ASSERT_EQ(text.exit_code, 0) << text.messages;
  for (const char* part :
       {"out/tiny\n", "  command ", "  model            d e: 12,576 parameters, ",
        "  auxiliary losses load balance, sequence 0.01\n", "  schedule         name 1f1b, stages 2, microbatches 4, ",
        "  layout           stages ", "  sharding         experts: strategy full_shard, residency ", " configuration\n",
        " program\n", " layout\n", "  device           cpu\n", "  first step ", " tokens/s, ", " % MFU\n",
        "  median step ", "  time             wall ", "  goodput ", "  spread ",
        "  rank  planned bytes  peak bytes\n"}) {
    EXPECT_NE(text.output.find(part), std::string::npos) << part << "\n" << text.output;
  }
}

// The program's hash is that of the lists that `weft program` prints, each once; all places have the same hashes.
TEST_F(ReceiptCommand, HashesStandInEveryFile) {
  train("--profiling.first_step=3");
  const SortedJson hashes = receipt().at("hashes");
  ASSERT_EQ(hashes.size(), 3u);
  std::istringstream lists(weft("program run.toml --format csv").output);
  std::vector<std::string> different;
  for (std::string line; std::getline(lists, line);) {
    if (std::ranges::find(different, line) == different.end()) different.push_back(line);
  }
  ASSERT_EQ(different.size(), 2u);
  EXPECT_EQ(hashes.at("program"), checksum_text(checksum(different[0] + "\n" + different[1] + "\n")));
  EXPECT_EQ(file("out/tiny/summary.json").at("hashes"), hashes);
  EXPECT_EQ(file("out/tiny/checkpoints/step-00000003/manifest.json").at("hashes"), hashes);
  EXPECT_EQ(SortedJson::parse(weft("checkpoint inspect out/tiny --json").output).at("hashes"), hashes);
  EXPECT_EQ(metrics()[0].at("hashes"), hashes);
  EXPECT_FALSE(metrics()[1].contains("hashes"));
  for (int rank = 0; rank < 8; ++rank) {
    const SortedJson facts = file(fmt::format("out/tiny/trace_rank{}.json", rank)).at("otherData");
    for (const auto& [name, hash] : hashes.items()) EXPECT_EQ(facts.at(name + "_hash"), hash);
  }
}

TEST_F(ReceiptCommand, HashesTellRunsApart) {
  train("");
  const SortedJson usual = receipt().at("hashes");
  const auto differing = [&](const std::string& arguments) {
    train("--run.directory=out/other " + arguments);
    std::set<std::string> names;
    const SortedJson other = receipt("out/other").at("hashes");
    for (const auto& [name, hash] : usual.items()) {
      if (other.at(name) != hash) names.insert(name);
    }
    std::filesystem::remove_all(folder_ / "out/other");
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(differing("--run.name=other --checkpoint.directory=out/other/kept"), Names{});
  EXPECT_EQ(differing("--optimizer.learning_rate=2e-3"), Names{"configuration"});
  EXPECT_EQ(differing("--pipeline.schedule=gpipe"), (Names{"configuration", "program"}));
  EXPECT_EQ(differing("--parallelism.expert=4"), (Names{"configuration", "layout"}));
}

// Time by a clock outside the program, and by the lines of metrics.
TEST_F(ReceiptCommand, TimeIsThatOfTheRun) {
  const auto begin = std::chrono::steady_clock::now();
  const auto trained = weft("train run.toml --run.steps=4 --validation.data=text.txt --validation.interval=2");
  const double outside = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  EXPECT_NE(trained.output.find("\n  time        "), std::string::npos) << trained.output;
  const SortedJson receipt = this->receipt(), time = receipt.at("time");
  EXPECT_NEAR(sum_of_time(time), time.at("wall"), 1e-6);
  EXPECT_LE(time.at("wall").get<double>(), outside);
  EXPECT_DOUBLE_EQ(receipt.at("goodput"), time.at("steps").get<double>() / time.at("wall").get<double>());
  double steps = 0.0, reading = 0.0, validating = 0.0;
  for (const SortedJson& line : metrics()) {
    steps += line.at("seconds").get<double>();
    reading += line.at("data_seconds").get<double>();
    if (line.contains("validation")) validating += line.at("validation").at("seconds").get<double>();
  }
  EXPECT_GE(time.at("steps").get<double>() + time.at("data_wait").get<double>(), steps);
  // The slowest rank may read for longer than the rank with the timer takes for its first step.
  EXPECT_LE(time.at("data_wait").get<double>(), reading + 1e-9);
  EXPECT_GT(time.at("data_wait").get<double>(), 0.5 * reading);
  EXPECT_GT(validating, 0.0);
  EXPECT_GE(time.at("validation").get<double>(), validating);
  EXPECT_GT(time.at("checkpoints").get<double>(), 0.0);
  EXPECT_GT(time.at("start_up").get<double>(), 0.0);

  std::filesystem::remove_all(folder_ / "out");
  train("--checkpoint.at_end=false");
  EXPECT_EQ(this->receipt().at("time").at("validation"), 0.0);
}

// A run that goes on has a receipt of the part that ended last.
TEST_F(ReceiptCommand, IsOfTheLastPartOfARun) {
  train("");
  const double first = receipt().at("time").at("wall");
  train("--run.steps=6");
  const SortedJson second = receipt();
  const std::vector<SortedJson> lines = metrics();
  ASSERT_EQ(lines.size(), 6u);
  for (const std::size_t i : {0, 3}) EXPECT_TRUE(lines[i].contains("hashes")) << i;
  EXPECT_NE(lines[0].at("hashes"), lines[3].at("hashes"));
  EXPECT_EQ(lines[0].at("hashes").at("program"), lines[3].at("hashes").at("program"));
  EXPECT_DOUBLE_EQ(second.at("first_step").at("milliseconds"), 1e3 * lines[3].at("seconds").get<double>());
  EXPECT_EQ(second.at("median_step").at("steps"), 1);
  EXPECT_NE(second.at("time").at("wall").get<double>(), first);
  EXPECT_NEAR(sum_of_time(second.at("time")), second.at("time").at("wall"), 1e-6);
}

// The step of the spike has a line of metrics, and no part in the summary.
TEST_F(ReceiptCommand, IsOfARunThatASpikeEnded) {
  train("--optimizer.learning_rate=0 --run.directory=still --run.steps=6");
  std::vector<double> norms;
  std::ifstream text(folder_ / "still/metrics.jsonl");
  for (std::string line; std::getline(text, line);) norms.push_back(SortedJson::parse(line).at("grad_norm"));
  const auto largest = std::ranges::max_element(norms);
  ASSERT_GT(largest, norms.begin()) << "this text shows nothing";
  const auto stopped = weft(fmt::format(
      "train run.toml --optimizer.learning_rate=0 --run.steps=6 --spikes.action=stop --spikes.grad_norm={:.17g}",
      *largest * (1 - 1e-12)));
  ASSERT_EQ(stopped.exit_code, 3) << stopped.messages;
  const auto taken = largest - norms.begin();
  ASSERT_EQ(std::ssize(metrics()), taken + 1);
  EXPECT_EQ(file("out/tiny/summary.json").at("steps"), taken);
  EXPECT_EQ(receipt().at("median_step").at("steps"), std::max<std::ptrdiff_t>(taken - 2, 0));
}

TEST_F(ReceiptCommand, IsOfNoRunThatASpikeEndedInItsFirstStep) {
  const auto stopped = weft("train run.toml --spikes.action=stop --spikes.grad_norm=1e-9");
  ASSERT_EQ(stopped.exit_code, 3) << stopped.messages;
  EXPECT_NE(refusal().find("has no summary.json: the run stopped before the spike of step 1, its first step"),
            std::string::npos)
      << refusal();
}

// A run that begins anew, and is killed after as many steps as the one before took.
TEST_F(ReceiptCommand, RefusesTheSummaryOfAnEarlierRunOfAsManySteps) {
  train("--checkpoint.at_end=false");
  const std::string earlier = file("out/tiny/summary.json").dump();
  train("--checkpoint.at_end=false");
  put("out/tiny/summary.json", earlier);
  EXPECT_NE(refusal().find("summary.json is not of the last steps in metrics.jsonl"), std::string::npos);
}

TEST_F(ReceiptCommand, NamesSlowRanks) {
  train("--parallelism.tensor=1 --parallelism.data_shard=4");
  SortedJson summary = file("out/tiny/summary.json");
  for (const SortedJson& rank : summary.at("ranks")) {
    EXPECT_GT(rank.at("compute_seconds"), 0.0);
    EXPECT_GT(rank.at("over_peers"), 0.0);
  }
  for (SortedJson& rank : summary.at("ranks")) {
    rank["over_peers"] = rank.at("rank") == 5 ? 1.25 : 1.0;
    rank["slow"] = rank.at("rank") == 5;
  }
  put("out/tiny/summary.json", summary.dump());
  EXPECT_TRUE(receipt().at("ranks")[5].at("slow"));
  EXPECT_NE(
      weft("receipt out/tiny")
          .output.find("spread           rank 5 computes 25.0 % longer than the others of its stage; slow ranks: 5"),
      std::string::npos);
  // With tensor parallelism ranks wait for each other in every segment.
  train("--run.directory=out/waits");
  EXPECT_TRUE(receipt("out/waits").at("ranks")[0].at("over_peers").is_null());
  EXPECT_NE(weft("receipt out/waits").output.find("spread           not measured: "), std::string::npos);
}

TEST_F(ReceiptCommand, RefusesARunWithoutASummaryByName) {
  EXPECT_NE(refusal().find("out/tiny is no directory"), std::string::npos);
  train("");
  const std::string summary = file("out/tiny/summary.json").dump();
  std::filesystem::remove(folder_ / "out/tiny/summary.json");
  EXPECT_NE(refusal().find("out/tiny has no summary.json: the run goes on, or was killed before its end"),
            std::string::npos);
  // As an older version wrote it.
  SortedJson older = SortedJson::parse(summary);
  older.erase("hashes");
  put("out/tiny/summary.json", older.dump());
  EXPECT_NE(refusal().find("summary.json has no hashes"), std::string::npos);
  // Begun again with the same configuration, and killed after its first step.
  put("out/tiny/summary.json", summary);
  put("out/tiny/metrics.jsonl", metrics()[0].dump() + "\n");
  EXPECT_NE(refusal().find("summary.json is not of the last steps in metrics.jsonl"), std::string::npos);
  // Begun again with another.
  put("out/tiny/config.toml",
      std::string(std::istreambuf_iterator<char>(std::ifstream(folder_ / "run.toml").rdbuf()), {}));
  EXPECT_NE(refusal().find("has a summary.json of another configuration than its config.toml"), std::string::npos);
}

// A file that another program wrote, or a hand.
TEST_F(ReceiptCommand, RefusesADamagedSummaryByName) {
  train("");
  const SortedJson summary = file("out/tiny/summary.json");
  const auto expect_refused = [&](const std::string& text) {
    put("out/tiny/summary.json", text);
    for (const char* command : {"receipt out/tiny", "receipt --json out/tiny"}) {
      const auto result = weft(command);
      EXPECT_EQ(result.exit_code, 2) << text << "\n" << result.messages;
      EXPECT_NE(result.messages.find("out/tiny/summary.json is no summary of a run: "), std::string::npos)
          << text << "\n"
          << result.messages;
    }
  };
  for (const char* field : {"goodput", "time", "hashes", "command_line", "steps"}) {
    SortedJson damaged = summary;
    damaged[field] = SortedJson::array({nullptr});
    expect_refused(damaged.dump());
  }
  SortedJson damaged = summary;
  damaged["goodput"] = nullptr;
  expect_refused(damaged.dump());
  damaged = summary;
  damaged.erase("steps");
  expect_refused(damaged.dump());
  damaged = summary;
  damaged["time"]["steps"] = "long";
  expect_refused(damaged.dump());
  for (SortedJson& rank : (damaged = summary)["ranks"]) rank["over_peers"] = rank["slow"] = "much";
  expect_refused(damaged.dump());
}

}  // namespace
}  // namespace weft
