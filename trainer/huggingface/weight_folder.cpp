#include "trainer/huggingface/model_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "parallel/runtime/element_type.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/tokenizer/json_fields.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using SortedJson = nlohmann::json;

constexpr const char* single_name = "model.safetensors";

// The file of each tensor, according to the index.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const SortedJson json = parse_outside_json(read_whole_file(path.string()), path.string());
  std::map<std::string, std::string> files;
  try {
    for (const auto& [tensor, name] : json.at("weight_map").items()) files[tensor] = name.get<std::string>();
  } catch (const SortedJson::exception& error) {
    fail_request("{} is not an index of tensors: {}", path.string(), error.what());
  }
  for (const auto& [tensor, name] : files) {
    if (name.empty() || fs::path(name).filename() != name || name == "." || name == "..") {
      fail_request("{}: \"{}\", where {} should be, is not a file of the folder", path.string(), name, tensor);
    }
  }
  return files;
}

}  // namespace

WeightFolder::WeightFolder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / index_name, ignored)) {
    if (!fs::exists(folder / single_name, ignored)) {
      fail_request("{} has neither {} nor {}", folder.string(), index_name, single_name);
    }
    read_file(folder / single_name);
    return;
  }
  const auto index = read_index(folder / index_name);
  std::set<std::string> names;
  for (const auto& [tensor, name] : index) names.insert(name);
  for (const std::string& name : names) read_file(folder / name);
  std::vector<std::string> faults;
  for (const auto& [tensor, name] : index) {
    const auto at = entries_.find(tensor);
    if (at == entries_.end() || at->second.file != name) faults.push_back(fmt::format("{} is not in {}", tensor, name));
  }
  for (const auto& [tensor, entry] : entries_) {
    if (!index.contains(tensor)) faults.push_back(fmt::format("{} of {} is not in the index", tensor, entry.file));
  }
  if (!faults.empty()) fail_request("{}: {}", (folder / index_name).string(), fmt::join(faults, "\n  and "));
}

void WeightFolder::read_file(const fs::path& path) {
  const SafetensorsHeader header = read_safetensors(files_.emplace_back(path.string()));
  for (const SafetensorsTensor& tensor : header.tensors) {
    const Entry entry{tensor, files_.size() - 1, header.data_begin + tensor.begin, path.filename().string()};
    if (!entries_.try_emplace(tensor.name, entry).second) {
      fail_request("{} stands in {} and in another file of its folder", tensor.name, path.string());
    }
  }
}

const SafetensorsTensor* WeightFolder::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second.tensor;
}

void WeightFolder::read(const std::string& name, std::int64_t offset, std::span<std::uint8_t> to) const {
  const Entry& entry = entries_.at(name);
  require(offset >= 0 && std::ssize(to) <= entry.tensor.bytes() - offset, "bytes are read from inside a tensor");
  if (!to.empty()) files_[entry.place].read(entry.offset + offset, to);
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::vector<std::string> WeightFolder::find_faults(const std::vector<FolderTensor>& expected) const {
  std::vector<std::string> faults;
  std::set<std::string_view> known;
  for (const FolderTensor& tensor : expected) {
    known.insert(tensor.name);
    const SafetensorsTensor* there = find(tensor.name);
    if (there == nullptr) {
      faults.push_back(fmt::format("{} {} is missing", tensor.name, tensor.shape));
      continue;
    }
    if (there->shape != tensor.shape) {
      faults.push_back(fmt::format("{} has the shape {}, not {}", tensor.name, there->shape, tensor.shape));
    }
    const auto dtype = dtype_of_safetensors(there->dtype);
    if (!dtype || !is_compute_type(*dtype)) {
      faults.push_back(fmt::format("{} is in {}; Weft reads F32, BF16 and F16", tensor.name, there->dtype));
    }
  }
  for (const auto& [name, entry] : entries_) {
    // Old folders have tables of the rotary embedding, which are never read.
    if (!known.contains(name) && !name.ends_with(".rotary_emb.inv_freq")) {
      faults.push_back(fmt::format("{} {} is no tensor of this model", name, entry.tensor.shape));
    }
  }
  return faults;
}

std::vector<std::vector<std::size_t>> deal_to_files(std::span<const NamedBytes> tensors, std::int64_t largest_file) {
  std::vector<std::vector<std::size_t>> files;
  std::int64_t filled = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (files.empty() || filled + tensors[t].bytes > largest_file) {
      files.emplace_back();
      filled = 0;
    }
    files.back().push_back(t);
    filled += tensors[t].bytes;
  }
  return files;
}

std::string shard_name(std::string_view stem, std::size_t file, std::size_t files) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, file + 1, files);
}

std::string index_json(std::span<const NamedBytes> tensors, std::span<const std::vector<std::size_t>> files) {
  std::int64_t total = 0;
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (const std::size_t t : files[file]) {
      map[tensors[t].name] = shard_name("model", file, files.size());
      total += tensors[t].bytes;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  return index.dump(2) + "\n";
}

std::int64_t parse_file_size(const std::string& text) {
  if (const auto bytes = parse_bytes(text)) return *bytes;
  fail_request("\"{}\" is not a size of a file, such as 5GB, 500MB or 4GiB", text);
}

}  // namespace weft
