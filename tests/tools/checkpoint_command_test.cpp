// weft checkpoint, on checkpoints whose bytes are known.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/tools/program.h"
#include "tests/trainer/checkpoint_sample.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class CheckpointCommand : public ProgramTest {
 protected:
  Manifest save(const std::string& name, const std::vector<SampleTensor>& tensors, int files = 2, int first = 0) const {
    std::filesystem::create_directories(folder_ / name);
    return write_sample(folder_ / name, tensors, files, first);
  }
  void damage(const std::string& file, std::int64_t offset) const {
    std::string text = read_file(folder_ / file);
    text.at(static_cast<std::size_t>(offset)) ^= 1;
    write_file(folder_ / file, text);
  }
  const std::vector<SampleTensor> tensors_ = sample_tensors(31);
};

TEST_F(CheckpointCommand, InspectAsJson) {
  const Manifest manifest = save("run/checkpoints/step-00000040", tensors_);
  const auto result = weft("checkpoint inspect run --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json json = Json::parse(result.output);
  EXPECT_EQ(json["path"], "run/checkpoints/step-00000040");
  EXPECT_EQ(json["step"], 40);
  EXPECT_EQ(json["samples"], 640);
  EXPECT_EQ(json["tokens"], 81'920);
  EXPECT_EQ(json["loss_scale"], 1024.5);
  EXPECT_EQ(json["mesh"]["world"], 4);
  EXPECT_EQ(json["mesh"]["pipeline"], 2);
  EXPECT_EQ(json["data"], Json::parse(R"({"data.seed": "1234"})"));
  EXPECT_FALSE(json.contains("tensors"));
  ASSERT_EQ(json["files"].size(), 3u);
  std::int64_t boxes = 0;
  for (std::size_t f = 0; f < 3; ++f) {
    EXPECT_EQ(json["files"][f]["name"], manifest.files[f].name);
    EXPECT_EQ(json["files"][f]["bytes"], manifest.files[f].bytes);
    boxes += json["files"][f]["boxes"].get<std::int64_t>();
  }
  EXPECT_EQ(boxes, 3 + 2 + 1 + 3 + 2 + 3 + 1);
  // By hand from the shapes of checkpoint_sample.h.
  EXPECT_EQ(json["totals"], Json::parse(R"([
    {"state": "", "dtype": "bfloat16", "tensors": 1, "elements": 20, "bytes": 40},
    {"state": "", "dtype": "float16", "tensors": 1, "elements": 10, "bytes": 20},
    {"state": "", "dtype": "float32", "tensors": 1, "elements": 27, "bytes": 108},
    {"state": "", "dtype": "float64", "tensors": 1, "elements": 3, "bytes": 24},
    {"state": "", "dtype": "int32", "tensors": 1, "elements": 4, "bytes": 16},
    {"state": "exp_avg", "dtype": "float32", "tensors": 1, "elements": 27, "bytes": 108},
    {"state": "exp_avg_sq", "dtype": "bfloat16", "tensors": 1, "elements": 27, "bytes": 54}])"));
}

// A selection bias has no state and is no parameter.
TEST_F(CheckpointCommand, InspectTellsHelpersFromParameters) {
  std::vector<SampleTensor> tensors = tensors_;
  const auto place = std::ranges::find(tensors, "embedding.weight", &SampleTensor::name);
  tensors.insert(place,
                 {"blocks.1.router.selection_bias", "", 1, DType::float32, {0, 8}, std::vector<std::uint8_t>(32)});
  save("saved", tensors);
  const Json totals = Json::parse(weft("checkpoint inspect saved --json").output)["totals"];
  const Json helpers =
      Json::parse(R"({"state": "", "dtype": "float32", "tensors": 1, "elements": 8, "bytes": 32, "helpers": true})");
  EXPECT_EQ(std::ranges::count(totals, helpers), 1) << totals;
  EXPECT_EQ(totals.size(), 8u);
  const std::string text = weft("checkpoint inspect saved").output;
  EXPECT_NE(text.find("\n(helpers)      float32 "), std::string::npos) << text;
}

TEST_F(CheckpointCommand, InspectListsTensors) {
  save("saved", tensors_);
  const Json all = Json::parse(weft("checkpoint inspect saved --tensors --json").output);
  ASSERT_EQ(all["tensors"].size(), tensors_.size());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Json& tensor = all["tensors"][t];
    EXPECT_EQ(tensor["name"], tensors_[t].name);
    EXPECT_EQ(tensor["state"], tensors_[t].state);
    EXPECT_EQ(tensor["shape"], (Json{tensors_[t].rows(), tensors_[t].columns}));
    EXPECT_EQ(tensor["dtype"], name_of(tensors_[t].dtype));
    EXPECT_EQ(tensor["bytes"], tensors_[t].bytes.size());
    EXPECT_EQ(tensor["boxes"], tensors_[t].cuts.size() - 1);
  }
  const auto matching = [&](const std::string& glob) {
    return Json::parse(weft("checkpoint inspect saved --json --filter '" + glob + "'").output)["tensors"].size();
  };
  EXPECT_EQ(matching("blocks.*.weight"), 4u);
  EXPECT_EQ(matching("blocks.[0]*"), 3u);
  EXPECT_EQ(matching("head.weight"), 1u);
  EXPECT_EQ(matching("head"), 0u);
  const auto text = weft("checkpoint inspect saved --filter 'embedding*'");
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"step     40, 39 of them taken", "tokens   81920", "= 4 ranks", "data.seed = 1234",
                           "exp_avg_sq", "part-00001.safetensors", "embedding.weight", "4 x 5"}) {
    EXPECT_NE(text.output.find(part), std::string::npos) << part << "\n" << text.output;
  }
  EXPECT_EQ(text.output.find("router.loads"), std::string::npos);
}

