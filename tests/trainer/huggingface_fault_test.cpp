// Folders and checkpoints that are not as they should be. They are refused with everything that is wrong, and nothing
// is left where the new folder would have been.
#include <fstream>

#include "tests/trainer/huggingface_fixture.h"
#include "tests/trainer/huggingface_reference.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/huggingface/import.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft::huggingface_test {
namespace {

namespace fs = std::filesystem;

class Faults : public HuggingFace {
 protected:
  void SetUp() override {
    HuggingFace::SetUp();
    write_checkpoint(folder_ / "a", model_, random_weights(model_, 3));
    export_to("a", "out", architecture_, model_);
    tensors_ = read_tensors(folder_ / "out");
    // One file without an index, which is a folder too.
    fs::remove(folder_ / "out" / "model-00001-of-00001.safetensors");
    fs::remove(folder_ / "out" / index_name);
    write();
  }
  void write() const { write_tensors(folder_ / "out" / "model.safetensors", tensors_); }
  std::string import_message() const {
    const std::string text = refusal([&] { import_folder(folder_ / "out", folder_ / "b", {}); });
    EXPECT_EQ(text == "done", fs::exists(folder_ / "b"));
    EXPECT_FALSE(fs::exists(folder_ / "b.partial"));
    fs::remove_all(folder_ / "b");
    return text;
  }

  Architecture architecture_ = Architecture::qwen3_moe;
  ModelConfig model_ = tiny_model(architecture_, false);
  std::map<std::string, FolderMatrix> tensors_;
};

TEST_F(Faults, ASingleFileWithoutAnIndexIsRead) {
  EXPECT_EQ(import_message(), "done");
  import_folder(folder_ / "out", folder_ / "b", {{"model.layers", "\"e d e\""}});
  EXPECT_EQ(read_checkpoint(folder_ / "b"), read_checkpoint(folder_ / "a"));
  EXPECT_EQ(CheckpointReader(folder_ / "b").manifest().model.at("model.layers"), "\"e d e\"");
}

TEST_F(Faults, AllTensorsThatAreMissingUnknownOrOfAnotherShapeAreListed) {
  tensors_.erase("model.layers.2.mlp.experts.4.up_proj.weight");
  tensors_.erase("lm_head.weight");
  tensors_["model.layers.0.self_attn.q_proj.bias"] = {{32}, "F32", std::vector<double>(32)};
  tensors_["model.layers.3.input_layernorm.weight"] = {{24}, "F32", std::vector<double>(24)};
  tensors_.at("model.layers.1.self_attn.o_proj.weight").shape = {32, 24};
  write();
  const std::string text = import_message();
  for (const char* part :
       {"model.layers.2.mlp.experts.4.up_proj.weight [14, 24] is missing", "lm_head.weight [37, 24] is missing",
        "model.layers.0.self_attn.q_proj.bias [32] is no tensor of this model",
        "model.layers.3.input_layernorm.weight [24] is no tensor of this model",
        "model.layers.1.self_attn.o_proj.weight has the shape [32, 24], not [24, 32]"}) {
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
  }
}

TEST_F(Faults, OldRotaryTablesAreIgnored) {
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{4}, "F32", std::vector<double>(4)};
  write();
  EXPECT_EQ(import_message(), "done");
}

TEST_F(Faults, AnotherDtypeIsRefused) {
  std::string bytes = read_bytes(folder_ / "out" / "model.safetensors");
  const std::size_t at = bytes.find("\"F32\"", bytes.find("model.norm.weight"));
  bytes.replace(at, 5, "\"I32\"");
  write_bytes(folder_ / "out" / "model.safetensors", bytes);
  EXPECT_TRUE(has(import_message(), "model.norm.weight is in I32; Weft reads F32, BF16 and F16"));
}

TEST_F(Faults, ATiedHeadMustBeTheEmbedding) {
  std::string config = read_bytes(folder_ / "out" / "config.json");
  const std::string untied = "\"tie_word_embeddings\": false";
  config.replace(config.find(untied), untied.size(), "\"tie_word_embeddings\": true");
  write_bytes(folder_ / "out" / "config.json", config);
  EXPECT_TRUE(
      has(import_message(), "tie_word_embeddings is true, but lm_head.weight and model.embed_tokens.weight differ"));
  tensors_.at("lm_head.weight") = tensors_.at("model.embed_tokens.weight");
  write();
  EXPECT_EQ(import_message(), "done");
}

