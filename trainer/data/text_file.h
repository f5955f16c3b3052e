// Files of text, one byte a token: the files that may be read this way.
#pragma once

#include <string>

#include "parallel/runtime/input_file.h"

namespace weft {

// Throws Error (request), `"name": why`, for files that InputFile refuses and for files whose beginning is not plain
// text: an index of Megatron, JSON lines, compressed files, tables, and any file with a NUL byte near its beginning.
InputFile open_text(const std::string& name);

}  // namespace weft
