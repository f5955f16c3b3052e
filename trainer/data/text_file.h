// Files of text, one byte a token: which files may be read so, and for which models a byte is a token.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/runtime/input_file.h"
#include "trainer/config/config.h"

namespace weft {

inline constexpr std::int64_t byte_tokens = 256;

// Throws Error (request) for a model whose tokens are not bytes: its losses, and the text it writes, would mean
// nothing. train, eval, generate and check ask. Plans do not, because they read no token, nor do benchmarks, because
// seconds and bytes do not depend on what a token means. A vocabulary larger than the tokenizer's passes where
// data.padded_vocab says that the rest is padding.
void require_byte_vocabulary(const Config& config);

// Throws Error (request), `"name": why`, for what InputFile refuses and for files that begin like no plain text:
// Megatron's datasets, JSON lines, compressed files, tables, and whatever has a NUL byte near its beginning.
InputFile open_text(const std::string& name);

}  // namespace weft
