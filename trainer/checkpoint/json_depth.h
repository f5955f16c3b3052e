// How deep lists and objects stand in each other in a JSON text, before anything is made of it. A document takes far
// more memory than its text when it is nothing but opening brackets, and the library copies, compares and writes
// documents by recursion.
#pragma once

#include <string_view>

namespace weft {

// More levels than any file of others has.
inline constexpr int deepest_json = 64;

bool nested_deeper_than(std::string_view text, int most);

}  // namespace weft