TEST_F(CheckpointCommand, VerifyListsEverything) {
  const Manifest manifest = save("run/checkpoints/step-00000040", tensors_, 3);
  const std::string path = "run/checkpoints/step-00000040/";
  auto result = weft("checkpoint verify run");
  EXPECT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_EQ(result.output, "run/checkpoints/step-00000040: every byte is as it was written\n");
  EXPECT_EQ(result.messages, "");
  EXPECT_EQ(weft("checkpoint verify run --json").output,
            "{\"path\":\"run/checkpoints/step-00000040\",\"sound\":true,\"faults\":[]}\n");
  damage(path + "part-00000.safetensors", manifest.files[0].bytes - 1);
  damage(path + "part-00000.safetensors", manifest.files[0].prefix_bytes);
  std::filesystem::remove(folder_ / (path + "part-00001.safetensors"));
  damage(path + "part-00002.safetensors", 20);
  result = weft("checkpoint verify run --json");
  EXPECT_EQ(result.exit_code, 3) << result.messages;
  const Json json = Json::parse(result.output);
  EXPECT_EQ(json["sound"], false);
  ASSERT_EQ(json["faults"].size(), 4u) << json;
  EXPECT_NE(json["faults"][2].get<std::string>().find("part-00001.safetensors: No such file"), std::string::npos);
  EXPECT_NE(json["faults"][3].get<std::string>().find("part-00002.safetensors: its first"), std::string::npos);
  result = weft("checkpoint verify run");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(std::ranges::count(result.output, '\n'), 4);
  damage(path + manifest_name, 100);
  result = weft("checkpoint verify run");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.output.find("manifest.json: its checksum is not that of its text"), std::string::npos);
  // What cannot be opened is a failure of the others, too.
  for (const char* command : {"checkpoint inspect run", "checkpoint diff run run"}) {
    EXPECT_EQ(weft(command).exit_code, 3) << command;
  }
}

TEST_F(CheckpointCommand, PathsThatAreNoCheckpoint) {
  std::filesystem::create_directories(folder_ / "empty");
  save("saved", tensors_);
  for (const char* command : {"checkpoint verify empty", "checkpoint verify nowhere", "checkpoint inspect empty",
                              "checkpoint diff saved empty", "checkpoint diff empty saved", "checkpoint diff saved",
                              "checkpoint", "checkpoint verify", "checkpoint verify saved --unknown"}) {
    const auto result = weft(command);
    EXPECT_EQ(result.exit_code, 2) << command << result.messages;
    EXPECT_EQ(result.output, "") << command;
    EXPECT_NE(result.messages, "") << command;
  }
  EXPECT_NE(weft("checkpoint verify empty").messages.find("empty is no checkpoint"), std::string::npos);
  EXPECT_NE(weft("checkpoint diff --help").output.find("0 equal, 1 differing"), std::string::npos);
}

