// Faults of single keys: the exact place, and a sentence that helps.
#include <gtest/gtest.h>

#include <vector>

#include "tests/trainer/config_sample.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::count;
using config_sample::message;
using config_sample::with;

struct FaultCase {
  const char* from;
  const char* to;
  const char* message;  // up to the end of its first line
};

void expect_single_fault(const FaultCase& test) {
  const std::string text = message(with(test.from, test.to));
  EXPECT_EQ(text.substr(0, text.find('\n')), std::string("run.toml:") + test.message);
  EXPECT_EQ(count(text, "error:"), 1) << text;
}

TEST(ConfigFaults, WrongTypeShowsTheLineAndACaret) {
  EXPECT_EQ(message(with("data_shard = 2", "data_shard = \"8\"")),
            "run.toml:35:14: error: parallelism.data_shard: expected an integer, got the string \"8\"\n"
            "  35 | data_shard = \"8\"\n"
            "     |              ^~~");
}

TEST(ConfigFaults, TheCaretStandsRightBehindTabsAndWideCharacters) {
  EXPECT_EQ(message(with("train = [\"one.txt\", \"two.txt\"]", "\ttrain = [\"ä\", 3]")),
            "run.toml:73:16: error: data.train: expected a string, or a table with path and weight, got the integer 3\n"
            "  73 | \ttrain = [\"ä\", 3]\n"
            "     | \t              ^");
}

TEST(ConfigFaults, MisspeltKeyIsAnError) {
  EXPECT_EQ(message(with("hidden_size", "hiden_size")),
            "run.toml:11:1: error: unknown key model.hiden_size: did you mean model.hidden_size?\n"
            "  11 | hiden_size = 128\n"
            "     | ^~~~~~~~~~");
}

TEST(ConfigFaults, UnknownKeysAndSectionsSuggestTheNearest) {
  const std::vector<FaultCase> cases = {
      {"max_grad_norm = 0", "learning_rate = 1",
       "59:1: error: unknown key training.learning_rate: did you mean "
       "optimizer.learning_rate?"},
      {"max_grad_norm = 0", "local_batch_size = 1",
       "59:1: error: unknown key training.local_batch_size: did you mean "
       "training.microbatch_size?"},
      {"[shard.experts]\n", "[shard.experts]\nlookahed = 1\n",
       "48:1: error: unknown key shard.experts.lookahed: did you mean shard.experts.lookahead?"},
      // In its own section, half of the letters.
      {"max_grad_norm = 0", "microbatch = 0",
       "59:1: error: unknown key training.microbatch: did you mean training.microbatch_size?"},
      {"train = [", "trian = [", "73:1: error: unknown key data.trian: did you mean data.train?"},
      {"[run]", "steps = 3\n[run]", "1:1: error: unknown key steps: did you mean run.steps?"},
      {"[run]", "\"run.steps\" = 3\n[run]", "1:1: error: unknown key \"run.steps\": did you mean run.steps?"},
      {"[run]\n", "[run]\nzzzzzzzz = 3\n", "2:1: error: unknown key run.zzzzzzzz"},
      {"[parallelism]", "[paralelism]", "30:2: error: unknown section [paralelism]: did you mean [parallelism]?"},
      {"[model.moe]", "[model.mou]", "21:8: error: unknown section [model.mou]: did you mean [model.moe]?"},
      {"[shard.experts]", "[shard.expert]",
       "47:8: error: unknown section [shard.expert]: did you mean [shard.experts]?"},
      {"[checkpoint]", "[quantization]\na = 1\n[checkpoint]", "75:2: error: unknown section [quantization]"},
  };
  for (const FaultCase& test : cases) expect_single_fault(test);
}

TEST(ConfigFaults, WrongTypes) {
  const std::vector<FaultCase> cases = {
      {"steps = 200", "steps = 2.0", "5:9: error: run.steps: expected an integer, got the number 2.0"},
      {"steps = 200", "steps = 2024-01-01", "5:9: error: run.steps: expected an integer, got a date or time"},
      {"name = \"sample\"", "name = true", "2:8: error: run.name: expected a string, got the boolean true"},
      {"qk_norm = false", "qk_norm = 1", "16:11: error: model.qk_norm: expected a boolean, got the integer 1"},
      {"eps = 1e-7", "eps = \"small\"", "65:7: error: optimizer.eps: expected a number, got the string \"small\""},
      {"betas = [0.8, 0.99]", "betas = 0.9",
       "64:9: error: optimizer.betas: expected an array of two numbers, got the number 0.9"},
      {"betas = [0.8, 0.99]", "betas = [0.9]",
       "64:9: error: optimizer.betas: expected an array of two numbers, got 1 elements"},
      {"betas = [0.8, 0.99]", "betas = [0.9, \"x\"]",
       "64:15: error: optimizer.betas: expected a number, got the string \"x\""},
      {"train = [\"one.txt\", \"two.txt\"]", "train = 3",
       "73:9: error: data.train: expected an array of strings or of tables with path and weight, got the integer 3"},
      {"decay = \"wsd\"", "decay = {a = 1}", "69:9: error: lr_scheduler.decay: expected a string, got a table"},
      {"[profiling]", "[[profiling]]", "76:1: error: profiling: expected a section, [profiling], got an array"},
  };
  for (const FaultCase& test : cases) expect_single_fault(test);
}

