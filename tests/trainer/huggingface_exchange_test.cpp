// Checkpoints to folders of Hugging Face and back: nothing is lost, and the second way out writes the bytes of the
// first. That the bytes mean what transformers takes them for is the matter of huggingface_logits_test.cpp.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/trainer/huggingface_fixture.h"
#include "tests/trainer/huggingface_reference.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/huggingface/import.h"
#include "trainer/huggingface/model_section.h"
#include "trainer/huggingface/weight_files.h"

namespace weft::huggingface_test {
namespace {

namespace fs = std::filesystem;

struct ExchangeCase {
  Architecture architecture;
  bool tied;
};

std::vector<ExchangeCase> all_cases() {
  std::vector<ExchangeCase> cases;
  for (const Architecture architecture : architectures) {
    for (const bool tied : {false, true}) cases.push_back({architecture, tied});
  }
  return cases;
}

class Exchange : public HuggingFace, public testing::WithParamInterface<ExchangeCase> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("weft-exchange-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  Architecture architecture_ = GetParam().architecture;
  ModelConfig model_ = tiny_model(architecture_, GetParam().tied);
  NamedValues weights_ = random_weights(model_, 17);
};

TEST_P(Exchange, BringsBackEveryWeightAndWritesTheSameBytesAgain) {
  // The whole model in one file, and files of a few tensors.
  for (const std::int64_t largest_file : {std::int64_t{5'000'000'000}, std::int64_t{6'000}}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      const std::string run = fmt::format("{}-{}", largest_file, name_of(dtype));
      write_checkpoint(folder_ / (run + "a"), model_, weights_, dtype, DType::float32);
      export_to(run + "a", run + "out", architecture_, model_, {}, largest_file);
      const ImportResult result = import_folder(folder_ / (run + "out"), folder_ / (run + "b"), {}, largest_file);
      EXPECT_EQ(result.folder.architecture, architecture_);
      EXPECT_EQ(result.folder.model, model_);
      EXPECT_EQ(result.files > 2, largest_file == 6'000) << result.files;
      EXPECT_EQ(read_checkpoint(folder_ / (run + "b")), read_checkpoint(folder_ / (run + "a"))) << run;
      const CheckpointReader reader(folder_ / (run + "b"));
      EXPECT_TRUE(reader.find_faults().empty());
      EXPECT_EQ(reader.manifest().progress, Progress());
      EXPECT_EQ(reader.manifest().find("blocks.0.attention.o_proj.weight")->dtype, dtype);
      // Files by themselves say what the manifest says: shapes as Weft keeps them.
      const InputFile first((folder_ / (run + "b") / reader.manifest().files[0].name).string());
      for (const SafetensorsTensor& tensor : read_safetensors(first).tensors) {
        const SavedTensor& saved = *reader.manifest().find(tensor.name);
        EXPECT_EQ(tensor.shape.front(), saved.rows) << tensor.name;
        EXPECT_EQ(tensor.shape.size() == 1 ? 1 : tensor.shape.back(), saved.columns) << tensor.name;
      }
      EXPECT_EQ(read_model_section(folder_ / (run + "b") / "config.toml").model, model_);
      export_to(run + "b", run + "again", architecture_, model_, {}, largest_file);
      EXPECT_TRUE(same_files(folder_ / (run + "out"), folder_ / (run + "again")));
    }
  }
}

// What the folder has is counted from its definition: 3 tensors of a model, 4 of attention, 2 norms a block, ...
TEST_P(Exchange, WritesTheTensorsOfTheArchitectureAndNoOther) {
  write_checkpoint(folder_ / "a", model_, weights_);
  export_to("a", "out", architecture_, model_);
  const ArchitectureTraits& traits = traits_of(architecture_);
  const auto experts = static_cast<std::size_t>(model_.moe.num_experts);
  const std::int64_t d = model_.head_dim;
  const std::size_t routing = 1 + (traits.sigmoid_router ? 1 : 0),
                    shared = (traits.shared.empty() ? 0 : 3) + (traits.gated_shared_expert ? 1 : 0);
  // A predictor has three norms and a projection of its own, and copies of two tensors.
  std::size_t expected = (GetParam().tied ? 2u : 3u) + static_cast<std::size_t>(model_.mtp_depth) * 6;
  for (const ModelBlock& block : model_.blocks) {
    if (traits.pairs) break;
    expected += 6u + (model_.qk_norm ? 2u : 0u) + (block == BlockKind::dense ? 3 : routing + shared + experts * 3);
  }
  // Two norms a layer, 4 tensors of attention, 8 of a state space, 3 of experts and 2 of the shared MLP.
  if (traits.pairs) expected += 2 * 2 + 4 + 8 + 2 * (3 + 2);
  const auto tensors = read_tensors(folder_ / "out");
  EXPECT_EQ(tensors.size(), expected);
  const std::string layer = "model.layers.0.";
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(tensors.at("model.embed_tokens.weight").shape, (Shape{37, 24}));
  EXPECT_EQ(tensors.at("model.norm.weight").shape, (Shape{24}));
  EXPECT_EQ(tensors.at(layer + "self_attn.q_proj.weight").shape, (Shape{4 * d, 24}));
  EXPECT_EQ(tensors.at(layer + "self_attn.v_proj.weight").shape, (Shape{2 * d, 24}));
  EXPECT_EQ(tensors.at(layer + "self_attn.o_proj.weight").shape, (Shape{24, 4 * d}));
  if (model_.qk_norm) {
    EXPECT_EQ(tensors.at(layer + "self_attn.k_norm.weight").shape, (Shape{8}));
  }
  if (architecture_ == Architecture::mixtral) {
    EXPECT_EQ(tensors.at(layer + "block_sparse_moe.gate.weight").shape, (Shape{5, 24}));
    EXPECT_EQ(tensors.at(layer + "block_sparse_moe.experts.4.w2.weight").shape, (Shape{24, 14}));
    EXPECT_EQ(tensors.at(layer + "block_sparse_moe.experts.4.w3.weight").shape, (Shape{14, 24}));
  } else if (architecture_ == Architecture::glm4_moe) {
    EXPECT_EQ(tensors.at("model.layers.3.eh_proj.weight").shape, (Shape{24, 48}));
    EXPECT_EQ(tensors.at("model.layers.3.mlp.gate.e_score_correction_bias").shape, (Shape{6}));
    EXPECT_EQ(tensors.at("model.layers.1.mlp.shared_experts.down_proj.weight").shape, (Shape{24, 42}));
    EXPECT_EQ(tensors.at("model.layers.3.embed_tokens.weight").values, tensors.at("model.embed_tokens.weight").values);
  } else if (traits.pairs) {
    EXPECT_EQ(tensors.at(layer + "block_sparse_moe.input_linear.weight").shape, (Shape{5, 28, 24}));
    EXPECT_EQ(tensors.at(layer + "block_sparse_moe.output_linear.weight").shape, (Shape{5, 24, 14}));
    EXPECT_EQ(tensors.at(layer + "shared_mlp.input_linear.weight").shape, (Shape{20, 24}));
    EXPECT_EQ(tensors.at("model.layers.1.mamba.in_proj.weight").shape, (Shape{112, 24}));
    EXPECT_EQ(tensors.at("model.layers.1.mamba.conv1d.weight").shape, (Shape{58, 1, 3}));
    EXPECT_EQ(tensors.at("model.layers.1.mamba.A_log").shape, (Shape{6}));
    EXPECT_EQ(tensors.at("model.layers.1.mamba.out_proj.weight").shape, (Shape{24, 48}));
  } else if (traits.moe_blocks) {
    EXPECT_EQ(tensors.at(layer + "mlp.gate.weight").shape, (Shape{5, 24}));
    EXPECT_EQ(tensors.at(layer + "mlp.experts.4.down_proj.weight").shape, (Shape{24, 14}));
    EXPECT_EQ(tensors.at("model.layers.1.mlp.down_proj.weight").shape, (Shape{24, 28}));
  } else {
    EXPECT_EQ(tensors.at(layer + "mlp.down_proj.weight").shape, (Shape{24, 28}));
    EXPECT_EQ(tensors.at(layer + "mlp.gate_proj.weight").shape, (Shape{28, 24}));
  }
}

// What transformers saves leaves predictors out, though config.json goes on telling of them.
TEST_P(Exchange, ReadsAFolderThatHasLostItsPredictors) {
  if (model_.mtp_depth == 0) return;
  write_checkpoint(folder_ / "a", model_, weights_);
  export_to("a", "out", architecture_, model_);
  auto tensors = read_tensors(folder_ / "out");
  std::erase_if(tensors, [](const auto& entry) { return entry.first.starts_with("model.layers.3."); });
  fs::create_directories(folder_ / "saved");
  fs::copy_file(folder_ / "out" / "config.json", folder_ / "saved" / "config.json");
  write_tensors(folder_ / "saved" / "model.safetensors", tensors);
  const ImportResult result = import_folder(folder_ / "saved", folder_ / "b", {});
  EXPECT_TRUE(result.folder.leaves_predictors);
  ModelConfig expected = model_;
  expected.blocks.pop_back();
  expected.mtp_depth = 0;
  EXPECT_EQ(result.folder.model, expected);
  // Some of its tensors alone are a fault.
  tensors["model.layers.3.enorm.weight"] = tensors.at("model.norm.weight");
  write_tensors(folder_ / "saved" / "model.safetensors", tensors);
  EXPECT_TRUE(
      has(refusal([&] { import_folder(folder_ / "saved", folder_ / "c", {}); }), "model.layers.3.eh_proj.weight"));
}

TEST_P(Exchange, RefusesACopyThatDiffers) {
  if (model_.mtp_depth == 0) return;
  write_checkpoint(folder_ / "a", model_, weights_);
  export_to("a", "out", architecture_, model_);
  auto tensors = read_tensors(folder_ / "out");
  tensors.at("model.layers.3.shared_head.head.weight").values[5] += 1.0;
  fs::create_directories(folder_ / "wrong");
  fs::copy_file(folder_ / "out" / "config.json", folder_ / "wrong" / "config.json");
  write_tensors(folder_ / "wrong" / "model.safetensors", tensors);
  EXPECT_TRUE(has(refusal([&] { import_folder(folder_ / "wrong", folder_ / "b", {}); }),
                  "model.layers.3.shared_head.head.weight and "));
}

// The architecture always has biases; a model without any is written with zeros, and has some when it is read.
TEST_P(Exchange, WritesBiasesOfZeroForAModelWithoutAny) {
  if (!traits_of(architecture_).sigmoid_router) return;
  model_.moe.selection_bias = false;
  write_checkpoint(folder_ / "a", model_, random_weights(model_, 17));
  export_to("a", "out", architecture_, model_);
  const auto tensors = read_tensors(folder_ / "out");
  for (const int block : {1, 2, 3}) {
    const FolderMatrix& bias = tensors.at(fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", block));
    EXPECT_EQ(bias.values, std::vector<double>(6, 0.0));
    EXPECT_EQ(bias.dtype, "F32");
  }
  const ImportResult result = import_folder(folder_ / "out", folder_ / "b", {});
  model_.moe.selection_bias = true;
  EXPECT_EQ(result.folder.model, model_);
  EXPECT_EQ(read_checkpoint(folder_ / "b").at("blocks.3.router.selection_bias"), Values(6, 0.0));
}

// Experts as transformers 5 has them in memory, joined here by the reference's reading of the separate ones.
TEST_P(Exchange, ReadsFusedExperts) {
  const ArchitectureTraits& traits = traits_of(architecture_);
  if (!traits.moe_blocks || traits.pairs) return;
  write_checkpoint(folder_ / "a", model_, weights_);
  export_to("a", "out", architecture_, model_);
  auto tensors = read_tensors(folder_ / "out");
  const bool mixtral = architecture_ == Architecture::mixtral;
  const std::string experts = mixtral ? "block_sparse_moe.experts." : "mlp.experts.";
  for (std::size_t block = 0; block < model_.blocks.size(); ++block) {
    if (model_.blocks[block] == BlockKind::dense) continue;
    const std::string layer = "model.layers." + std::to_string(block) + ".";
    const std::int64_t count = model_.moe.num_experts;
    FolderMatrix gate_up{{count, 2 * 14, 24}, "F32", {}}, down{{count, 24, 14}, "F32", {}};
    for (std::int64_t expert = 0; expert < count; ++expert) {
      const auto move = [&](const char* which, FolderMatrix& to) {
        const std::string name = layer + experts + std::to_string(expert) + "." + which + ".weight";
        to.values.insert(to.values.end(), tensors.at(name).values.begin(), tensors.at(name).values.end());
        tensors.erase(name);
      };
      move(mixtral ? "w1" : "gate_proj", gate_up);
      move(mixtral ? "w3" : "up_proj", gate_up);
      move(mixtral ? "w2" : "down_proj", down);
    }
    tensors[layer + "mlp.experts.gate_up_proj"] = gate_up;
    tensors[layer + "mlp.experts.down_proj"] = down;
    auto gate = tensors.extract(layer + (mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight"));
    gate.key() = layer + "mlp.gate.weight";
    tensors.insert(std::move(gate));
  }
  fs::create_directories(folder_ / "fused");
  fs::copy_file(folder_ / "out" / "config.json", folder_ / "fused" / "config.json");
  write_tensors(folder_ / "fused" / "model.safetensors", tensors);
  import_folder(folder_ / "fused", folder_ / "b", {});
  EXPECT_EQ(read_checkpoint(folder_ / "b"), weights_);
}

// Rounding to bfloat16 keeps these weights. float16 keeps those above its smallest normal number, and rounds the rest
// by at most half of its smallest step, 2^-25.
TEST_P(Exchange, RoundsToTheDtypeThatIsAskedFor) {
  write_checkpoint(folder_ / "a", model_, weights_);
  for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
    const std::string name(name_of(dtype));
    export_to("a", name, architecture_, model_, dtype);
    import_folder(folder_ / name, folder_ / (name + "b"), {});
    const NamedValues back = read_checkpoint(folder_ / (name + "b"));
    for (const auto& [parameter, values] : weights_) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool rounded = dtype == DType::float16 && std::abs(values[i]) < 0x1p-14;
        ASSERT_NEAR(back.at(parameter)[i], values[i], rounded ? 0x1p-25 : 0.0) << parameter;
      }
    }
    const auto config = nlohmann::json::parse(read_bytes(folder_ / name / "config.json"));
    EXPECT_EQ(config["dtype"], name);
  }
}

struct Checked {
  int exit_code = -1;
  std::string output;
};

Checked check_with_python(const fs::path& folder) {
  const std::string command =
      "python3 '" WEFT_SOURCE_DIR "/tests/trainer/check_huggingface_folder.py' '" + folder.string() + "' 2>&1";
  Checked checked;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  for (std::size_t count; (count = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) checked.output.append(buffer, count);
  checked.exit_code = WEXITSTATUS(pclose(pipe));
  return checked;
}

bool has_python() {
  return std::system("python3 -c 'import json, struct, sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1") == 0;
}

TEST_P(Exchange, KeepsTheRulesOfTheFormatByAnotherReading) {
  if (!has_python()) GTEST_SKIP() << "the format is checked by a script for python3 (3.8 or newer), which is not here";
  write_checkpoint(folder_ / "a", model_, weights_, DType::bfloat16, DType::float32);
  for (const std::int64_t largest_file : {std::int64_t{5'000'000'000}, std::int64_t{3'000}}) {
    const std::string out = "out" + std::to_string(largest_file);
    export_to("a", out, architecture_, model_, {}, largest_file);
    const Checked checked = check_with_python(folder_ / out);
    EXPECT_EQ(checked.exit_code, 0) << checked.output;
  }
}

INSTANTIATE_TEST_SUITE_P(, Exchange, testing::ValuesIn(all_cases()), [](const auto& the_case) {
  return std::string(traits_of(the_case.param.architecture).model_type) + (the_case.param.tied ? "_tied" : "");
});

// The script is no rubber stamp.
TEST_F(HuggingFace, TheOtherReadingFindsWhatIsBroken) {
  if (!has_python()) GTEST_SKIP() << "the format is checked by a script for python3 (3.8 or newer), which is not here";
  const ModelConfig model = tiny_model(Architecture::llama, false);
  write_checkpoint(folder_ / "a", model, random_weights(model, 17));
  export_to("a", "out", Architecture::llama, model);
  const fs::path file = folder_ / "out" / "model-00001-of-00001.safetensors",
                 index = folder_ / "out" / "model.safetensors.index.json";
  const std::string bytes = read_bytes(file), listed = read_bytes(index);
  const auto broken = [&](const std::string& what) {
    const Checked checked = check_with_python(folder_ / "out");
    EXPECT_EQ(checked.exit_code, 1) << what;
    EXPECT_TRUE(has(checked.output, what)) << checked.output;
    write_bytes(file, bytes);
    write_bytes(index, listed);
  };
  write_bytes(file, bytes + "x");
  broken("bytes behind the last tensor");
  std::string wrong = bytes;
  wrong.replace(wrong.find("[37,24]"), 7, "[24,38]");
  write_bytes(file, wrong);
  broken("bytes, F32 [24, 38]");
  wrong = listed;
  wrong.replace(wrong.find("model.norm.weight"), 17, "model.norm.waight");
  write_bytes(index, wrong);
  broken("weight_map is not what stands");
}

// Strips: a matrix of many, turned, against its definition.
TEST(MatrixStream, TurnsAMatrixOfManyStrips) {
  constexpr std::int64_t rows = 700, columns = 1031;
  std::vector<float> values(rows * columns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * 4);
  for (const bool turned : {false, true}) {
    std::vector<std::uint8_t> out;
    std::size_t largest = 0;
    stream_matrix({bytes, rows, columns, DType::float32}, turned, DType::float32, "m", [&](auto strip) {
      largest = std::max(largest, strip.size());
      out.insert(out.end(), strip.begin(), strip.end());
    });
    ASSERT_EQ(out.size(), bytes.size());
    EXPECT_LE(largest, std::size_t{1} << 20);
    const std::int64_t out_columns = turned ? rows : columns;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / out_columns, column = static_cast<std::int64_t>(i) % out_columns;
      float value;
      std::copy_n(out.data() + 4 * i, 4, reinterpret_cast<std::uint8_t*>(&value));
      ASSERT_EQ(value, static_cast<float>(turned ? column * columns + row : row * columns + column));
    }
  }
}

TEST(MatrixStream, RefusesWhatADtypeCannotHold) {
  const std::vector<float> values = {1.0f, 70000.0f};
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(values.data()), 8);
  const auto stream_as = [&](DType dtype) {
    return refusal([&] { stream_matrix({bytes, 2, 1, DType::float32}, false, dtype, "head.weight", [](auto) {}); });
  };
  EXPECT_TRUE(has(stream_as(DType::float16), "head.weight has the value 70000, which float16 cannot hold"));
  EXPECT_EQ(stream_as(DType::bfloat16), "done");
}

}  // namespace
}  // namespace weft::huggingface_test
