// weft export and weft import as a user runs them.
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/tools/program.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using SortedJson = nlohmann::json;

// Folders of llama with one block, hidden size 4: what to import.
class HuggingFaceCommands : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    data_ = put_folder("llama", 256, SortedJson::object());
  }

  // With `more` in its config.json. Returns the data of its tensors.
  std::string put_folder(const std::string& name, int vocab_size, const SortedJson& more) const {
    fs::create_directories(folder_ / name);
    SortedJson config = SortedJson::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
    config["vocab_size"] = vocab_size;
    config.update(more);
    put(name + "/config.json", config.dump());
    const std::pair<const char*, std::vector<int>> tensors[] = {{"lm_head.weight", {vocab_size, 4}},
                                                                {"model.embed_tokens.weight", {vocab_size, 4}},
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
    SortedJson header;
    std::string data;
    for (const auto& [tensor, shape] : tensors) {
      const std::size_t begin = data.size();
      std::size_t count = 1;
      for (const int extent : shape) count *= static_cast<std::size_t>(extent);
      for (std::size_t i = 0; i < count; ++i) {
        const float value = static_cast<float>(data.size() % 97) / 97.0f - 0.5f;
        data.append(reinterpret_cast<const char*>(&value), 4);
      }
      header[tensor] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    put(name + "/model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
    return data;
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
  const std::string without_tokenizer =
      "it has no tokenizer: the ids of a model of bytes are list(text.encode()), and --tokenizer takes another\n";
  EXPECT_EQ(exported.output, "wrote checkpoint as llama: 12 tensors, 8576 bytes, 1 file\n" + without_tokenizer);
  std::ifstream file(folder_ / "out" / "model-00001-of-00001.safetensors", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  // Tensors were in the order of names, which is that of the reference too.
  EXPECT_TRUE(bytes.ends_with(data_));
  const auto again = weft("export checkpoint out --max-position-embeddings 32");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.messages.find("out exists already"), std::string::npos) << again.messages;
  // In the order of the model: the embedding | norm, q, k, v | o, norm, gate, up | down, norm | the head.
  const auto split = weft("export checkpoint small --max-position-embeddings 32 --max-shard-size 100 --dtype bfloat16");
  EXPECT_EQ(split.output, "wrote checkpoint as llama: 12 tensors, 4288 bytes, 5 files\n" + without_tokenizer)
      << split.messages;
}

// The tokenizer that came with a model is found by all that ask the checkpoint for one.
TEST_F(HuggingFaceCommands, AnImportedTokenizerIsThatOfTheCheckpoint) {
  put("text.txt", "warp and weft and loom and thread and shuttle and cloth and warp!");
  put_folder("folder", 264, {{"max_position_embeddings", 48}});
  ASSERT_EQ(weft("data train-tokenizer text.txt --vocab-size 260 --output folder/tokenizer.json").exit_code, 0);
  const auto imported = weft("import folder checkpoint");
  ASSERT_EQ(imported.exit_code, 0) << imported.messages;
  ASSERT_EQ(weft("data tokenize text.txt --tokenizer folder --output held").exit_code, 0);
  const auto evaluated = weft("eval checkpoint --data held --json");
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.messages;
  const auto generated = weft("generate checkpoint --prompt warp --max-tokens 5");
  EXPECT_EQ(generated.exit_code, 0) << generated.messages;
  // By its whole path: runs in other folders include the file. So is that of a model made of this one.
  const auto upcycled = weft("checkpoint upcycle checkpoint up --experts 2");
  ASSERT_EQ(upcycled.exit_code, 0) << upcycled.messages;
  for (const std::string name : {"checkpoint", "up"}) {
    std::ifstream file(folder_ / name / "config.toml");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_NE(text.find("tokenizer = \"" + (fs::canonical(folder_ / name) / "tokenizer.json").string()),
              std::string::npos)
        << text;
  }
  fs::remove_all(folder_ / "checkpoint");
  const auto of_upcycled = weft("eval up --data held --json");
  ASSERT_EQ(of_upcycled.exit_code, 0) << of_upcycled.messages;
  EXPECT_NEAR(SortedJson::parse(of_upcycled.output).at("loss").get<double>(),
              SortedJson::parse(evaluated.output).at("loss").get<double>(), 2e-6);
  const auto too_large = [&] {
    put_folder("folder", 200, {{"max_position_embeddings", 48}});
    return weft("import folder refused");
  }();
  EXPECT_EQ(too_large.exit_code, 2);
  EXPECT_NE(too_large.messages.find("the tokenizer has ids up to"), std::string::npos) << too_large.messages;
}

TEST_F(HuggingFaceCommands, ADamagedTokenizerOfACheckpointIsRefused) {
  put("text.txt", "warp and weft and loom and thread and shuttle and cloth and warp!");
  put_folder("folder", 264, {{"max_position_embeddings", 48}});
  ASSERT_EQ(weft("data train-tokenizer text.txt --vocab-size 260 --output folder/tokenizer.json").exit_code, 0);
  ASSERT_EQ(weft("import folder checkpoint").exit_code, 0);
  const auto size = static_cast<std::streamoff>(fs::file_size(folder_ / "checkpoint/tokenizer.json"));
  std::fstream(folder_ / "checkpoint/tokenizer.json", std::ios::in | std::ios::out).seekp(size / 2) << '~';
  for (const char* command : {"generate checkpoint --prompt warp --max-tokens 5", "eval checkpoint --data text.txt",
                              "export checkpoint exported"}) {
    const auto refused = weft(command);
    EXPECT_EQ(refused.exit_code, 2) << command;
    EXPECT_NE(refused.messages.find("tokenizer.json: its first"), std::string::npos) << command << refused.messages;
  }
  EXPECT_FALSE(fs::exists(folder_ / "exported"));
}

// As it stands: no data, no other section, nothing on the command line.
TEST_F(HuggingFaceCommands, AnImportedModelOfBytesIsEvaluatedGeneratesAndIsExported) {
  put_folder("bytes", 256, {{"max_position_embeddings", 48}, {"eos_token_id", {0, 10}}});
  put("bytes/generation_config.json", R"({"eos_token_id": [0, 10], "top_k": 20})");
  put("bytes/tokenizer_config.json", "{}");
  ASSERT_EQ(weft("import bytes checkpoint").exit_code, 0);
  put("text.txt", "warp and weft and loom and thread and shuttle and cloth and warp!");
  const auto evaluated = weft("eval checkpoint --data text.txt --json");
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.messages;
  const SortedJson result = SortedJson::parse(evaluated.output);
  EXPECT_EQ(result.at("tokens"), 64);
  EXPECT_EQ(result.at("windows"), 2);  // of max_position_embeddings
  EXPECT_TRUE(std::isfinite(result.at("loss").get<double>()));
  const auto generated = weft("generate checkpoint --prompt warp --max-tokens 5");
  EXPECT_EQ(generated.exit_code, 0) << generated.messages;
  EXPECT_EQ(generated.output.size(), 5u);
  EXPECT_EQ(generated.messages.find("warning"), std::string::npos) << generated.messages;
  const auto exported = weft("export checkpoint out");
  ASSERT_EQ(exported.exit_code, 0) << exported.messages;
  const auto content = [&](const std::string& name) {
    std::ifstream file(folder_ / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const SortedJson config = SortedJson::parse(content("out/config.json"));
  EXPECT_EQ(config.at("max_position_embeddings"), 48);
  EXPECT_EQ(config.at("eos_token_id"), SortedJson({0, 10}));
  for (const char* name : {"generation_config.json", "tokenizer_config.json"}) {
    EXPECT_EQ(content(std::string("out/") + name), content(std::string("bytes/") + name)) << name;
  }
  // Of a model that somebody has changed by hand the weights are another's.
  put("checkpoint/config.toml", content("checkpoint/config.toml") + "# \n");
  const auto changed = weft("export checkpoint other");
  EXPECT_EQ(changed.exit_code, 2);
  EXPECT_NE(changed.messages.find("config.toml has "), std::string::npos) << changed.messages;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
}

// A model of 1,000 tokens: whatever would read its tokens as bytes says so in one sentence.
TEST_F(HuggingFaceCommands, AnImportedModelOfOtherTokensReadsNoText) {
  put_folder("words", 1000, {{"max_position_embeddings", 48}});
  ASSERT_EQ(weft("import words checkpoint").exit_code, 0);
  put("text.txt", std::string(5000, 'x'));
  put("plan.toml", "include = [\"checkpoint/config.toml\"]\n[training]\nsequence_length = 8\n");
  const std::string sentence = "model.vocab_size 1000 does not match data.tokenizer \"byte\"";
  const std::string data = " '--data.train=[\"text.txt\"]'";
  for (const std::string& arguments :
       {"train plan.toml --checkpoint.start_from=checkpoint" + data, "check plan.toml" + data,
        std::string("eval checkpoint --data text.txt"), std::string("generate checkpoint --prompt x")}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_NE(result.messages.find(sentence), std::string::npos) << arguments << ": " << result.messages;
    // A check shows the configuration all the same.
    EXPECT_TRUE(arguments.starts_with("check") || result.output.empty()) << arguments;
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  // What reads no text goes on, with data that only train would read and without; so does what times it.
  for (const std::string& arguments :
       {"plan plan.toml" + data, std::string("plan plan.toml"), std::string("check plan.toml"),
        "program plan.toml" + data, "bench step plan.toml --warmup 1 --steps 1" + data}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << ": " << result.messages;
  }
  // A vocabulary that is bytes and padding, by its owner's word.
  const auto padded = weft("train plan.toml --run.steps=1 --data.padded_vocab=true" + data);
  EXPECT_EQ(padded.exit_code, 0) << padded.messages;
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
      {"import caf\xe9 out", "caf\xef\xbf\xbd: the name is not UTF-8"},
      {"import llama out/caf\xe9", "out/caf\xef\xbf\xbd: the name is not UTF-8"},
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