TEST(ConfigFaults, NumbersOutOfRange) {
  const std::vector<FaultCase> cases = {
      {"steps = 200", "steps = 0", "5:9: error: run.steps: 0 is out of range: at least 1"},
      {"seed = 7", "seed = -1", "4:8: error: run.seed: -1 is out of range: at least 0"},
      {"hidden_size = 128", "hidden_size = -4", "11:15: error: model.hidden_size: -4 is out of range: at least 1"},
      {"hidden_size = 128", "hidden_size = 9000000000",
       "11:15: error: model.hidden_size: 9000000000 is out of range: at most 2147483647"},
      {"tensor = 2", "tensor = 0", "32:10: error: parallelism.tensor: 0 is out of range: at least 1"},
      {"betas = [0.8, 0.99]", "betas = [0.8, 1.0]", "64:15: error: optimizer.betas: 1.0 is out of range: in [0, 1)"},
      {"betas = [0.8, 0.99]", "betas = [-0.1, 0.9]", "64:10: error: optimizer.betas: -0.1 is out of range: in [0, 1)"},
      {"eps = 1e-7", "eps = 0", "65:7: error: optimizer.eps: 0.0 is out of range: from 1.2e-38 to 3.4e38, as float32"},
      // In float32 these are 0: a step divides by that, or scales every gradient to it.
      {"eps = 1e-7", "eps = 1e-50",
       "65:7: error: optimizer.eps: 1e-50 is out of range: from 1.2e-38 to 3.4e38, as float32"},
      {"max_grad_norm = 0", "max_grad_norm = 1e-50",
       "59:17: error: training.max_grad_norm: 1e-50 is out of range: 0, or finite and at least 1.2e-38, as float32"},
      {"learning_rate = 3e-3", "learning_rate = nan",
       "63:17: error: optimizer.learning_rate: nan is out of range: at least 0 and finite"},
      {"min_lr_ratio = 0.2", "min_lr_ratio = 2",
       "70:16: error: lr_scheduler.min_lr_ratio: 2.0 is out of range: in [0, 1]"},
      {"router_z_loss_coef = 0.001", "selection_bias = true\nbias_update_rate = 1e300",
       "30:20: error: model.moe.bias_update_rate: 1e+300 is out of range: in [0, 1e6]"},
      {"lookahead = 2", "lookahead = -1", "45:13: error: shard.lookahead: -1 is out of range: at least 0"},
      {"directory = \"runs/sample\"", "directory = \"\"", "3:13: error: run.directory: the text is empty"},
  };
  for (const FaultCase& test : cases) expect_single_fault(test);
}

TEST(ConfigFaults, UnknownWords) {
  const std::vector<FaultCase> cases = {
      {"\"gpipe\"", "\"1fib\"",
       "39:12: error: pipeline.schedule: expected \"gpipe\", \"1f1b\", \"interleaved\", \"looped_bfs\", \"zb_h1\", "
       "\"zb1p\", \"zbv\", \"v_half\", \"v_min\", \"dualpipev\" or \"combined_1f1b\", got \"1fib\" (did you mean "
       "\"1f1b\"?); a schedule of your own is the path of a .csv file"},
      {"\"while_on_stage\"", "\"never\"",
       "44:13: error: shard.residency: residency \"never\" is not \"stage\", \"reshard_after_use\", "
       "\"keep_after_forward\", "
       "\"keep_after_backward\", \"while_on_stage\", \"step\", \"auto\", \"window K\" (K stages, at least 1), or a "
       "number of "
       "ranks that "
       "keep parts after a forward"},
      {"\"while_on_stage\"", "true",
       "44:13: error: shard.residency: true is no residency: reshard_after_forward true is called "
       "\"reshard_after_use\" here"},
      {"\"while_on_stage\"", "\"window 0\"",
       "44:13: error: shard.residency: residency \"window 0\" is not \"stage\", \"reshard_after_use\", "
       "\"keep_after_forward\", "
       "\"keep_after_backward\", \"while_on_stage\", \"step\", \"auto\", \"window K\" (K stages, at least 1), or a "
       "number of "
       "ranks that "
       "keep parts after a forward"},
      {"\"every 3\"", "\"every 0\"",
       "46:13: error: shard.reduction: reduction \"every 0\" is not auto, each_microbatch, last_microbatch or \"every "
       "N\""},
      {"\"d e*3\"", "\"d x\"",
       "9:10: error: model.layers: column 3 of \"d x\": expected d (dense), e (experts), m (multi-token prediction), "
       "a part alone (A attention, M Mamba-2, D dense, E experts) or a group in parentheses"},
  };
  for (const FaultCase& test : cases) expect_single_fault(test);
}

