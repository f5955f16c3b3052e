// The companion files of a model's weights: tokenizer, config.json and generation_config.json. They are copied
// unchanged. Only the tokenizer's ids, and those that begin and end a text, are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace weft {

struct TokenizerFiles {
  std::vector<std::filesystem::path> files;
  std::optional<std::int64_t> largest_id;  // in tokenizer.json, if there is one
  std::optional<std::int64_t> bos_token_id, eos_token_id, pad_token_id;
};

// No files if the folder has none. Throws Error (request) for a file that cannot be read.
TokenizerFiles find_tokenizer_files(const std::filesystem::path& folder);
// An import keeps these files in its checkpoint under the same names, for a later export.
std::vector<std::filesystem::path> find_companions(const std::filesystem::path& folder);
inline constexpr const char* model_json_name = "config.json";
inline constexpr const char* generation_json_name = "generation_config.json";
// Throws Error (request) if a tokenizer id has no row in a model of this size.
void expect_vocabulary(const TokenizerFiles& tokenizer, std::int64_t vocab_size);

}  // namespace weft
