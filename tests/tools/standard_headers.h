// The headers of the standard library, and of fmt, that a file needs for the names of theirs in its code. A compiler
// says nothing where one of its own headers happens to bring another, and the next compiler refuses the file.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// What a file includes, as it names it: "vector", or "parallel/mesh/mesh.h".
struct Includes {
  std::vector<std::string> standard;  // and libraries'
  std::vector<std::string> own;       // in quotes
};
Includes includes_of(std::string_view text);

// "std::sort wants <algorithm>" for each name whose header is not in `included`, nor brought by one that is, as the
// standard has it. Names that several headers must bring (std::size, std::erase_if, std::ranges) are not asked for.
std::vector<std::string> missing_headers(std::string_view text, const std::set<std::string>& included);

}  // namespace weft
