// Configurations that no user means. A command answers or refuses within 5 s and 2 GiB, by an exit code and in few
// words. WEFT_MUTATIONS says how many are tried (tools/attack-configs.sh).
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "parallel/pipeline/orders/orders.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

// Of the command that has the machine to itself; the suite, which shares it, finds what is out of all bounds.
constexpr double most_seconds = 5.0, most_in_suite = 20.0;
constexpr rlim_t most_bytes = rlim_t{2} << 30;

struct Ended {
  int code = 0;  // minus the signal that ended it
  double seconds = 0.0;
  double gibibytes = 0.0;
  std::string said;
};

class HostileConfigs : public ProgramTest {
 protected:
  // Runs `weft` with words, its addresses limited.
  Ended run_limited(std::vector<std::string> words) const {
    words.insert(words.begin(), "weft");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string log = (folder_ / "log").string();
    const auto begin = std::chrono::steady_clock::now();
    const pid_t process = fork();
    if (process == 0) {
      const rlimit bytes{most_bytes, most_bytes}, seconds{30, 30};
      setrlimit(RLIMIT_AS, &bytes);
      setrlimit(RLIMIT_CPU, &seconds);
      if (chdir(folder_.c_str()) != 0) _exit(126);
      const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), nothing = open("/dev/null", O_WRONLY);
      dup2(nothing, STDOUT_FILENO);
      dup2(out, STDERR_FILENO);
      execv(WEFT_PROGRAM, argv.data());
      _exit(127);
    }
    int status = 0;
    rusage used{};
    wait4(process, &status, 0, &used);
    Ended ended;
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    // Of the processor: other tests share the machine.
    const auto seconds_of = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    ended.seconds = std::min(wall.count(), seconds_of(used.ru_utime) + seconds_of(used.ru_stime));
    ended.gibibytes = static_cast<double>(used.ru_maxrss) / (1 << 20);
    std::ifstream messages(log);
    ended.said.assign(std::istreambuf_iterator<char>(messages), {});
    return ended;
  }
  // What is wrong with how it ended.
  static std::string fault_of(const Ended& ended, double most) {
    if (ended.code != 0 && ended.code != 2) return fmt::format("ended with {}", ended.code);
    if (ended.seconds > most) return fmt::format("took {:.1f} s", ended.seconds);
    if (ended.said.size() > 20'000) return fmt::format("said {} bytes", ended.said.size());
    for (const char* bare :
         {"std::", "vector::", "basic_string", "Resource temporarily", ": required: ", WEFT_SOURCE_DIR}) {
      if (ended.said.find(bare) != std::string::npos) return fmt::format("said {}", bare);
    }
    return "";
  }
};

struct Mutated {
  const char* key;
  std::vector<std::string> values;
};

// The words of every schedule, and one of none.
std::vector<std::string> schedule_words() {
  std::vector<std::string> words = {"\"interleaved_1f1b\""};
  for (const Schedule& schedule : schedules()) words.push_back(fmt::format("\"{}\"", schedule.name));
  return words;
}

