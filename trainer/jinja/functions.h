// The filters, tests and methods of a template, with the meaning that Jinja and Python give them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/jinja/value.h"

namespace weft::jinja {

using Members = std::map<std::string, Value, std::less<>>;

// The arguments of a call.
struct Arguments {
  std::vector<Value> given = {};
  Members named = {};
  std::size_t places = 0, names = 0;  // read so far

  // The argument at `place`, or of that name; undefined if it is missing. Functions read theirs in their order.
  Value operator()(std::string_view name);
  // Throws Error (request) for arguments that `function` has not read.
  void finish(std::string_view function) const;
};

enum class FunctionKind { filter, test, method };
// `of | name(arguments)`, `of is name(arguments)` or `of.name(arguments)`. Throws Error (request) for names and
// arguments that Weft does not know, and for values of other types.
Value applied(FunctionKind kind, const std::string& name, const Value& of, Arguments arguments, Budget& budget);

}  // namespace weft::jinja
