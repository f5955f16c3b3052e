// A chat template: a program in Jinja, run as transformers runs it. That is an ImmutableSandboxedEnvironment with
// trim_blocks and lstrip_blocks, loop controls, raise_exception, strftime_now, tojson without escapes for HTML, and {%
// generation %}. The rest of Jinja is refused by name, with the line of the template. Syntax is refused before anything
// is rendered; filters, tests, methods and functions where they are reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/jinja/tokens.h"
#include "trainer/jinja/value.h"

namespace weft::jinja {

struct Span {
  std::size_t begin = 0, end = 0;  // bytes
  bool operator==(const Span&) const = default;
};
struct Rendering {
  std::string text = {};
  std::vector<Span> generated = {};  // by {% generation %}, in the order of their ends
};

struct Program {
  std::vector<Token> tokens;
  std::vector<std::size_t> ends;  // of the body at a token: the token behind it
  bool has_generation = false;
};

// Immutable after construction.
class Template {
 public:
  // `name` stands in messages. Throws Error (request), `name:line: why`.
  Template(std::string_view source, std::string name);

  // `now`: for strftime_now, in local time. `budget`: value.h. Throws Error (request), `name:line: why`.
  Rendering render(const std::map<std::string, Value>& variables, std::time_t now,
                   std::int64_t budget = std::int64_t{1} << 28) const;
  bool has_generation() const { return program_.has_generation; }

 private:
  std::string name_;
  Program program_;
};

}  // namespace weft::jinja
