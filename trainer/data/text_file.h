// Files of text, one byte a token: the files that may be read this way.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/runtime/input_file.h"

namespace weft {

// Stands before the first character of some texts in UTF-8, and is no part of them.
inline constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

enum class JsonLines { refused, expected };
// The format of a file by its beginning, as open_text refuses it. Nothing for plain text, and for JSON lines where they
// are expected. `beginning` reads the first `most` bytes, or all there are.
std::optional<std::string> find_format(const std::function<std::string_view(std::size_t most)>& beginning,
                                       JsonLines json_lines);

// Throws Error (request), `"name": why`, for files that InputFile refuses and for files with a beginning that is not
// plain text. These are an index of Megatron, JSON lines, compressed files, tables, and any file with a NUL byte near
// its beginning.
InputFile open_text(const std::string& name);

}  // namespace weft
