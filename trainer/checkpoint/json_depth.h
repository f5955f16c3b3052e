// The nesting depth of lists and objects in a JSON text, checked before parsing. A text of opening brackets alone makes
// a document that takes far more memory than the text, and the library copies, compares and writes documents by
// recursion.
#pragma once

#include <string_view>

namespace weft {

// Limit for files of other programs; none of them is nested so deeply.
inline constexpr int deepest_json = 64;

bool nested_deeper_than(std::string_view text, int most);

}  // namespace weft
