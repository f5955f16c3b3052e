// A run to ask advice for: a small dense model sharded over eight GPUs, which is never started.
#pragma once

namespace weft {

inline constexpr const char* eight_gpus = R"([run]
name = "searched"
device = "cuda"
launch = "processes"
[model]
layers = "d*4"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_attention_heads = 4
num_key_value_heads = 4
head_dim = 16
[parallelism]
data_shard = 8
[precision]
compute = "bfloat16"
[training]
sequence_length = 64
global_batch_size = 16
[data]
train = ["text"]
)";

}  // namespace weft
