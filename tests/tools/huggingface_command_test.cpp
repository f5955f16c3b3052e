// weft export and weft import as a user runs them.
#include <nlohmann/json.hpp>

#include "tests/tools/program.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A folder of llama with one block, hidden size 4: what to import.
class HuggingFaceCommands : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    fs::create_directories(folder_ / "llama");
    put("llama/config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
      "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
    const std::pair<const char*, std::vector<int>> tensors[] = {{"lm_head.weight", {256, 4}},
                                                                {"model.embed_tokens.weight", {256, 4}},
                                                                {"model.layers.0.input_layernorm.weight", {4}},
                                                                {"model.layers.0.mlp.down_proj.weight", {4, 3}},
                                                                {"model.layers.0.mlp.gate_proj.weight", {3, 4}},
                                                                {"model.layers.0.mlp.up_proj.weight", {3, 4}},
                                                                {"model.layers.0.post_attention_layernorm.weight", {4}},
                                                                {"model.layers.0.self_attn.k_proj.weight", {2, 4}},
                                                                {"model.layers.0.self_attn.o_proj.weight", {4, 4}},
                                                                {"model.layers.0.self_attn.q_proj.weight", {4, 4}},
                                                                {"model.layers.0.self_attn.v_proj.weight", {2, 4}},
                                                                {"model.norm.weight", {4}}};
    Json header;
    for (const auto& [name, shape] : tensors) {
      const std::size_t begin = data_.size();
      std::size_t count = 1;
      for (const int extent : shape) count *= static_cast<std::size_t>(extent);
      for (std::size_t i = 0; i < count; ++i) {
        const auto value = static_cast<float>(data_.size());
        data_.append(reinterpret_cast<const char*>(&value), 4);
      }
      header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    put("llama/model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + data_);
  }

  std::string data_;
};

TEST_F(HuggingFaceCommands, ImportAndExport) {
  const auto imported = weft("import llama checkpoint");
  ASSERT_EQ(imported.exit_code, 0) << imported.messages;
  EXPECT_EQ(imported.output, "wrote checkpoint, a llama: 2144 parameters, 8576 bytes, 1 file\n");
  // Whoever trains on includes what stands there.
  put("run.toml", "include = [\"checkpoint/config.toml\"]\n[data]\ntrain = [\"text.txt\"]\n");
  put("text.txt", std::string(5000, 'x'));
  const auto checked = weft("check run.toml");
  ASSERT_EQ(checked.exit_code, 0) << checked.messages;
  EXPECT_NE(checked.output.find("head_dim = 2"), std::string::npos) << checked.output;

  const auto exported = weft("export checkpoint out --max-position-embeddings 32");
  ASSERT_EQ(exported.exit_code, 0) << exported.messages;
  EXPECT_EQ(exported.output, "wrote checkpoint as llama: 12 tensors, 8576 bytes, 1 file\n");
  std::ifstream file(folder_ / "out" / "model-00001-of-00001.safetensors", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  // Tensors were in the order of names, which is that of the reference too.
  EXPECT_TRUE(bytes.ends_with(data_));
  const auto again = weft("export checkpoint out --max-position-embeddings 32");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.messages.find("out exists already"), std::string::npos) << again.messages;
  // In the order of the model: the embedding | norm, q, k, v | o, norm, gate, up | down, norm | the head.
  const auto split = weft("export checkpoint small --max-position-embeddings 32 --max-shard-size 100 --dtype bfloat16");
  EXPECT_EQ(split.output, "wrote checkpoint as llama: 12 tensors, 4288 bytes, 5 files\n") << split.messages;
}

TEST_F(HuggingFaceCommands, CheckSaysWhoLoadsTheModelAndWritesNothing) {
  ASSERT_EQ(weft("import llama checkpoint").exit_code, 0);
  const auto result = weft("export checkpoint --check");
  EXPECT_EQ(result.exit_code, 0) << result.messages;
  for (const char* part :
       {"llama        yes\n", "qwen3_moe    no\n", "no block has experts", "transformers yes\n",
        "llama.cpp    yes: converted by", "would write checkpoint as llama: 12 tensors, 8576 bytes, 1 file\n"}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << part << result.output;
  }
  const auto mixtral = weft("export checkpoint --check --architecture mixtral");
  EXPECT_EQ(mixtral.exit_code, 2);
  EXPECT_NE(mixtral.output.find("llama.cpp    no: the model is not one of mixtral"), std::string::npos);
  EXPECT_NE(mixtral.messages.find("cannot be written as mixtral: block 0 is dense"), std::string::npos)
      << mixtral.messages;
}

TEST_F(HuggingFaceCommands, WrongRequestsAreRefused) {
  ASSERT_EQ(weft("import llama checkpoint").exit_code, 0);
  const std::pair<const char*, const char*> cases[] = {
      {"export checkpoint", "give OUT"},
      {"export checkpoint out --check", "give OUT"},
      {"export checkpoint out", "give --max-position-embeddings"},
      {"export nowhere out", "there is no such folder"},
      {"export checkpoint out --dtype float64 --max-position-embeddings 8", "--dtype float64"},
      {"export checkpoint out --architecture gpt2 --max-position-embeddings 8", "\"gpt2\" is not an architecture"},
      {"export checkpoint out --max-shard-size huge --max-position-embeddings 8", "\"huge\" is not a size"},
      {"import nowhere out", "nowhere"},
      {"import llama checkpoint", "checkpoint exists already"}};
  for (const auto& [arguments, part] : cases) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_NE(result.messages.find(part), std::string::npos) << arguments << ": " << result.messages;
    EXPECT_FALSE(fs::exists(folder_ / "out")) << arguments;
  }
}

}  // namespace
}  // namespace weft
