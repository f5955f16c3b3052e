// The distribution of a folder's tensors to files: in order, each file up to a size, with an index from tensors to
// files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct NamedBytes {
  std::string name;
  std::int64_t bytes = 0;
};

// Indices into `tensors`, by file. A tensor larger than the largest file has a file of its own.
std::vector<std::vector<std::size_t>> deal_to_files(std::span<const NamedBytes> tensors, std::int64_t largest_file);
// "model-00001-of-00003.safetensors" for the first of three files called "model".
std::string shard_name(std::string_view stem, std::size_t file, std::size_t files);
inline constexpr const char* index_name = "model.safetensors.index.json";
// The content of the index.
std::string index_json(std::span<const NamedBytes> tensors, std::span<const std::vector<std::size_t>> files);

// "5GB", "500MB" in powers of ten, "4GiB", "512MiB" in powers of two, or bytes. Throws Error (request).
std::int64_t parse_file_size(const std::string& text);

}  // namespace weft