// JSON is UTF-8 though a folder's name is not.
TEST_F(CheckpointCommand, JsonOfAnyName) {
  save("caf\xe9", tensors_);
  const std::string name = "caf\xef\xbf\xbd";
  for (const char* command : {"inspect", "verify"}) {
    const auto result = weft(std::string("checkpoint ") + command + " caf\xe9 --json");
    EXPECT_EQ(Json::parse(result.output)["path"], name) << result.messages;
  }
  EXPECT_EQ(Json::parse(weft("checkpoint diff caf\xe9 caf\xe9 --json").output)["b"], name);
}

// The same rows in other boxes and files.
TEST_F(CheckpointCommand, DiffDoesNotSeeTheLayout) {
  save("a", tensors_, 2);
  auto others = tensors_;
  others[0].cuts = {0, 2, 3, 9};
  others[1].cuts = {0, 9};
  others[4].cuts = {0, 1, 2, 3, 4};
  save("b", others, 5, 3);
  const auto result = weft("checkpoint diff a b");
  EXPECT_EQ(result.exit_code, 0) << result.output << result.messages;
  EXPECT_EQ(result.output, "A  a\nB  b\n\n7 tensors equal, 0 not\n");
  const Json json = Json::parse(weft("checkpoint diff a b --json").output);
  EXPECT_EQ(json["equal"], true);
  EXPECT_EQ(json["equal_tensors"], 7);
}

template <typename T>
void set(SampleTensor& tensor, std::size_t i, T value) {
  std::memcpy(tensor.bytes.data() + i * sizeof(T), &value, sizeof(T));
}

