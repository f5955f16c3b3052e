// Data by what is in them: moved files go on, changed ones are refused or, where that is allowed, read from their first
// sample.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/trainer/byte_vocabulary.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/keys.h"

namespace weft {
namespace {

// A text of windows that all differ.
std::string text_of(int seed, int bytes = 3000) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>('a' + (i * i * 7 + i * seed) % 23);
  return text;
}

class NewData : public ::testing::TestWithParam<TinyLayout> {
 protected:
  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  // Nothing is learned, so that the loss of a sample is the same whenever it is read.
  Config config_reading(const std::vector<std::string>& files, const std::string& directory) const {
    Config config = saving_config(GetParam(), folder_ / directory, 3, 3);
    config.optimizer.learning_rate = 0.0;
    config.optimizer.weight_decay = 0.0;
    for (const UpdateGroup group : update_groups) config.optimizer_by_group[group] = config.optimizer;
    config.data.train = {files.begin(), files.end()};
    return config;
  }
  static std::string refusal(const Config& config) {
    try {
      run_steps(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_P(NewData, AreRefusedUnlessAllowed) {
  const std::string old_file = put("old", text_of(1)), moved = put("moved", text_of(1));
  run_steps(config_reading({old_file}, "saved"));
  Config more = config_reading({moved}, "saved");
  more.run.steps = 4;
  EXPECT_EQ(learn(more).losses.size(), 1u) << "another name for the same bytes";

  // One byte of 3000; another size; a file more; the same files in another order.
  std::string changed = text_of(1);
  changed[1500] ^= 1;
  for (const auto& files : std::vector<std::vector<std::string>>{
           {put("changed", changed)}, {put("longer", text_of(1) + "x")}, {old_file, put("second", text_of(2))}}) {
    Config other = config_reading(files, "saved");
    other.run.steps = 6;
    const std::string message = refusal(other);
    EXPECT_NE(message.find(files.size() > 1 ? "data.train[1] is absent" : "data.train[0] is 3000 bytes, xxh64 "),
              std::string::npos)
        << message;
    EXPECT_NE(message.find("checkpoint.allow_new_data"), std::string::npos) << message;
  }

  // From there on as a run that begins with these data.
  Config allowed = config_reading({put("changed", changed)}, "saved");
  allowed.run.steps = 7;
  allowed.checkpoint.allow_new_data = true;
  Config fresh = allowed;
  fresh.checkpoint.directory = (folder_ / "fresh").string();
  fresh.run.steps = 3;
  const LearnedRun rest = learn(allowed), begun = learn(fresh);
  EXPECT_EQ(rest.losses, begun.losses);
  const CheckpointReader reader(folder_ / "saved" / "step-00000007");
  EXPECT_EQ(reader.manifest().progress.samples, 3 * 16);
  EXPECT_EQ(reader.manifest().progress.step, 7);
  // The next start finds its own data.
  allowed.run.steps = 8;
  allowed.checkpoint.allow_new_data = false;
  EXPECT_EQ(learn(allowed).losses.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, NewData,
                         ::testing::Values(TinyLayout{.name = "one"},
                                           TinyLayout{.name = "mesh",
                                                      .layers = "d e",
                                                      .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}}),
                         [](const auto& instance) { return instance.param.name; });

TEST(DataContents, OfALargeFileAreKnownByPieces) {
  const TemporaryFolder folder;
  const std::string name = (folder / "large").string();
  constexpr std::int64_t size = (std::int64_t{70} << 20) + 12345;
  std::ofstream(name) << "text without an end";
  const auto contents = [&] { return TokenDataset(files_of({name}, 8, 1), byte_vocabulary(256)).contents().front(); };
  const auto put_at = [&](std::int64_t at, char byte) {
    std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(byte);
  };
  std::filesystem::resize_file(name, 9000);
  {
    std::ofstream text(name, std::ios::binary);
    const std::string line(1 << 16, 'w');
    for (std::int64_t at = 0; at < size; at += std::ssize(line)) {
      text.write(line.data(), std::min<std::int64_t>(std::ssize(line), size - at));
    }
  }
  const std::string before = contents();
  EXPECT_TRUE(before.starts_with(std::to_string(size) + " bytes, xxh64 ")) << before;
  EXPECT_EQ(contents(), before);
  // The 33rd of 64 pieces begins here.
  constexpr std::int64_t middle = (size - (1 << 20)) / 63 * 32 + 100;
  for (const std::int64_t at : {std::int64_t{0}, middle, size - 1}) {
    put_at(at, 'x');
    EXPECT_NE(contents(), before) << at;
    put_at(at, 'w');
    EXPECT_EQ(contents(), before);
  }
  // Of 64 MiB, every byte.
  std::filesystem::resize_file(name, std::int64_t{64} << 20);
  const std::string whole = contents();
  for (std::int64_t at = 777; at < std::int64_t{64} << 20; at += std::int64_t{5} << 20) {
    put_at(at, 'x');
    EXPECT_NE(contents(), whole) << at;
    put_at(at, 'w');
  }
}

// A checkpoint that was written before contents were.
TEST(DataContents, OfCheckpointsThatDoNotSayAreNames) {
  const KeyValues saved = {{"data.train", "[\"a\"]"}, {"run.seed", "1"}};
  KeyValues own = saved;
  own["data.train[0]"] = "3000 bytes, xxh64 0123456789abcdef";
  EXPECT_EQ(differing_data(saved, own), "");
  own["data.train"] = "[\"b\"]";
  EXPECT_EQ(differing_data(saved, own), "data.train is [\"a\"] in the checkpoint and [\"b\"] here");
}

// Two texts of the same split.
TEST(DataContents, OfASplitAreItsParts) {
  const auto difference = [](const std::string& saved, const std::string& own) {
    return differing_data({{"data.split", saved}}, {{"data.split", own}});
  };
  EXPECT_EQ(difference("\"98,2\"", "\"98, 2.0,0\""), "");
  EXPECT_EQ(difference("\"98,2,0\"", "\"98,2\""), "");
  EXPECT_EQ(difference("\"98,2\"", "\"97,3,0\""), "data.split is \"98,2\" in the checkpoint and \"97,3\" here");
  EXPECT_NE(difference("\"\"", "\"98,2\""), "");
  EXPECT_NE(difference("\"not,a,split\"", "\"98,2\""), "");
}

}  // namespace
}  // namespace weft
