// Words beside the output of a command: warnings, progress, the reason of an exit code.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace weft {

// Writes to standard error, with no line end of its own. Write errors are ignored, because standard error may be closed
// or full, and nothing that is said there decides whether the work goes on.
template <typename... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  std::fputs(fmt::format(text, std::forward<Args>(args)...).c_str(), stderr);
}

}  // namespace weft
