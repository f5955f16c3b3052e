#include "trainer/data/json_places.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "parallel/runtime/outside_text.h"
#include "trainer/data/text_file.h"

namespace weft {
namespace {

constexpr std::string_view json_blanks = " \t\r\n", json_marks = "{}[],:";

struct JsonToken {
  std::size_t begin = 0, end = 0;  // equal behind the last
};

// The token from byte `from` on: a mark, a text with its quotes, or a run of other bytes.
JsonToken token_at(std::string_view json, std::size_t from) {
  if (from == 0 && json.starts_with(byte_order_mark)) from = byte_order_mark.size();
  const std::size_t begin = std::min(json.find_first_not_of(json_blanks, from), json.size());
  if (begin == json.size()) return {begin, begin};
  if (json_marks.find(json[begin]) != std::string_view::npos) return {begin, begin + 1};
  if (json[begin] != '"') return {begin, std::min(json.find_first_of(" \t\r\n{}[],:\"", begin), json.size())};
  std::size_t end = begin + 1;
  while (end < json.size() && json[end] != '"') end += json[end] == '\\' ? 2 : 1;
  return {begin, std::min(end + 1, json.size())};
}

// The change of depth at a token.
int deeper(std::string_view json, JsonToken token) {
  if (token.begin == token.end) return 0;
  const char mark = json[token.begin];
  return mark == '{' || mark == '[' ? 1 : mark == '}' || mark == ']' ? -1 : 0;
}

// The first token behind the value that begins with `token`.
JsonToken behind_value(std::string_view json, JsonToken token) {
  int depth = 0;
  do {
    depth += deeper(json, token);
    token = token_at(json, token.end);
  } while (depth > 0);
  return token;
}

std::string_view text_of(std::string_view json, JsonToken token) {
  return json.substr(token.begin, token.end - token.begin);
}

// Whether a run of bytes is a number that no double holds.
bool is_too_large(std::string_view run) {
  try {
    const nlohmann::json number = nlohmann::json::parse(run);
  } catch (const nlohmann::json::out_of_range&) {
    return true;
  } catch (const nlohmann::json::parse_error&) {
  }
  return false;
}

bool is_token(std::string_view run) {
  return nlohmann::json::accept(run) || is_too_large(run);
}

// Whether a token of this kind may stand there, whatever is wrong within it.
bool may_stand(std::string_view json, JsonToken token) {
  std::string text(json.substr(0, token.begin));
  const char first = json[token.begin];
  const bool number = first == '-' || (first >= '0' && first <= '9');
  text += first == '"'   ? "\"\""
          : number       ? "0"
          : first == 't' ? "true"
          : first == 'f' ? "false"
          : first == 'n' ? "null"
                         : std::string(1, first);
  try {
    const nlohmann::json value = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    return error.byte > text.size();  // it ends too early
  } catch (const nlohmann::json::exception&) {
    return true;  // of a value, not of its place
  }
  return true;
}

// The first byte at fault because a token may not stand there; none if its own bytes are at fault, or nothing is.
std::optional<std::size_t> misplaced(std::string_view json, JsonToken token) {
  if (token.begin >= token.end) return std::nullopt;
  if (!may_stand(json, token)) return token.begin;
  const std::string_view run = text_of(json, token);
  if (run.front() == '"' || deeper(json, token) != 0 || is_token(run)) return std::nullopt;
  // A run of bytes may be two tokens, as in 01 and truefalse.
  std::size_t first = run.size() - 1;
  while (first > 0 && !is_token(run.substr(0, first))) --first;
  const bool goes_on = std::string_view(".eE").find(run[first]) != std::string_view::npos;  // the number
  return first > 0 && !goes_on ? std::optional(token.begin + first) : std::nullopt;
}

}  // namespace

std::size_t place_of_fault(std::string_view json, std::size_t parse_error_byte) {
  // The library tells the last byte that it read: of a token that may not stand there, the end.
  const std::size_t last = parse_error_byte - std::min<std::size_t>(1, parse_error_byte);
  JsonToken before, token = token_at(json, 0);
  for (JsonToken next = token; next.begin < next.end && next.begin <= last; next = token_at(json, next.end)) {
    before = std::exchange(token, next);
  }
  if (token.begin == token.end || token.begin > last) return std::min(last, json.size());
  token.end = std::min(token.end, last + 1);
  // A broken token may be noticed with the one behind it.
  for (const JsonToken each : {before, token}) {
    if (const auto place = misplaced(json, each)) return *place;
  }
  return std::min(last, json.size());
}

std::size_t place_of_large_number(std::string_view json) {
  for (JsonToken token = token_at(json, 0); token.begin < token.end; token = token_at(json, token.end)) {
    const char first = json[token.begin];
    if ((first == '-' || (first >= '0' && first <= '9')) && is_too_large(text_of(json, token))) return token.begin;
  }
  return 0;
}

std::size_t place_of_value(std::string_view json, const std::vector<std::string>& path) {
  JsonToken value = token_at(json, 0);
  for (const std::string& step : path) {
    const char kind = json[value.begin];
    if (kind != '{' && kind != '[') break;
    JsonToken found;
    JsonToken member = token_at(json, value.end);
    for (std::size_t place = 0; deeper(json, member) >= 0 && member.begin < member.end; ++place) {
      std::string name = std::to_string(place);
      if (kind == '{') {
        name = nlohmann::json::parse(text_of(json, member)).get<std::string>();
        member = token_at(json, token_at(json, member.end).end);
      }
      if (name == step) found = member;
      member = behind_value(json, member);
      if (text_of(json, member) == ",") member = token_at(json, member.end);
    }
    if (found.begin == found.end) break;
    value = found;
  }
  return value.begin;
}

std::size_t column_of(std::string_view line, std::size_t place) {
  const std::string_view before = line.substr(0, place);
  const bool marked = before.starts_with(byte_order_mark);  // editors do not show it
  return 1 + before.size() - static_cast<std::size_t>(std::ranges::count_if(before, continues_character)) -
         (marked ? 1 : 0);
}

}  // namespace weft
