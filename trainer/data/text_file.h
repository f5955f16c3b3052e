// Files of text, one byte a token: the files that may be read this way, and the models whose tokens are bytes.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/runtime/input_file.h"
#include "trainer/config/config.h"

namespace weft {

inline constexpr std::int64_t byte_tokens = 256;

// Throws Error (request) for a model whose tokens are not bytes: its losses and its generated text would mean nothing.
// train, eval, generate and check call this. Plans do not, since they read no token; benchmarks do not, since seconds
// and bytes do not depend on the meaning of tokens. A vocabulary larger than the tokenizer's passes if
// data.padded_vocab says that the rest is padding.
void require_byte_vocabulary(const Config& config);

// Throws Error (request), `"name": why`, for files that InputFile refuses and for files whose beginning is not plain
// text: Megatron's datasets, JSON lines, compressed files, tables, and any file with a NUL byte near its beginning.
InputFile open_text(const std::string& name);

}  // namespace weft
