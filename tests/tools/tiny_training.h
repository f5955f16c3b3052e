// A run of 8 ranks that trains in milliseconds, on text.txt.
#pragma once

#include <string>

#include "tests/tools/program.h"

namespace weft {

inline constexpr const char* tiny_run = R"([run]
name = "tiny"
directory = "out/tiny"
steps = 3
[model]
layers = "d e"
vocab_size = 256
hidden_size = 16
intermediate_size = 24
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 4
[model.moe]
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 8
router_aux_loss_coef = 0.01
[parallelism]
pipeline = 2
tensor = 2
data_shard = 2
expert = 2
[shard]
reduction = "last_microbatch"
[training]
sequence_length = 8
global_batch_size = 8
[data]
train = ["text.txt"]
)";

class TinyTraining : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    put("run.toml", tiny_run);
    std::string text;
    for (int i = 0; i < 200; ++i) text += "warp and weft ";
    put("text.txt", text);
  }
};

}  // namespace weft
