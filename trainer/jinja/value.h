// The values of a template and its operators, with the meaning that Python gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::jinja {

using Json = nlohmann::ordered_json;
// Shared with the whole that it is a part of. Undefined values are discarded JSON, functions and iterables are binary.
using Value = std::shared_ptr<const Json>;

// Items that are no list: a generator, gone over once, or a view of a dict. Neither has places, is compared or stands
// in a list. It is binary with a subtype, by which iterable_in knows it, and never copied.
struct Iterable : Json {
  Iterable(Value items, bool generator) : Json(binary({}, 0)), list(std::move(items)), once(generator) {}
  Value list;
  bool once;
  mutable bool used = false;  // of a generator
};

inline Value made(Json json) {
  return std::make_shared<const Json>(std::move(json));
}
inline Value undefined() {
  return made(Json(Json::value_t::discarded));
}

// The bytes that a rendering may still make, as templates and conversations come from outside. Tokens that are read and
// items that are made count as bytes, too.
struct Budget {
  static constexpr std::size_t token = 16, item = 64;
  std::int64_t left;
  // Throws Error (request) where nothing is left.
  void spend(std::size_t bytes);
  // Of a copy. Throws for depths at which copies overflow the stack, and for functions and iterables, too.
  void spend_copy(const Json& json, int depth = 0);
};

const Iterable* iterable_in(const Json& json);  // null for other values
// The list of an iterable, and other values themselves. Throws Error (request) for a generator that is used again.
Value unwrapped(const Value& value);

std::string_view type_name(const Json& json);  // with its article, for messages
bool is_true(const Json& json);
// These throw Error (request) for values of other types.
const std::string& text_in(const Json& json);
std::int64_t integer_in(const Json& json);
std::int64_t integer_in(const Json& json, std::int64_t otherwise);  // of an undefined value, or none
std::string text_of(const Json& json);                              // as Python prints it, of lists and dicts not
std::string json_text(const Json& json, Budget& budget);            // as json.dumps writes it without ensure_ascii

std::vector<std::string_view> characters_of(std::string_view text);
// The items of a loop: of lists and iterables, keys of a dict, characters of a text; nothing of an undefined value.
std::vector<Value> items_of(const Value& value, Budget& budget);
Value list_of(const std::vector<Value>& items, Budget& budget);

// Throws Error (request) if of.name is a method, whatever the members of `of`.
void refuse_method(std::string_view name, const Json& of);
// of[key], undefined if there is none, and of[begin:end:step].
Value item_of(const Value& of, const Json& key);
Value slice_of(const Value& of, const Json& begin, const Json& end, const Json& step, Budget& budget);
bool is_equal(const Json& left, const Json& right, Budget& budget);
bool contains(const Value& all, const Json& part, Budget& budget);
// Of the operators +, -, *, //, %, ~, ==, !=, <, <=, >, >= and in. Numbers but in comparisons are integers of 64 bits.
Value combined(std::string_view name, const Value& left, const Value& right, Budget& budget);

}  // namespace weft::jinja