TEST_F(Faults, ABrokenHeaderIsRefused) {
  const fs::path file = folder_ / "out" / "model.safetensors";
  const std::string bytes = read_bytes(file);
  const auto message = [&](const std::string& broken) {
    write_bytes(file, broken);
    return import_message();
  };
  EXPECT_TRUE(has(message(std::string(7, '\xff') + '\x7f' + bytes.substr(8)), "larger than the format allows"));
  EXPECT_TRUE(has(message(bytes.substr(0, bytes.size() - 1)), "the tensors take"));
  EXPECT_TRUE(has(message(bytes.substr(0, 5)), "too few for a header"));
  fs::remove(file);
  EXPECT_TRUE(has(import_message(), "has neither model.safetensors.index.json nor model.safetensors"));
}

TEST_F(Faults, AnIndexMustAgreeWithItsFiles) {
  const fs::path index = folder_ / "out" / index_name;
  nlohmann::json map;
  for (const auto& [name, matrix] : tensors_) map[name] = "model.safetensors";
  const auto message = [&](const nlohmann::json& weight_map) {
    write_bytes(index, nlohmann::json{{"weight_map", weight_map}}.dump());
    return import_message();
  };
  EXPECT_EQ(message(map), "done");
  nlohmann::json wrong = map;
  wrong.erase("lm_head.weight");
  wrong["model.extra.weight"] = "model.safetensors";
  const std::string text = message(wrong);
  EXPECT_TRUE(has(text, "lm_head.weight of model.safetensors is not in the index")) << text;
  EXPECT_TRUE(has(text, "model.extra.weight is not in model.safetensors")) << text;
  wrong = map;
  wrong["lm_head.weight"] = "../out/model.safetensors";
  EXPECT_TRUE(has(message(wrong), "is not a file of the folder"));
  wrong["lm_head.weight"] = "other.safetensors";
  EXPECT_TRUE(has(message(wrong), "other.safetensors"));
  write_bytes(index, "{\"weight_map\": 3}");
  EXPECT_TRUE(has(import_message(), "is not an index of tensors"));
  // A document of opening brackets alone takes far more memory than the text.
  write_bytes(index, "{\"weight_map\": " + std::string(200'000, '['));
  EXPECT_TRUE(has(import_message(), "index.json: lists and objects are nested deeper than 64 levels"));
}

TEST_F(Faults, NothingIsWrittenOver) {
  fs::create_directories(folder_ / "taken");
  const CheckpointReader reader(folder_ / "a");
  const ExportPlan plan = plan_export(reader.manifest(), model_, {architecture_, {}, 1'000'000, 64, {}});
  EXPECT_TRUE(has(refusal([&] { export_checkpoint(reader, plan, folder_ / "taken"); }), "exists already"));
  EXPECT_TRUE(has(refusal([&] { import_folder(folder_ / "out", folder_ / "taken", {}); }), "exists already"));
  EXPECT_TRUE(fs::is_empty(folder_ / "taken"));
  fs::create_directories(folder_ / "busy.partial");
  EXPECT_TRUE(has(refusal([&] { export_checkpoint(reader, plan, folder_ / "busy"); }), "busy.partial exists already"));
  EXPECT_TRUE(fs::exists(folder_ / "busy.partial"));
}

TEST_F(Faults, ACheckpointOfAnotherModelIsRefusedWithAllDifferences) {
  ModelConfig other = model_;
  other.vocab_size = 41;
  other.blocks = parse_layers("e d").blocks;
  const CheckpointReader reader(folder_ / "a");
  const std::string text = refusal([&] {
    plan_export(reader.manifest(), other, {architecture_, {}, 1'000'000, 64, {}});
  });
  for (const char* part : {"embedding.weight has 37 x 24 elements in the checkpoint, 41 x 24 in the model",
                           "blocks.2.router.weight of the checkpoint is no parameter of the model"}) {
    EXPECT_TRUE(has(text, part)) << text;
  }
  other.blocks = parse_layers("e d e e").blocks;
  EXPECT_TRUE(has(refusal([&] {
                    plan_export(reader.manifest(), other, {architecture_, {}, 1'000'000, 64, {}});
                  }),
                  "the checkpoint lacks blocks.3.attention.q_proj.weight"));
  EXPECT_TRUE(has(refusal([&] {
                    plan_export(reader.manifest(), model_, {Architecture::llama, {}, 1'000'000, 64, {}});
                  }),
                  "the model cannot be written as llama: block 0 has experts"));
}

TEST_F(Faults, ADamagedCheckpointLeavesNoFolder) {
  const fs::path file = folder_ / "a" / "rank-1.safetensors";
  std::string bytes = read_bytes(file);
  const CheckpointReader reader(folder_ / "a");
  bytes[static_cast<std::size_t>(reader.manifest().find("head.weight")->boxes.back().offset)] ^= 1;
  write_bytes(file, bytes);
  const ExportPlan plan = plan_export(reader.manifest(), model_, {architecture_, {}, 2'000, 64, {}});
  EXPECT_TRUE(has(refusal([&] { export_checkpoint(reader, plan, folder_ / "new"); }), "head.weight"));
  EXPECT_FALSE(fs::exists(folder_ / "new") || fs::exists(folder_ / "new.partial"));
}

TEST_F(Faults, ATokenizerIsCopiedAndItsIdsAreTheModels) {
  const fs::path tokenizer = folder_ / "tokenizer";
  fs::create_directories(tokenizer);
  const CheckpointReader reader(folder_ / "a");
  const ExportOptions options{architecture_, {}, 1'000'000, 64, tokenizer};
  EXPECT_TRUE(has(refusal([&] { plan_export(reader.manifest(), model_, options); }), "has no file of a tokenizer"));
  write_bytes(tokenizer / "tokenizer.json",
              R"({"model": {"vocab": {"a": 0, "b": 35}}, "added_tokens": [{"id": 36, "content": "<end>"}]})");
  write_bytes(tokenizer / "tokenizer_config.json",
              R"({"eos_token": {"content": "<end>"}, "bos_token": "b", "pad_token": null})");
  write_bytes(tokenizer / "README.md", "not of a tokenizer");
  const ExportPlan plan = plan_export(reader.manifest(), model_, options);
  export_checkpoint(reader, plan, folder_ / "new");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_bytes(folder_ / "new" / name), read_bytes(tokenizer / name));
  }
  EXPECT_FALSE(fs::exists(folder_ / "new" / "README.md"));
  const auto config = nlohmann::json::parse(read_bytes(folder_ / "new" / "config.json"));
  EXPECT_EQ(config["bos_token_id"], 35);
  EXPECT_EQ(config["eos_token_id"], 36);
  EXPECT_TRUE(config["pad_token_id"].is_null());
  write_bytes(tokenizer / "tokenizer.json", R"({"model": {"vocab": {"a": 37}}})");
  EXPECT_TRUE(has(refusal([&] { plan_export(reader.manifest(), model_, options); }),
                  "the tokenizer has ids up to 37, but the model a vocabulary of 37"));
  write_bytes(tokenizer / "tokenizer.json", R"({"model": {"vocab": {"a": "b"}}})");
  EXPECT_TRUE(has(refusal([&] { plan_export(reader.manifest(), model_, options); }), "is not written as one"));
  write_bytes(tokenizer / "tokenizer.json",
              R"({"model": {"vocab": )" + std::string(200'000, '[') + std::string(200'000, ']') + "}}");
  EXPECT_TRUE(has(refusal([&] { plan_export(reader.manifest(), model_, options); }), "nested deeper than 64 levels"));
}

// A tokenizer.json alone gets settings, by which transformers reads it and no other, and by which texts end.
TEST_F(Faults, ATokenizerWithoutSettingsGetsThem) {
  const fs::path tokenizer = folder_ / "tokenizer";
  fs::create_directories(tokenizer);
  write_bytes(tokenizer / "tokenizer.json",
              R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "added_tokens": )"
              R"([{"id": 3, "content": "<|endoftext|>", "special": true, "single_word": false, "lstrip": false, )"
              R"("rstrip": false, "normalized": false}]})");
  const CheckpointReader reader(folder_ / "a");
  const ExportPlan plan = plan_export(reader.manifest(), model_, {architecture_, {}, 1'000'000, 64, tokenizer});
  export_checkpoint(reader, plan, folder_ / "new");
  const auto settings = nlohmann::json::parse(read_bytes(folder_ / "new" / "tokenizer_config.json"));
  EXPECT_EQ(settings["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(settings["eos_token"], "<|endoftext|>");
  EXPECT_EQ(nlohmann::json::parse(read_bytes(folder_ / "new" / "config.json"))["eos_token_id"], 3);
  // One that Weft does not compute is copied, and its end is not known.
  write_bytes(tokenizer / "tokenizer.json", R"({"model": {"type": "WordLevel", "vocab": {"a": 0}}})");
  const ExportPlan other = plan_export(reader.manifest(), model_, {architecture_, {}, 1'000'000, 64, tokenizer});
  EXPECT_FALSE(nlohmann::json::parse(other.tokenizer_settings).contains("eos_token"));
}

// transformers does not read ranks; the same tokenizer goes along as a tokenizer.json.
TEST_F(Faults, RanksOfTiktokenBecomeATokenizerJson) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (unsigned byte = 0; byte < 256; ++byte) {
    ranks += {digits[byte >> 2], digits[(byte & 3) << 4], '=', '='};
    ranks += fmt::format(" {}\n", byte);
  }
  write_bytes(folder_ / "a" / "gpt2.tiktoken", ranks + "YWI= 256\n");
  const CheckpointReader reader(folder_ / "a");
  ExportOptions options{architecture_, {}, 1'000'000, 64, {}, folder_ / "a"};
  EXPECT_FALSE(plan_export(reader.manifest(), model_, options).has_tokenizer());
  options.ranks = kept_tokenizer((folder_ / "a").string(), "elsewhere/gpt2.tiktoken").value();
  // The model of the fixture has 37 tokens.
  EXPECT_TRUE(has(refusal([&] { plan_export(reader.manifest(), model_, options); }), "has ids up to 256"));
  model_.vocab_size = 257;
  write_checkpoint(folder_ / "c", model_, random_weights(model_, 3));
  const CheckpointReader large(folder_ / "c");
  const ExportPlan plan = plan_export(large.manifest(), model_, options);
  EXPECT_TRUE(plan.has_tokenizer());
  export_checkpoint(large, plan, folder_ / "new");
  EXPECT_EQ(open_tokenizer((folder_ / "new").string())->encode("ab b"), (std::vector<std::int32_t>{256, 32, 98}));
  EXPECT_EQ(nlohmann::json::parse(read_bytes(folder_ / "new" / "tokenizer_config.json"))["tokenizer_class"],
            "PreTrainedTokenizerFast");
}

// What stood in a folder beside its weights stands in what is exported of it, in between in the checkpoint, under its
// checksums.
TEST_F(Faults, WhatGoesWithAModelTravelsThroughACheckpoint) {
  const fs::path folder = folder_ / "out";
  auto config = nlohmann::json::parse(read_bytes(folder / "config.json"));
  config["max_position_embeddings"] = 40960;
  config["bos_token_id"] = 30;
  config["eos_token_id"] = {31, 32};
  write_bytes(folder / "config.json", config.dump());
  write_bytes(folder / "generation_config.json", R"({"temperature": 0.6, "eos_token_id": [31, 32]})");
  write_bytes(folder / "tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 33}}})");
  write_bytes(folder / "tokenizer_config.json", R"({"eos_token": "a", "pad_token": "b"})");
  write_bytes(folder / "README.md", "not of the model");
  import_folder(folder, folder_ / "b", {});
  EXPECT_FALSE(fs::exists(folder_ / "b" / "README.md"));
  const CheckpointReader reader(folder_ / "b");
  EXPECT_TRUE(reader.find_faults().empty());
  const ModelSection section = read_model_section(folder_ / "b" / "config.toml");
  EXPECT_EQ(section.sequence_length, 40960);
  EXPECT_EQ(section.tokenizer, (fs::weakly_canonical(folder_ / "b") / "tokenizer.json").string());
  const ExportPlan plan = plan_export(reader.manifest(), model_, {architecture_, {}, 1'000'000, 0, {}, folder_ / "b"});
  export_checkpoint(reader, plan, folder_ / "new");
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(read_bytes(folder_ / "new" / name), read_bytes(folder / name)) << name;
  }
  const auto exported = nlohmann::json::parse(read_bytes(folder_ / "new" / "config.json"));
  for (const char* key : {"max_position_embeddings", "bos_token_id", "eos_token_id"}) {
    EXPECT_EQ(exported[key], config[key]) << key;
  }
  EXPECT_EQ(exported["pad_token_id"], 33);  // of the tokenizer: config.json says nothing
  // Damage to them is damage to the checkpoint.
  write_bytes(folder_ / "b" / "tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 34}}})");
  EXPECT_FALSE(CheckpointReader(folder_ / "b").find_faults().empty());
}

TEST(HuggingFaceShards, AreDealtInOrderUpToASize) {
  const std::vector<NamedBytes> tensors = {{"a", 4}, {"b", 6}, {"c", 1}, {"d", 30}, {"e", 2}};
  using Files = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(deal_to_files(tensors, 10), (Files{{0, 1}, {2}, {3}, {4}}));
  EXPECT_EQ(deal_to_files(tensors, 43), (Files{{0, 1, 2, 3, 4}}));
  EXPECT_EQ(shard_name("model", 0, 3), "model-00001-of-00003.safetensors");
}

TEST(HuggingFaceShards, SizesAreReadWithTheirUnits) {
  EXPECT_EQ(parse_file_size("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_file_size("500 MB"), 500'000'000);
  EXPECT_EQ(parse_file_size("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(parse_file_size("4096"), 4096);
  EXPECT_EQ(parse_file_size("1.5GB"), 1'500'000'000);
  EXPECT_EQ(parse_file_size("5TB"), 5'000'000'000'000);
  for (const char* wrong : {"", "GB", "0", "-1GB", "0.5", "nan", "inf", "99999999999999GB", "99999999999999999999"}) {
    EXPECT_TRUE(has(refusal([&] { parse_file_size(wrong); }), "is not a size of a file")) << wrong;
  }
}

}  // namespace
}  // namespace weft::huggingface_test
