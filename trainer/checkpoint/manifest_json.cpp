#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view format_name = "weft checkpoint";
// The last key, and the text after its value.
constexpr std::string_view checksum_key = ",\n\"checksum\": \"", end_of_text = "\"\n}\n";

std::string hash_of(const std::map<std::string, std::string>& values) {
  RunningChecksum sum;
  const auto add = [&](const std::string& text) {
    sum.add({reinterpret_cast<const std::uint8_t*>(text.c_str()), text.size() + 1});
  };
  for (const auto& [key, value] : values) {
    add(key);
    add(value);
  }
  return checksum_text(sum.value());
}

Json json_of(const SavedTensor& tensor) {
  Json json = {{"name", tensor.name}};
  if (!tensor.state.empty()) json["state"] = tensor.state;
  json["shape"] = {tensor.rows, tensor.columns};
  json["dtype"] = safetensors_dtype(tensor.dtype);
  json["boxes"] = Json::array();
  for (const SavedBox& box : tensor.boxes) {
    json["boxes"].push_back({{"rows", {box.row_begin, box.row_begin + box.rows}},
                             {"file", box.file},
                             {"offset", box.offset},
                             {"bytes", box.bytes},
                             {"xxh64", checksum_text(box.checksum)}});
  }
  return json;
}

// The JSON text of a value, cut to a readable length.
std::string shown(const Json& value) {
  constexpr std::size_t readable = 100;
  const std::string text = value.dump(-1, ' ', true);
  return text.size() > readable ? text.substr(0, readable) + " ..." : text;
}

// Reads values of a document and checks their types.
class Reading {
 public:
  Reading(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail_request("{} is not an object", where_);
  }
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail_request("{} has no {}", where_, key);
    return *found;
  }
  bool has(const char* key) const { return json_.contains(key); }
  std::int64_t integer(const char* key) const { return integer_of(at(key), fmt::format("{} of {}", key, where_)); }
  double number(const char* key) const { return at(key, &Json::is_number, "a number").get<double>(); }
  std::string text(const char* key) const { return at(key, &Json::is_string, "a text").get<std::string>(); }
  const Json& array(const char* key) const { return at(key, &Json::is_array, "a list"); }
  std::uint64_t checksum(const char* key) const {
    const std::string value = text(key);
    const auto result = parsed_number<std::uint64_t>(value, 16);
    if (!result || checksum_text(*result) != value) wrong(key, "a checksum");
    return *result;
  }
  std::pair<std::int64_t, std::int64_t> pair(const char* key) const {
    const Json& list = array(key);
    if (list.size() != 2) wrong(key, "a pair");
    return {integer_of(list[0], key), integer_of(list[1], key)};
  }
  std::map<std::string, std::string> texts(const char* key) const {
    std::map<std::string, std::string> result;
    for (const auto& [name, value] : at(key, &Json::is_object, "an object").items()) {
      if (!value.is_string()) wrong(key, "an object of texts");
      result[name] = value.get<std::string>();
    }
    return result;
  }

 private:
  const Json& at(const char* key, bool (Json::*is_kind)() const noexcept, const char* kind) const {
    const Json& value = at(key);
    if (!(value.*is_kind)()) wrong(key, kind);
    return value;
  }
  static std::int64_t integer_of(const Json& value, const std::string& what) {
    const bool signed_fits = value.is_number_integer() && !value.is_number_unsigned();
    const bool unsigned_fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
    if (!signed_fits && !unsigned_fits) fail_request("{} is {}, not an integer", what, shown(value));
    return value.get<std::int64_t>();
  }
  [[noreturn]] void wrong(const char* key, const char* kind) const {
    fail_request("{} of {} is {}, not {}", key, where_, shown(at(key)), kind);
  }

  const Json& json_;
  std::string where_;
};

SavedTensor tensor_of(const Json& json) {
  const Reading entry(json, "a tensor");
  SavedTensor tensor;
  tensor.name = entry.text("name");
  if (entry.has("state")) tensor.state = entry.text("state");
  std::tie(tensor.rows, tensor.columns) = entry.pair("shape");
  const auto dtype = dtype_of_safetensors(entry.text("dtype"));
  if (!dtype) fail_request("tensor {} has the dtype {}, which Weft does not save", tensor.name, entry.text("dtype"));
  tensor.dtype = *dtype;
  for (const Json& part : entry.array("boxes")) {
    const Reading box(part, fmt::format("a box of {}", tensor.name));
    const auto [begin, end] = box.pair("rows");
    if (begin < 0 || end < begin) fail_request("a box of {} has rows [{}, {}]", tensor.name, begin, end);
    const std::int64_t file = box.integer("file");
    if (file < 0 || file > INT32_MAX) fail_request("a box of {} is in file {}", tensor.name, file);
    tensor.boxes.push_back({begin, end - begin, static_cast<int>(file), box.integer("offset"), box.integer("bytes"),
                            box.checksum("xxh64")});
  }
  return tensor;
}

// Parses the document after checking the checksum at its end.
Json verified(std::string_view text) {
  const std::size_t at = text.rfind(checksum_key);
  if (at == std::string_view::npos) fail_request("it does not end with a checksum");
  const std::string sum = checksum_text(checksum(text.substr(0, at)));
  const std::string_view end = text.substr(at + checksum_key.size());
  if (end != fmt::format("{}{}", sum, end_of_text)) {
    fail_request("its checksum is not that of its text: the file was changed or damaged");
  }
  constexpr int deepest = 6;  // the rows of a box of a tensor
  if (nested_deeper_than(text, deepest))
    fail_request("its lists and objects are nested deeper than those of a manifest");
  // nlohmann would stop parsing at a byte of 0.
  if (text.find('\0') != std::string_view::npos) fail_request("it is no JSON: it has a byte of 0");
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail_request("it is no JSON: {}", error.what());
  }
}

