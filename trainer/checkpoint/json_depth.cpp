#include "trainer/checkpoint/json_depth.h"

#include <cstddef>

namespace weft {

bool nested_deeper_than(std::string_view text, int most) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\') ++i;
    if (quoted) continue;
    if (text[i] == '[' || text[i] == '{') ++depth;
    if (text[i] == ']' || text[i] == '}') --depth;
    if (depth > most) return true;
  }
  return false;
}

}  // namespace weft
