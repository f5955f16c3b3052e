// The files that go with a model beside its weights: of a tokenizer, config.json and generation_config.json. They are
// copied as they are; of a tokenizer is read which ids there are and which of them begin and end a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace weft {

struct TokenizerFiles {
  std::vector<std::filesystem::path> files;
  std::optional<std::int64_t> largest_id;  // of tokenizer.json, where there is one
  std::optional<std::int64_t> bos_token_id, eos_token_id, pad_token_id;
};

// No files where the folder has none. Throws Error (request) for one that cannot be read.
TokenizerFiles find_tokenizer_files(const std::filesystem::path& folder);
// An import keeps these in its checkpoint under the same names, for an export to find.
std::vector<std::filesystem::path> find_companions(const std::filesystem::path& folder);
inline constexpr const char* model_json_name = "config.json";
inline constexpr const char* generation_json_name = "generation_config.json";
// Throws Error (request) where there are ids that a model of this size has no row for.
void expect_vocabulary(const TokenizerFiles& tokenizer, std::int64_t vocab_size);

}  // namespace weft
