// Where faults of a JSON text are: parsers of documents do not keep the places of values. Every place is a number of
// bytes before it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// A line that is nested deeper would end a parser's stack.
inline constexpr int deepest_line = 256;

// The first byte that no JSON text has there, for nlohmann::json::parse_error::byte. For a text that ends too early,
// its size.
std::size_t place_of_fault(std::string_view json, std::size_t parse_error_byte);
// The first number that no double holds; 0 if there is none.
std::size_t place_of_large_number(std::string_view json);
// The value at a path of keys of objects and of places in lists, counted from 0. Where the path ends early, the last
// value on it. The last of equal keys counts. Requires JSON.
std::size_t place_of_value(std::string_view json, const std::vector<std::string>& path);

// The column of a place, as editors count: characters of UTF-8, from 1.
std::size_t column_of(std::string_view line, std::size_t place);

}  // namespace weft