// What a weight that embedding and head share cannot have, shown where it is written.
TEST(ConfigFaults, TiedWeights) {
  const std::string tied = "tie_word_embeddings = true", own = "tie_word_embeddings = false";
  // In 16 bits the sum of both copies is reduced once a step.
  const std::string every = "\"every 3\"", once = "\"last_microbatch\"";
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& message) {
    const std::string text =
        config_sample::with(own, tied, config_sample::with(every, once, config_sample::with(from, to)));
    const std::string found = config_sample::message(text);
    EXPECT_EQ(config_sample::count(found, "error:"), 1) << found;
    EXPECT_NE(found.find(message), std::string::npos) << found;
    EXPECT_EQ(config_sample::message(config_sample::with(from, to)), "accepted");
  };
  EXPECT_EQ(config_sample::message(config_sample::with(own, tied, config_sample::with(every, once))), "accepted");
  expect(
      "[checkpoint]", "[precision.head]\ncompute = \"float32\"\n[checkpoint]",
      "76:11: error: tie_word_embeddings makes embedding and head one weight, but precision.embedding has parameters "
      "\"float32\", compute \"bfloat16\", reduction \"bfloat16\" and precision.head parameters \"float32\", compute "
      "\"float32\", reduction \"bfloat16\": write the same for both");
  expect("recompute = \"none\"", "recompute = \"none\"\nfrozen = [\"embedding\"]",
         "61:10: error: tie_word_embeddings makes embedding and head one weight, but training.frozen has embedding "
         "alone: write both or neither");
  expect("recompute = \"none\"", "recompute = \"none\"\nfrozen = [\"head\"]", "training.frozen has head alone");
  expect("[checkpoint]", "[optimizer.head]\nweight_decay = 0.0\n[checkpoint]",
         "76:16: error: tie_word_embeddings makes embedding and head one weight, which optimizer.embedding steps, and "
         "optimizer.head nothing: leave it out");
  expect(
      "[checkpoint]", "[shard.embedding]\nwrap = \"root\"\nstrategy = \"no_shard\"\n[checkpoint]",
      "76:8: error: tie_word_embeddings makes embedding and head one weight, of which two stages have a copy, but "
      "shard.embedding.wrap \"root\" puts each into a unit of its stage with other parameters: write wrap \"block\"");
  // On one stage they share it wherever it is.
  const std::string root =
      config_sample::with("[checkpoint]", "[shard.embedding]\nwrap = \"root\"\nstrategy = \"no_shard\"\n[checkpoint]");
  EXPECT_EQ(config_sample::message(config_sample::with(own, tied, root), {"parallelism.pipeline=1"}), "accepted");
}

// Nothing would be frozen, and the file says otherwise.
TEST(ConfigFaults, FrozenFamiliesThatTheRunDoesNotHave) {
  const auto frozen = [](const std::string& family, const std::vector<std::string>& overrides = {}) {
    return config_sample::message(
        config_sample::with("recompute = \"none\"", "recompute = \"none\"\nfrozen = [\"" + family + "\"]"), overrides);
  };
  EXPECT_NE(frozen("root").find("61:10: error: training.frozen has root: a run has it only where a family has wrap "
                                "\"root\""),
            std::string::npos)
      << frozen("root");
  for (const std::string family : {"experts", "routing"}) {
    EXPECT_EQ(frozen(family), "accepted");
    const std::string found = frozen(family, {"model.layers=d*4", "parallelism.expert=1"});
    EXPECT_NE(found.find("training.frozen has " + family + ": a run has it only where the model has MoE blocks"),
              std::string::npos)
        << found;
  }
  EXPECT_EQ(frozen("root", {"shard.dense.wrap=root", "shard.dense.strategy=no_shard", "training.frozen=[\"root\", \"dense\"]"}), "accepted");
}

