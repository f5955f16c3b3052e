// The rules of the floors, as functions of a file's path and text. A folder may include some others, and nothing keeps
// state for the whole process.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// `path` is relative to the root of the sources. One sentence for each fault, with the line; empty when all is well.
std::vector<std::string> include_faults(std::string_view path, std::string_view text);

// Variables that outlive a call and can change: file-scope ones and statics, in functions and classes alike. Reads code
// as clang-format lays it out (what stands in column 0 is at namespace scope), not C++ at large.
std::vector<std::string> state_faults(std::string_view path, std::string_view text);

// Places that catch an Error without looking at it: a failure must not become an answer (refusal_of() in
// parallel/runtime/error.h).
std::vector<std::string> swallowed_errors(std::string_view path, std::string_view text);

// Types that a file defines where other files can see or define them too, with their namespaces ("weft::cuda::Event").
// Anonymous namespaces are left out. Two files with one name break the rule of one definition, and the linker says
// nothing.
std::vector<std::string> defined_types(std::string_view text);

// Functions of more than most_function_lines lines, from their declaration to their last brace.
std::vector<std::string> long_functions(std::string_view path, std::string_view text);
inline constexpr std::size_t most_function_lines = 79;

// The text with comments and the contents of literals blanked, line breaks kept.
std::string code_of(std::string_view text);

// Code outside the folders that may hold it.
std::vector<std::string> place_faults(std::string_view path);

}  // namespace weft
