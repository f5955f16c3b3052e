// The tokens of a Jinja template, as an environment with trim_blocks and lstrip_blocks cuts it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::jinja {

enum class TokenKind { data, open_output, close_output, open_tag, close_tag, name, text, integer, symbol, end };

struct Token {
  TokenKind kind;
  int line;               // from 1 on
  std::string text = {};  // of texts without their quotes and escapes
  int level = -1;         // of an operator between two operands, but comparisons: from 0 on, the weakest
};

// `name` stands in messages. Throws Error (request), `name:line: why`.
std::vector<Token> tokens_of(std::string_view source, const std::string& name);

// White space as Python's str.strip sees it.
std::string_view stripped_left(std::string_view text);
std::string_view stripped_right(std::string_view text);
std::string_view up_to_space(std::string_view text);

}  // namespace weft::jinja
