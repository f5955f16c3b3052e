// A run file that names every key, and ways to break it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "parallel/runtime/error.h"
#include "trainer/resolve/config_reader.h"

namespace weft::config_sample {

// Tests refer to its lines by number: new ones go to the end.
inline std::string complete() {
  return R"([run]
name = "sample"
directory = "runs/sample"
seed = 7
steps = 200
device = "cpu"
launch = "threads"
[model]
layers = "d e*3"
vocab_size = 256
hidden_size = 128
intermediate_size = 384
num_attention_heads = 8
num_key_value_heads = 4
head_dim = 16
qk_norm = false
rope_theta = 50000.0
rms_norm_eps = 1e-5
tie_word_embeddings = false
initializer_range = 0.01
[model.moe]
num_experts = 8
num_experts_per_tok = 2
moe_intermediate_size = 96
shared_expert_intermediate_size = 64
norm_topk_prob = false
scoring = "sigmoid"
router_aux_loss_coef = 0.01
router_z_loss_coef = 0.001
[parallelism]
pipeline = 2
tensor = 2
context = 1
data_replicate = 1
data_shard = 2
expert = 2
expert_tensor = 1
[pipeline]
schedule = "gpipe"
layout = "auto"
chunks = 1
[shard]
strategy = "full_shard"
residency = "while_on_stage"
lookahead = 2
reduction = "every 3"
[shard.experts]
residency = "reshard_after_use"
[shard.root]
strategy = "no_shard"
[precision]
parameters = "float32"
compute = "bfloat16"
reduction = "bfloat16"
[training]
sequence_length = 64
global_batch_size = 16
microbatch_size = 2
max_grad_norm = 0
recompute = "none"
[optimizer]
name = "adamw"
learning_rate = 3e-3
betas = [0.8, 0.99]
eps = 1e-7
weight_decay = 0.2
[lr_scheduler]
warmup_steps = 20
decay = "wsd"
min_lr_ratio = 0.2
decay_steps = 30
[data]
train = ["one.txt", "two.txt"]
tokenizer = "byte"
[checkpoint]
[profiling]
first_step = 10
last_step = 12
trace = false
)";
}

// `complete()` with one place changed; `from` must occur.
inline std::string with(const std::string& from, const std::string& to, std::string text = complete()) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

// The message of the request error that reading ends with, or "accepted".
inline std::string message(const std::string& text, const Overrides& overrides = {}) {
  try {
    read_config_text(text, "run.toml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

inline int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

}  // namespace weft::config_sample