// Numbers at and beyond what a key may hold, and words that change what others mean.
const std::vector<Mutated>& mutated_keys() {
  static const std::vector<std::string> sizes = {"0",         "1",          "3",     "8",
                                                 "100",       "4096",       "65536", "1000000",
                                                 "134217728", "2147483647", "-1",    "9223372036854775807",
                                                 "1e9",       "\"x\""};
  static const std::vector<std::string> degrees = {"1", "2", "4", "8", "16", "64", "100", "512", "4096", "32768"};
  static const std::vector<Mutated> keys = {
      {"model.layers", {"d", "e", "d*100 e*100", "d e*1023", "d*1024", "(d e)*512", "d*99999", "((((d*9)*9)*9)*9)*9"}},
      {"model.hidden_size", sizes},
      {"model.intermediate_size", sizes},
      {"model.num_attention_heads", sizes},
      {"model.num_key_value_heads", sizes},
      {"model.head_dim", sizes},
      {"model.vocab_size", sizes},
      {"model.moe.num_experts", sizes},
      {"model.moe.num_experts_per_tok", sizes},
      {"model.moe.moe_intermediate_size", sizes},
      {"training.sequence_length", sizes},
      {"training.global_batch_size", sizes},
      {"training.microbatch_size", sizes},
      {"training.recompute", {"\"none\"", "\"full\"", "\"selective\""}},
      {"parallelism.pipeline", degrees},
      {"parallelism.tensor", degrees},
      {"parallelism.context", degrees},
      {"parallelism.data_shard", degrees},
      {"parallelism.data_replicate", degrees},
      {"parallelism.expert", degrees},
      {"parallelism.expert_tensor", degrees},
      {"pipeline.schedule", schedule_words()},
      {"pipeline.chunks", {"1", "2", "4", "64", "2147483647"}},
      {"pipeline.microbatch_group", {"0", "1", "3", "2147483647"}},
      {"shard.strategy", {"\"full_shard\"", "\"shard_grad_op\"", "\"no_shard\"", "\"optimizer\""}},
      {"shard.residency", {"\"stage\"", "\"microbatch\"", "\"layer\"", "\"auto\"", "\"window 2\"", "\"window 9999\""}},
      {"shard.memory_budget", {"\"1 GiB\"", "\"1 B\"", "\"80 GiB\"", "\"9999999 TiB\""}},
      {"shard.wrap", {"\"root\"", "\"block\"", "\"stage\""}},
      {"shard.lookahead", sizes},
      {"run.steps", sizes},
      {"hardware.name", {"\"h100\"", "\"cpu\"", "\"gb200\"", "\"none\""}},
      {"hardware.ranks_per_node", degrees},
  };
  return keys;
}

TEST_F(HostileConfigs, AreAnsweredOrRefusedWithinBounds) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the bounds are of the program without a sanitizer, which takes more of both";
#endif
  const char* asked = std::getenv("WEFT_MUTATIONS");
  const int tries = asked == nullptr ? 60 : std::atoi(asked);
  const char* seeded = std::getenv("WEFT_SEED");
  std::mt19937 random(seeded == nullptr ? 7 : static_cast<unsigned>(std::atoi(seeded)));
  const auto below = [&](std::size_t bound) { return random() % bound; };
  put("run.toml", small_run);
  for (const char* text : {"text.txt", "README.md"}) put(text, std::string(100'000, 'w'));
  std::vector<std::string> files = {"run.toml", "run.toml"};
  for (const char* folder : {WEFT_SOURCE_DIR "/configs", WEFT_SOURCE_DIR "/configs/models"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".toml") continue;
      std::filesystem::copy(entry.path(), folder_);
      files.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(files);
  const std::vector<std::vector<std::string>> commands = {
      {"walk"},    {"plan", "--explain"}, {"plan", "--json"},    {"check"}, {"check"}, {"plan"}, {"units"},
      {"program"}, {"layout", "show"},    {"layout", "simulate"}};
  int answered = 0, refused = 0;
  double slowest = 0.0, largest = 0.0;
  for (int i = 0; i < tries; ++i) {
    std::vector<std::string> words = commands[below(commands.size())];
    words.push_back(files[below(files.size())]);
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const Mutated& mutated = mutated_keys()[below(mutated_keys().size())];
      std::string value = mutated.values[below(mutated.values.size())];
      if (std::string_view(mutated.key) == "model.layers") value = "\"" + value + "\"";
      const std::string word = fmt::format("--{}={}", mutated.key, value);
      const std::string key = word.substr(0, word.find('=') + 1);
      if (std::ranges::none_of(words, [&](const std::string& other) { return other.starts_with(key); })) {
        words.push_back(word);
      }
    }
    const Ended ended = run_limited(words);
    ++(ended.code == 0 ? answered : refused);
    slowest = std::max(slowest, ended.seconds);
    largest = std::max(largest, ended.gibibytes);
    if (asked != nullptr && (i + 1) % 500 == 0) std::fprintf(stderr, "%d of %d\n", i + 1, tries);
    const std::string fault = fault_of(ended, asked == nullptr ? most_in_suite : most_seconds);
    EXPECT_EQ(fault, "") << fmt::format("weft {}\n", fmt::join(words, " ")) << ended.said.substr(0, 500);
  }
  std::printf("%d configurations: %d answered, %d refused; at most %.2f s of the processor and %.3f GiB\n", tries,
              answered, refused, slowest, largest);
}

}  // namespace
}  // namespace weft