TEST_F(CheckpointCommand, DiffNamesWhatDiffers) {
  auto a = tensors_, b = tensors_;
  // Of 27 float32, two: 1.5 -> 1.25 and -4 -> 4. Absolute at most 8, relative at most 8 / 4.
  for (std::size_t i = 0; i < 27; ++i) set(a[0], i, static_cast<float>(i)), set(b[0], i, static_cast<float>(i));
  set(a[0], 3, 1.5f), set(b[0], 3, 1.25f);
  set(a[0], 26, -4.0f), set(b[0], 26, 4.0f);
  // Two zeros are one value in different bytes; a number and none are infinitely far apart.
  for (std::size_t i = 0; i < 3; ++i) set(a[5], i, 1.0), set(b[5], i, 1.0);
  set(a[5], 1, 0.0), set(b[5], 1, -0.0);
  for (std::size_t i = 0; i < 10; ++i) set(a[3], i, float16(1.0f)), set(b[3], i, float16(1.0f));
  set(b[3], 9, float16(NAN));
  // bfloat16 in float32: of equal values the dtype alone differs.
  b[4].dtype = DType::float32;
  b[4].bytes.resize(80);
  for (std::size_t i = 0; i < 20; ++i) {
    set(a[4], i, bfloat16(static_cast<float>(i)));
    set(b[4], i, static_cast<float>(i));
  }
  // Another shape, and one each that the other has not.
  b[6].cuts = {0, 2};
  b[6].columns = 2;
  a[2].state = "only_a";
  b[2].state = "only_b";
  Manifest manifest = save("a", a);
  manifest.progress.step = 41;
  manifest.progress.loss_trend->variance = 0.25;
  manifest.progress.norm_trend.reset();
  manifest.model["model.hidden_size"] = "4";
  manifest.data.clear();
  write_file(folder_ / "a" / manifest_name, to_json(manifest));
  save("b", b);
  const auto result = weft("checkpoint diff a b --json");
  EXPECT_EQ(result.exit_code, 1) << result.messages;
  const Json json = Json::parse(result.output);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["progress"], Json::parse(R"([
    {"name": "step", "a": "41", "b": "40"},
    {"name": "loss_trend", "a": "38 of mean 2.5, variance 0.25", "b": "38 of mean 2.5, variance 0.125"},
    {"name": "norm_trend", "a": "none", "b": "37 of mean 1.5"}])"));
  EXPECT_EQ(json["keys"], Json::parse(R"([{"name": "model.hidden_size", "a": "4", "b": "3"},
                                          {"name": "data.seed", "a": null, "b": "1234"}])"));
  EXPECT_EQ(json["equal_tensors"], 1);  // exp_avg
  ASSERT_EQ(json["tensors"].size(), 7u) << json;
  const auto expect = [&](std::size_t i, const SampleTensor& tensor, const char* rest) {
    Json found = json["tensors"][i];
    EXPECT_EQ(found["name"], tensor.name);
    EXPECT_EQ(found["state"], tensor.state);
    found.erase("name");
    found.erase("state");
    EXPECT_EQ(found, Json::parse(rest)) << tensor.name;
  };
  expect(0, a[0], R"({"a": {"shape": [9, 3], "dtype": "float32"}, "b": {"shape": [9, 3], "dtype": "float32"},
                      "elements": 2, "largest_absolute": 8.0, "largest_relative": 2.0})");
  expect(1, a[2], R"({"a": {"shape": [9, 3], "dtype": "bfloat16"}, "b": null})");
  expect(2, b[2], R"({"a": null, "b": {"shape": [9, 3], "dtype": "bfloat16"}})");
  expect(3, a[3], R"({"a": {"shape": [5, 2], "dtype": "float16"}, "b": {"shape": [5, 2], "dtype": "float16"},
                      "elements": 1, "largest_absolute": null, "largest_relative": null})");
  expect(4, a[4], R"({"a": {"shape": [4, 5], "dtype": "bfloat16"}, "b": {"shape": [4, 5], "dtype": "float32"},
                      "elements": 0, "largest_absolute": 0.0, "largest_relative": 0.0})");
  expect(5, a[5], R"({"a": {"shape": [3, 1], "dtype": "float64"}, "b": {"shape": [3, 1], "dtype": "float64"},
                      "elements": 0, "largest_absolute": 0.0, "largest_relative": 0.0})");
  expect(6, a[6], R"({"a": {"shape": [4, 1], "dtype": "int32"}, "b": {"shape": [2, 2], "dtype": "int32"}})");
  const auto text = weft("checkpoint diff a b");
  EXPECT_EQ(text.exit_code, 1);
  for (const char* part : {"model.hidden_size", "1 tensors equal, 7 not", "only in A", "only in B", "4 x 1 | 2 x 2",
                           "bfloat16 | float32", "2 of 27", "inf"}) {
    EXPECT_NE(text.output.find(part), std::string::npos) << part << "\n" << text.output;
  }
  damage("b/part-00000.safetensors", std::ssize(read_file(folder_ / "b/part-00000.safetensors")) - 1);
  const auto damaged = weft("checkpoint diff a b");
  EXPECT_EQ(damaged.exit_code, 3);
  EXPECT_NE(damaged.messages.find("are not those that were written"), std::string::npos) << damaged.messages;
}

// Tensors of several pieces, cut at other places than the pieces end; one element of the last row differs.
TEST_F(CheckpointCommand, DiffOfTensorsThatAreLargerThanAPiece) {
  SampleTensor large{"large", "", 1000, DType::float32, {0, 900, 3001}, {}};  // 12 MB
  large.bytes.assign(3001 * 4000, 0);
  save("a", {large});
  large.cuts = {0, 1, 2500, 3001};
  set(large, 3001 * 1000 - 1, 0.5f);
  save("b", {large}, 3);
  const auto result = weft("checkpoint diff a b --json");
  EXPECT_EQ(result.exit_code, 1) << result.messages;
  const Json tensor = Json::parse(result.output)["tensors"].at(0);
  EXPECT_EQ(tensor["elements"], 1);
  EXPECT_EQ(tensor["largest_absolute"], 0.5);
  EXPECT_EQ(tensor["largest_relative"], 1.0);
}

}  // namespace
}  // namespace weft
