// Checkpoints that are damaged, read by every command that reads one: each refuses, or says what it says of the whole
// one. WEFT_DAMAGES says how many are tried.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <regex>
#include <vector>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

struct Reader {
  const char* name;
  std::string command;
  bool reads_all = false;  // every byte of the folder
};

class DamagedCheckpoint : public TinyTraining {
 protected:
  void SetUp() override {
    TinyTraining::SetUp();
    const ProgramResult trained = weft("train run.toml --run.directory=whole --checkpoint.interval=3");
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder_ / "run/checkpoints/step-00000003")) {
      all.push_back(entry.path());
    }
    std::ranges::sort(all);
    return all;
  }
  void renew() const {
    fs::remove_all(folder_ / "run");
    fs::remove_all(folder_ / "exported");
    fs::copy(folder_ / "whole", folder_ / "run", fs::copy_options::recursive);
  }
  // What was done, in words; empty: nothing was.
  std::string damage(std::mt19937& random) const {
    const std::vector<fs::path> all = files();
    const fs::path file = all[random() % all.size()];
    const auto size = static_cast<std::int64_t>(fs::file_size(file));
    const std::string name = file.filename().string();
    const std::int64_t at = static_cast<std::int64_t>(random()) % size;
    switch (random() % 6) {
      case 0: {
        std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekg(at);
        const int byte = bytes.get();
        bytes.seekp(at);
        bytes.put(static_cast<char>(byte ^ (1 << random() % 8)));
        return fmt::format("a bit at {} of {}", at, name);
      }
      case 1:
        fs::resize_file(file, static_cast<std::uintmax_t>(at));
        return fmt::format("{} cut to {} of {}", name, at, size);
      case 2:
        fs::remove(file);
        return name + " removed";
      case 3:
        std::ofstream(file, std::ios::app) << "more";
        return name + " longer";
      case 4: {
        const fs::path other = all[random() % all.size()];
        if (other == file) return "";
        fs::rename(file, folder_ / "aside");
        fs::rename(other, file);
        fs::rename(folder_ / "aside", other);
        return fmt::format("{} and {} exchanged", name, other.filename().string());
      }
      default: {
        const std::vector<char> zeros(static_cast<std::size_t>(std::min<std::int64_t>(512, size - at)));
        std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
        std::vector<char> before(zeros.size());
        bytes.seekg(at);
        bytes.read(before.data(), std::ssize(before));
        if (before == zeros) return "";
        bytes.seekp(at);
        bytes.write(zeros.data(), std::ssize(zeros));
        return fmt::format("{} zeros at {} of {}", zeros.size(), at, name);
      }
    }
  }
  // What a command says, without figures of time, and what it wrote.
  std::string said_by(const Reader& reader, int& code) const {
    const ProgramResult result = weft(reader.command);
    code = result.exit_code;
    std::string text = std::regex_replace(
        result.output, std::regex("[0-9.]+ s\\b|[0-9]+ tok/s.*GiB|  data [0-9]+ %|\"[a-z_]*second[a-z]*\": [^,\n]*"),
        "");
    if (code == 0 && fs::exists(folder_ / "exported")) {
      std::vector<fs::path> exported(fs::directory_iterator(folder_ / "exported"), {});
      std::ranges::sort(exported);
      for (const fs::path& path : exported) {
        std::ifstream file(path, std::ios::binary);
        text += path.filename().string() + std::string(std::istreambuf_iterator<char>(file), {});
      }
    }
    return text;
  }
};

TEST_F(DamagedCheckpoint, IsRefusedByEveryReaderOrReadAsTheWholeOne) {
  const std::string step = " run/checkpoints/step-00000003";
  const std::vector<Reader> readers = {
      {"verify", "checkpoint verify" + step, true},
      {"inspect", "checkpoint inspect" + step},
      {"diff", "checkpoint diff whole" + step},
      {"eval", "eval" + step + " --data text.txt"},
      {"generate", "generate" + step + " --prompt warp --max-tokens 8"},
      {"export", "export" + step + " exported"},
      {"train", "train run.toml --run.directory=run --run.steps=4"},
      {"start_from", "train run.toml --run.directory=other --run.steps=1 --checkpoint.start_from=run"},
  };
  std::vector<std::string> whole;
  for (const Reader& reader : readers) {
    renew();
    int code = -1;
    whole.push_back(said_by(reader, code));
    fs::remove_all(folder_ / "other");
    ASSERT_EQ(code, 0) << reader.name;
  }
  const char* asked = std::getenv("WEFT_DAMAGES");
  const int tries = asked == nullptr ? 40 : std::atoi(asked);
  std::mt19937 random(21);
  int refused = 0, unread = 0;
  for (int i = 0; i < tries;) {
    renew();
    const std::string what = damage(random);
    if (what.empty()) continue;
    const std::size_t r = static_cast<std::size_t>(i++) % readers.size();
    int code = -1;
    const std::string said = said_by(readers[r], code);
    fs::remove_all(folder_ / "other");
    EXPECT_TRUE(code == 0 || code == 2 || code == 3) << readers[r].name << " ended with " << code << ": " << what;
    if (code == 0) {
      EXPECT_FALSE(readers[r].reads_all) << what;
      EXPECT_EQ(said, whole[r]) << readers[r].name << ": " << what;
    }
    ++(code == 0 ? unread : refused);
  }
  std::printf("%d damages: %d refused, %d in what the command does not read\n", tries, refused, unread);
  EXPECT_GT(refused, tries / 3);
}

}  // namespace
}  // namespace weft
