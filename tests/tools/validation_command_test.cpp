// Validation of the built program: lines, metrics, the best checkpoint, and what is refused before the first step.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class ValidationCommand : public TinyTraining {
 protected:
  void SetUp() override {
    TinyTraining::SetUp();
    put("held.txt", "weft and warp and loom and shuttle");
  }
};

TEST_F(ValidationCommand, TrainsValidatesAndKeepsTheBest) {
  const auto result = weft(
      "train run.toml --run.steps=5 --validation.data=held.txt --validation.interval=2 --validation.keep_best=true");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  std::vector<std::int64_t> steps;
  double least = 1e9;
  std::ifstream lines(folder_ / "out/tiny/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const SortedJson step = SortedJson::parse(line);
    if (!step.contains("validation")) continue;
    steps.push_back(step["step"]);
    const SortedJson& validation = step["validation"];
    EXPECT_EQ(validation["tokens"], 33);
    EXPECT_GT(validation["bits_per_byte"], 1.0);
    least = std::min(least, validation["loss"].get<double>());
    EXPECT_NE(result.output.find(fmt::format("loss {:.4f}  perplexity {:.2f}  ", validation["loss"].get<double>(),
                                             validation["perplexity"].get<double>())),
              std::string::npos)
        << result.output;
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 5}));
  const auto evaluated = weft("eval out/tiny/checkpoints/best --data held.txt --json");
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.messages;
  EXPECT_EQ(SortedJson::parse(evaluated.output)["loss"], least);
}

// A loss on other text says nothing of the best so far: training takes the first loss that it gets there for it.
TEST_F(ValidationCommand, TheBestIsSoughtAnewOnOtherText) {
  put("easy.txt", "weft weft weft weft weft weft weft");
  const std::string train = "train run.toml --validation.keep_best=true --checkpoint.interval=1 ";
  const auto goes_on = [&](const std::string& words, int interval = 1) {
    const auto result = weft(fmt::format("{}--validation.interval={} {}", train, interval, words));
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return result.output;
  };
  const auto best_step = [&] {
    std::ifstream best(folder_ / "out/tiny/checkpoints/best");
    std::string name;
    best >> name;
    return std::stoi(name.substr(name.size() - 8));
  };
  constexpr const char* anew = "The best is sought anew";
  goes_on("--validation.data=easy.txt --run.steps=2");
  const int first = best_step();
  EXPECT_EQ(goes_on("--validation.data=easy.txt --run.steps=3").find(anew), std::string::npos);
  const std::string other = goes_on("--validation.data=held.txt --run.steps=5");
  EXPECT_NE(other.find(anew), std::string::npos) << other;
  EXPECT_NE(other.find("validation.data [\"easy.txt\"] -> [\"held.txt\"]"), std::string::npos) << other;
  EXPECT_LE(first, 3);
  EXPECT_GT(best_step(), 3);
  // So it does where the file of that name holds other text,
  put("held.txt", "loom and shuttle and warp and weft");
  const std::string changed = goes_on("--validation.data=held.txt --run.steps=6");
  EXPECT_NE(changed.find("told by other validation: the contents of its files. The best is sought anew"),
            std::string::npos)
      << changed;
  // and where another part of the text is read; not where validation is only more frequent.
  EXPECT_NE(goes_on("--validation.data=held.txt --validation.batches=1 --run.steps=7").find(anew), std::string::npos);
  EXPECT_EQ(goes_on("--validation.data=held.txt --validation.batches=1 --run.steps=8", 2).find(anew),
            std::string::npos);
  // The name of a file is none of its text. A larger batch makes a batch of windows larger.
  std::filesystem::rename(folder_ / "held.txt", folder_ / "moved.txt");
  const std::string moved = "--validation.data=moved.txt --validation.batches=1 ";
  EXPECT_EQ(goes_on(moved + "--run.steps=9").find(anew), std::string::npos);
  EXPECT_NE(goes_on(moved + "--training.global_batch_size=16 --run.steps=10").find(anew), std::string::npos);
}

TEST_F(ValidationCommand, FaultsOfItsFilesAreToldBeforeTheFirstStep) {
  put("faulty.toml", "include = [\"run.toml\"]\n[validation]\ndata = [\"held.txt\", \"absent.txt\"]\n");
  for (const char* command : {"check", "train"}) {
    const auto result = weft(fmt::format("{} faulty.toml", command));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.messages.find("faulty.toml:3:8: error: validation.data: "), std::string::npos) << result.messages;
    EXPECT_NE(result.messages.find("absent.txt"), std::string::npos) << result.messages;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/tiny/metrics.jsonl"));
  // A key that means something only with files is told to be idle without them.
  EXPECT_EQ(weft("check run.toml --validation.interval=5").exit_code, 2);
}

}  // namespace
}  // namespace weft
