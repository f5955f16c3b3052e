// The files of a tokenizer that go with a model. They are copied as they are; what is read of them is which ids there
// are and which of them begin and end a text.
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

// Throws Error (request) where the folder has none of the files, or one that cannot be read.
TokenizerFiles find_tokenizer_files(const std::filesystem::path& folder);
// Throws Error (request) where there are ids that a model of this size has no row for.
void expect_vocabulary(const TokenizerFiles& tokenizer, std::int64_t vocab_size);

}  // namespace weft
