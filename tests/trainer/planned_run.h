// A run of a small model with experts on GPUs, for tests that plan it.
#pragma once

#include <fmt/format.h>

#include <string>

namespace weft {

// The text of its TOML file. `hardware`: a name of the table. `more`: further sections.
inline std::string planned_run(const std::string& layers, const std::string& hardware, bool tied,
                               const std::string& more) {
  return fmt::format(R"([run]
device = "cuda"
launch = "processes"
[model]
layers = "{}"
vocab_size = 512
hidden_size = 256
intermediate_size = 512
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 64
tie_word_embeddings = {}
[model.moe]
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 128
[precision]
compute = "bfloat16"
[training]
sequence_length = 512
global_batch_size = 32
[data]
train = ["text.txt"]
[hardware]
name = "{}"
{})",
                     layers, tied, hardware, more);
}

}  // namespace weft