Manifest manifest_of(const Json& json) {
  const Reading top(json, "the manifest");
  // Another program's checkpoint is not damaged: nothing may take its place.
  const auto refuse = [](const std::string& why) { throw Error(ErrorKind::unreadable, why); };
  if (top.text("format") != format_name) {
    refuse(fmt::format("its format is \"{}\", not \"{}\"", top.text("format"), format_name));
  }
  Manifest manifest;
  const std::int64_t version = top.integer("version");
  if (version != Manifest::current_version) {
    refuse(fmt::format("it is of version {}; this Weft reads version {}", version, Manifest::current_version));
  }
  const Reading progress(top.at("progress"), "progress");
  manifest.progress = {progress.integer("step"), progress.integer("samples"), progress.integer("tokens"),
                       progress.integer("good_steps"), progress.integer("good_in_a_row")};
  if (progress.has("loss_scale")) manifest.progress.loss_scale = progress.number("loss_scale");
  if (progress.has("loss_trend")) {
    const Reading trend(progress.at("loss_trend"), "loss_trend");
    manifest.progress.loss_trend = {trend.integer("losses"), trend.number("mean"), trend.number("variance")};
  }
  if (progress.has("norm_trend")) {
    const Reading trend(progress.at("norm_trend"), "norm_trend");
    manifest.progress.norm_trend = {trend.integer("norms"), trend.number("mean")};
  }
  const Reading mesh(top.at("mesh"), "mesh");
  for (const NamedDegree& degree : named_degrees) {
    const std::int64_t value = mesh.integer(degree.name);
    if (value < 1 || value > INT32_MAX) fail_request("{} of mesh is {}", degree.name, value);
    manifest.mesh.*degree.degree = static_cast<int>(value);
  }
  manifest.model = top.texts("model");
  manifest.data = top.texts("data");
  if (top.has("rules")) manifest.rules = top.texts("rules");
  if (top.has("hashes")) {
    const Reading hashes(top.at("hashes"), "hashes");
    manifest.hashes = {hashes.text("configuration"), hashes.text("program"), hashes.text("layout")};
  }
  for (const Json& part : top.array("files")) {
    const Reading file(part, "a file");
    manifest.files.push_back(
        {file.text("name"), file.integer("bytes"), file.integer("prefix_bytes"), file.checksum("xxh64")});
  }
  for (const Json& part : top.array("tensors")) manifest.tensors.push_back(tensor_of(part));
  return manifest;
}

}  // namespace

std::string part_json(const Manifest& manifest) {
  const Progress& progress = manifest.progress;
  Json json = {{"format", format_name},
               {"version", manifest.version},
               {"progress",
                {{"step", progress.step},
                 {"samples", progress.samples},
                 {"tokens", progress.tokens},
                 {"good_steps", progress.good_steps},
                 {"good_in_a_row", progress.good_in_a_row}}}};
  if (progress.loss_scale) json["progress"]["loss_scale"] = *progress.loss_scale;
  if (const auto& trend = progress.loss_trend) {
    json["progress"]["loss_trend"] = {{"losses", trend->losses}, {"mean", trend->mean}, {"variance", trend->variance}};
  }
  if (const auto& trend = progress.norm_trend) {
    json["progress"]["norm_trend"] = {{"norms", trend->norms}, {"mean", trend->mean}};
  }
  for (const NamedDegree& degree : named_degrees) json["mesh"][degree.name] = manifest.mesh.*degree.degree;
  json["model"] = manifest.model;
  json["model_hash"] = hash_of(manifest.model);
  json["data"] = manifest.data;
  json["data_hash"] = hash_of(manifest.data);
  if (!manifest.rules.empty()) json["rules"] = manifest.rules;
  if (manifest.hashes) json["hashes"] = manifest.hashes->named();
  json["files"] = Json::array();
  for (const SavedFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name},
                             {"bytes", file.bytes},
                             {"prefix_bytes", file.prefix_bytes},
                             {"xxh64", checksum_text(file.checksum)}});
  }
  // One line for each tensor, for people and for diff.
  std::string text = json.dump(1);
  text.resize(text.rfind('\n'));
  text += ",\n\"tensors\": [";
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    text += fmt::format("{}\n{}", t > 0 ? "," : "", json_of(manifest.tensors[t]).dump());
  }
  text += "\n]";
  const std::uint64_t sum = checksum(text);
  return fmt::format("{}{}{}{}", text, checksum_key, checksum_text(sum), end_of_text);
}

std::string to_json(const Manifest& manifest) {
  const auto faults = find_manifest_faults(manifest);
  if (!faults.empty()) fail("the manifest would not be sound: {}", fmt::join(faults, "; "));
  try {
    return part_json(manifest);
  } catch (const Json::exception& error) {
    fail("the manifest cannot be written: {}", error.what());
  }
}

Manifest parse_part(std::string_view text, const std::string& name) {
  try {
    return manifest_of(verified(text));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", name, error.what()));
  }
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  Manifest manifest = parse_part(text, name);
  const auto faults = find_manifest_faults(manifest);
  if (!faults.empty()) fail_request("{}: {}", name, fmt::join(faults, "; "));
  return manifest;
}

}  // namespace weft