// Known to the field, not to this version: refused by name, with what works instead.
TEST(ConfigFaults, WhatThisVersionCannotDo) {
  const std::vector<FaultCase> cases = {
      {"data_shard = 2", "data_shard = -1",
       "35:14: error: parallelism.data_shard: -1 stands for what is left of the world, and the world is the "
       "product of the degrees: write the number"},
      {"parameters = \"float32\"", "parameters = \"float16\"",
       "52:14: error: precision.parameters: \"float16\" is not available in this version; use \"float32\" or "
       "\"bfloat16\""},
      {"compute = \"bfloat16\"", "compute = \"float64\"",
       "53:11: error: precision.compute: \"float64\" is not available in this version; use \"float32\", \"bfloat16\", "
       "\"float16\", \"float8\" or \"float8_blocks\""},
      {"[checkpoint]", "[precision.head]\ncompute = \"float8\"\n[checkpoint]",
       "76:11: error: precision.head.compute: \"float8\" is not available in this version; use \"float32\", "
       "\"bfloat16\" or \"float16\""},
      {"reduction = \"bfloat16\"", "reduction = \"float64\"",
       "54:13: error: precision.reduction: \"float64\" is not available in this version; use \"float32\", "
       "\"bfloat16\" or \"float16\""},
      {"recompute = \"none\"", "recompute = \"half\"",
       "60:13: error: training.recompute: expected \"none\", \"selective\", \"experts\", \"keep_dispatch\" or "
       "\"full\", got \"half\""},
  };
  for (const FaultCase& test : cases) expect_single_fault(test);
}

// Where ranks live must be said: nothing puts two of them on one GPU unasked.
TEST(ConfigFaults, RanksAndTheirDevices) {
  const std::vector<FaultCase> cases = {
      {"\"threads\"", "\"processes\"",
       "7:10: error: ranks that are processes exchange tensors of GPUs: on the CPU ranks are \"threads\""},
      {"launch = \"threads\"", "launch = \"threads\"\nranks_per_device = 4",
       "8:20: error: ranks_per_device 4 speaks of GPUs, and ranks compute on \"cpu\""},
      {"launch = \"threads\"", "launch = \"threads\"\nregistered_buffers = true",
       "8:22: error: registered_buffers speaks of NCCL, over which only ranks with device \"cuda\" and launch "
       "\"processes\" exchange"},
      {"launch = \"threads\"", "launch = \"threads\"\nattention = \"own\"",
       "8:13: error: attention chooses between kernels of a GPU, and ranks compute on \"cpu\""},
      {"launch = \"threads\"", "launch = \"threads\"\nattention = \"cudnn:-1\"",
       "8:13: error: run.attention: \"cudnn:-1\" is none of \"auto\", \"own\", \"cudnn\" and \"cudnn:<engine>\""},
      {"device = \"cpu\"", "device = \"cuda\"",
       "7:10: error: threads of one process share one GPU, and 8 ranks on it are more than ranks_per_device 1: use "
       "launch "
       "\"processes\" and a GPU for each rank, or, for a trial, ranks_per_device 8"},
  };
  for (const FaultCase& test : cases) expect_single_fault(test);
}

TEST(ConfigFaults, SyntaxErrorsComeInTheSameForm) {
  EXPECT_EQ(message("[run]\nsteps = = 3\n"),
            "run.toml:2:9: error: while parsing value: could not determine value type\n"
            "  2 | steps = = 3\n"
            "    |         ^");
  const std::string twice = message("[run]\nsteps = 3\nsteps = 4\n");
  EXPECT_TRUE(twice.starts_with("run.toml:3:")) << twice;
  EXPECT_NE(twice.find("cannot redefine existing integer 'steps'"), std::string::npos) << twice;
}

TEST(ConfigFaults, RequiredKeysAreNamed) {
  const std::string text = message("");
  for (const char* key : {"model.layers", "model.vocab_size", "model.hidden_size", "model.num_attention_heads",
                          "model.num_key_value_heads", "model.head_dim"}) {
    EXPECT_NE(text.find(fmt::format("run.toml: error: {} is required: ", key)), std::string::npos) << text;
  }
  EXPECT_EQ(count(text, "error:"), 6) << text;
}

TEST(ConfigFaults, AllAreReportedInFileOrderThenTheCommandLineThenMissingKeysThenRules) {
  std::string text = with("steps = 200", "steps = \"many\"");
  text = with("hidden_size = 128\n", "", text);
  text = with("head_dim = 16", "head_dim = 15", text);
  text = with("tensor = 2", "tensr = 2", text);
  text = with("[0.8, 0.99]", "[0.8, 1.5]", text);
  const std::string faults = message(text, {"--precision.compute=int3"});
  std::size_t at = 0;
  for (const char* expected :
       {"run.toml:5:9: error: run.steps: expected an integer", "run.toml:31:1: error: unknown key parallelism.tensr",
        "run.toml:63:15: error: optimizer.betas: 1.5",
        "command line: --precision.compute=int3: error: precision.compute",
        "run.toml: error: model.hidden_size is required", "run.toml:14:12: error: head_dim 15 is odd"}) {
    const std::size_t found = faults.find(expected, at);
    EXPECT_NE(found, std::string::npos) << expected << "\n in \n" << faults;
    if (found != std::string::npos) at = found;
  }
  EXPECT_EQ(count(faults, "error:"), 6) << faults;
}

}  // namespace
}  // namespace weft
