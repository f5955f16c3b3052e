// Runs the built program as a user does.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace weft {

struct ProgramResult {
  int exit_code = -1;
  std::string output;    // standard output
  std::string messages;  // standard error
};

// On a machine where nothing was built, the program stands elsewhere (tools/gpu.sh).
inline std::string weft_program() {
  const char* elsewhere = std::getenv("WEFT_PROGRAM");
  return elsewhere != nullptr ? elsewhere : WEFT_PROGRAM;
}

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        std::filesystem::temp_directory_path() / ("weft-" + std::string(test->name()) + "-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // `arguments` in shell syntax. The working directory is the test's own folder.
  ProgramResult weft(const std::string& arguments) const { return run("'" + weft_program() + "' " + arguments); }

  // Any command, likewise.
  ProgramResult run(const std::string& line) const {
    const std::string command = "cd '" + folder_.string() + "' && " + line + " 2>messages </dev/null";
    ProgramResult result;
    FILE* pipe = popen(command.c_str(), "r");
    if (!pipe) return result;
    std::array<char, 4096> buffer;
    for (std::size_t count; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
      result.output.append(buffer.data(), count);
    }
    const int status = pclose(pipe);
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    std::ifstream messages(folder_ / "messages", std::ios::binary);
    result.messages.assign(std::istreambuf_iterator<char>(messages), {});
    return result;
  }

  void put(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }

  std::filesystem::path folder_;
};

// A run of 8 ranks.
inline constexpr const char* small_run = R"([model]
layers = "d e*3"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 8
[model.moe]
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 16
router_aux_loss_coef = 0.01
[parallelism]
pipeline = 2
tensor = 2
data_shard = 2
expert = 4
[data]
train = ["text.txt"]
)";

}  // namespace weft
