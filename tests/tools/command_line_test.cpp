#include <fmt/format.h>

#include <regex>

#include "tests/tools/program.h"

namespace weft {
namespace {

using CommandLine = ProgramTest;

TEST_F(CommandLine, VersionNamesWhatTheProgramWasBuiltWith) {
  const auto result = weft("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.output.starts_with("weft ")) << result.output;
  EXPECT_NE(result.output.find("\ncompiler: "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("\noneDNN: "), std::string::npos) << result.output;
  // What the backend was built with, or that there is none.
  const std::regex last_line(
      R"([^]*\n(cpu|CUDA \d+\.\d+, cuBLASLt \d+\.\d+\.\d+, cuDNN \d+\.\d+\.\d+, NCCL \d+\.\d+\.\d+)\n)");
  EXPECT_TRUE(std::regex_match(result.output, last_line)) << result.output;
  EXPECT_EQ(result.messages, "");
}

TEST_F(CommandLine, HelpWorksEverywhere) {
  for (const char* command : {"", "check", "mesh", "keys"}) {
    const auto result = weft(std::string(command) + " --help");
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_NE(result.output.find("Usage: weft"), std::string::npos) << result.output;
    EXPECT_EQ(result.messages, "") << command;
  }
}

// A file that is an argument or an option need not be given twice.
TEST_F(CommandLine, HelpRequiresAnArgumentOnce) {
  for (const char* command : {"bench step", "bench moe", "bench products"}) {
    const std::string help = weft(std::string(command) + " --help").output;
    EXPECT_TRUE(std::regex_search(help, std::regex("\n  CONFIG TEXT REQUIRED  "))) << help;
    EXPECT_TRUE(std::regex_search(help, std::regex("\n  --config CONFIG +in place of the argument\n"))) << help;
  }
}

TEST_F(CommandLine, WrongArgumentsEndWithTwoAndAMessage) {
  put("run.toml", small_run);
  for (const char* arguments :
       {"", "chek run.toml", "--nonsense", "check", "check gone.toml", "check run.toml --fast", "check run.toml extra",
        "check run.toml --run.steps 5", "check run.toml -x", "mesh", "mesh run.toml --world 8", "mesh --world eight",
        "mesh --world 0", "mesh --world 8 --run.steps=3"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    EXPECT_NE(result.messages, "") << arguments;
  }
  EXPECT_NE(weft("chek run.toml").messages.find("unknown command chek"), std::string::npos);
  for (const char* group : {"bench", "checkpoint", "data", "trace", "layout"}) {
    const auto unknown = weft(std::string(group) + " collectives run.toml");
    EXPECT_EQ(unknown.exit_code, 2) << group;
    EXPECT_EQ(unknown.messages,
              fmt::format("weft: error: unknown command {0} collectives; see weft {0} --help\n", group));
    EXPECT_NE(weft(group).messages.find("A subcommand is required"), std::string::npos) << group;
  }
  EXPECT_NE(weft("check run.toml --fast").messages.find("unknown option --fast"), std::string::npos);
  EXPECT_NE(weft("check run.toml --run.steps 5").messages.find("write --run.steps=value"), std::string::npos);
}

TEST_F(CommandLine, TheConfigurationMayBeAnOption) {
  put("run.toml", small_run);
  put("text.txt", std::string(4096, 'a'));
  for (const char* command :
       {"check", "units", "mesh", "program", "plan", "layout show", "bench checkpoint --rounds 1"}) {
    EXPECT_EQ(weft(std::string(command) + " --config run.toml --model.qk_norm=false").exit_code, 0) << command;
    const auto missing = weft(command);
    EXPECT_EQ(missing.exit_code, 2) << command;
    EXPECT_EQ(missing.messages.find("--config is"), std::string::npos) << missing.messages;
    EXPECT_NE(missing.messages.find("CONFIG"), std::string::npos) << missing.messages;
  }
}

TEST_F(CommandLine, CheckPrintsTheResolvedConfigurationWithOrigins) {
  put("run.toml", small_run);
  put("text.txt", std::string(4096, 'a'));
  for (const char* arguments :
       {"check run.toml --run.steps=30 model.qk_norm=false", "check --run.steps=30 run.toml --model.qk_norm=false"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(result.messages, "");
    EXPECT_NE(result.output.find("\nsteps = 30                               # command line\n"), std::string::npos);
    EXPECT_NE(result.output.find("\nqk_norm = false                          # command line\n"), std::string::npos);
    EXPECT_NE(result.output.find("\nhead_dim = 8                             # run.toml:8\n"), std::string::npos);
    EXPECT_NE(result.output.find("# default\n"), std::string::npos) << result.output;
  }
}

TEST_F(CommandLine, WhatCheckPrintsIsARunFile) {
  put("run.toml", small_run);
  put("text.txt", std::string(4096, 'a'));
  const auto first = weft("check run.toml");
  put("again.toml", first.output);
  EXPECT_EQ(weft("check again.toml").exit_code, 0);
}

TEST_F(CommandLine, CheckListsAllFaultsOnStandardError) {
  put("run.toml", small_run);
  put("text.txt", std::string(4096, 'a'));
  const auto result = weft("check run.toml --model.head_dim=7 --run.steps=abc --training.sequence_length=0");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  EXPECT_EQ(
      result.messages,
      "command line: --run.steps=abc: error: run.steps: expected an integer, got the string \"abc\"\n"
      "command line: --training.sequence_length=0: error: training.sequence_length: 0 is out of range: at least 1\n"
      "command line: --model.head_dim=7: error: head_dim 7 is odd; the rotary embedding turns pairs\n");
}

TEST_F(CommandLine, KeysListsEveryKeyWithItsDefault) {
  const auto result = weft("keys");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.output.find("\nsteps = 100 "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("# required: query heads\n"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("\ncommunication_timeout_seconds = 300 "), std::string::npos) << result.output;
}

}  // namespace
}  // namespace weft
