#include "trainer/huggingface/shards.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"

namespace weft {

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
  struct Unit {
    std::string_view name;
    std::int64_t bytes;
  };
  constexpr Unit units[] = {{"", 1},
                            {"B", 1},
                            {"KB", 1'000},
                            {"MB", 1'000'000},
                            {"GB", 1'000'000'000},
                            {"KiB", std::int64_t{1} << 10},
                            {"MiB", std::int64_t{1} << 20},
                            {"GiB", std::int64_t{1} << 30}};
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  for (const Unit& unit : units) {
    std::int64_t bytes = 0;
    if (error == std::errc() && count > 0 && rest == unit.name && !__builtin_mul_overflow(count, unit.bytes, &bytes)) {
      return bytes;
    }
  }
  fail_request("\"{}\" is not a size of a file, such as 5GB, 500MB or 4GiB", text);
}

}  // namespace weft
