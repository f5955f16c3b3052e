#include "trainer/jinja/value.h"

#include <algorithm>
#include <iterator>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft::jinja {

void Budget::spend(std::size_t bytes) {
  left -= static_cast<std::int64_t>(std::min(bytes, std::size_t{1} << 50));
  if (left < 0) fail_request("the rendering takes more time and memory than Weft grants one");
}

void Budget::spend_copy(const Json& json, int depth) {
  constexpr int deepest_value = 300;  // lines of JSON have 256
  if (json.is_binary()) fail_request("{} is put in a list or a dict, or compared", type_name(json));
  if (depth > deepest_value) fail_request("lists and dicts are nested deeper than {} levels", deepest_value);
  spend(item + (json.is_string() ? text_in(json).size() : 0));
  if (!json.is_structured()) return;
  for (const auto& [key, part] : json.items()) {
    spend(key.size());
    spend_copy(part, depth + 1);
  }
}

const Iterable* iterable_in(const Json& json) {
  const bool iterable = json.is_binary() && json.get_binary().has_subtype();
  return iterable ? static_cast<const Iterable*>(&json) : nullptr;
}

Value unwrapped(const Value& value) {
  const Iterable* iterable = iterable_in(*value);
  if (iterable == nullptr) return value;
  if (iterable->used) fail_request("a generator is gone over again; 'list' makes a list of one");
  iterable->used = iterable->once;
  return iterable->list;
}

std::string_view type_name(const Json& json) {
  if (const Iterable* iterable = iterable_in(json)) return iterable->once ? "a generator" : "a view of a dict";
  if (json.is_discarded()) return "an undefined value";
  if (json.is_null()) return "none";
  if (json.is_string()) return "a text";
  if (json.is_structured()) return json.is_array() ? "a list" : "a dict";
  return json.is_boolean() ? "a boolean" : json.is_number() ? "a number" : "a function";
}

bool is_true(const Json& json) {
  if (const Iterable* iterable = iterable_in(json)) return iterable->once || !iterable->list->empty();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return json.get<double>() != 0;
  if (json.is_string()) return !text_in(json).empty();
  return json.is_binary() || (json.is_structured() && !json.empty());
}

const std::string& text_in(const Json& json) {
  if (!json.is_string()) fail_request("a text expected, not {}", type_name(json));
  return json.get_ref<const std::string&>();
}

std::int64_t integer_in(const Json& json) {
  if (!json.is_number_integer()) fail_request("an integer expected, not {}", type_name(json));
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) fail_request("{} is too large", json.dump());
  return json.get<std::int64_t>();
}

std::int64_t integer_in(const Json& json, std::int64_t otherwise) {
  return json.is_discarded() || json.is_null() ? otherwise : integer_in(json);
}

std::string text_of(const Json& json) {
  if (json.is_string()) return text_in(json);
  if (json.is_discarded()) return "";
  if (json.is_null()) return "None";
  if (json.is_boolean()) return json.get<bool>() ? "True" : "False";
  if (!json.is_number()) {
    fail_request("{} is printed; tojson makes a text of lists and dicts, and 'join' of others", type_name(json));
  }
  if (!json.is_number_float()) return json.dump();
  std::string text = fmt::format("{}", json.get<double>());  // with an exponent where Python's repr has one
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string json_text(const Json& json, Budget& budget) {
  if (json.is_discarded() || json.is_binary()) fail_request("{} is no JSON", type_name(json));
  if (!json.is_structured()) return json.is_number() ? text_of(json) : json.dump();
  std::string text = json.is_array() ? "[" : "{";
  for (const auto& [key, part] : json.items()) {
    if (text.size() > 1) text += ", ";
    if (json.is_object()) text += Json(key).dump() + ": ";
    text += json_text(part, budget);
  }
  budget.spend(text.size());
  return text + (json.is_array() ? "]" : "}");
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size(); at += characters.back().size()) {
    characters.push_back(text.substr(at, code_point_at(text, at).bytes));
  }
  return characters;
}

std::vector<Value> items_of(const Value& value, Budget& budget) {
  std::vector<Value> items;
  if (iterable_in(*value) != nullptr) return items_of(unwrapped(value), budget);
  if (value->is_array()) {
    for (const Json& item : *value) items.emplace_back(value, &item);
  } else if (value->is_object()) {
    for (const auto& [key, ignored] : value->items()) items.push_back(made(key));
  } else if (value->is_string()) {
    budget.spend(Budget::item * text_in(*value).size());
    for (const std::string_view character : characters_of(text_in(*value))) items.push_back(made(character));
  } else if (!value->is_discarded()) {
    fail_request("{} has no items to go over", type_name(*value));
  }
  return items;
}

Value list_of(const std::vector<Value>& items, Budget& budget) {
  Json list = Json::array();
  for (const Value& item : items) {
    budget.spend_copy(*item, 1);
    list.push_back(*item);
  }
  return made(std::move(list));
}

void refuse_method(std::string_view name, const Json& of) {
  std::string_view all;
  if (of.is_string()) {
    all =
        " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha "
        "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust "
        "lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit "
        "rstrip split splitlines startswith strip swapcase title translate upper zfill ";
  }
  if (of.is_object()) all = " clear copy fromkeys get items keys pop popitem setdefault update values ";
  if (of.is_array()) all = " copy count index ";  // the sandbox of transformers hides those that change a list
  if (all.find(fmt::format(" {} ", name)) != all.npos) fail_request("the method '{}' is used as a value", name);
}

Value item_of(const Value& of, const Json& key) {
  if (of->is_discarded() || of->is_binary()) fail_request("{} of {} is read", key.dump(), type_name(*of));
  if (of->is_object() && key.is_string()) {
    if (const auto found = of->find(text_in(key)); found != of->end()) return Value(of, &*found);
  }
  if (key.is_string()) refuse_method(text_in(key), *of);
  if (!key.is_number_integer() || !(of->is_array() || of->is_string())) return undefined();
  const auto characters = of->is_string() ? characters_of(text_in(*of)) : std::vector<std::string_view>();
  const std::int64_t count = of->is_string() ? std::ssize(characters) : static_cast<std::int64_t>(of->size());
  const std::int64_t at = integer_in(key) + (integer_in(key) < 0 ? count : 0);
  if (at < 0 || at >= count) return undefined();
  const auto place = static_cast<std::size_t>(at);
  return of->is_string() ? made(characters[place]) : Value(of, &(*of)[place]);
}

Value slice_of(const Value& of, const Json& begin, const Json& end, const Json& step, Budget& budget) {
  if (!of->is_array() && !of->is_string()) fail_request("{} has no slices", type_name(*of));
  const std::vector<Value> items = items_of(of, budget);
  const std::int64_t count = std::ssize(items), by = integer_in(step, 1);
  if (by != 1 && by != -1) fail_request("the step of a slice is {}; Weft knows 1 and -1", by);
  // Python's places: clamped to those where a slice may begin and end.
  const auto place = [&](const Json& given, std::int64_t otherwise) {
    const std::int64_t at = integer_in(given, otherwise), least = by > 0 ? 0 : -1;
    return given.is_number() ? std::clamp(at < 0 ? at + count : at, least, count + least) : at;
  };
  std::vector<Value> kept;
  const std::int64_t last = place(end, by > 0 ? count : -1);
  for (std::int64_t i = place(begin, by > 0 ? 0 : count - 1); by > 0 ? i < last : i > last; i += by) {
    kept.push_back(items[static_cast<std::size_t>(i)]);
  }
  if (of->is_array()) return list_of(kept, budget);
  std::string text;
  for (const Value& character : kept) text += text_in(*character);
  return made(text);
}

bool is_equal(const Json& left, const Json& right, Budget& budget) {
  if (left.is_boolean() && right.is_number()) return right == (left.get<bool>() ? 1 : 0);
  if (right.is_boolean() && left.is_number()) return left == (right.get<bool>() ? 1 : 0);
  budget.spend_copy(left);
  return left == right || (left.is_discarded() && right.is_discarded());
}

bool contains(const Value& all, const Json& part, Budget& budget) {
  const Iterable* iterable = iterable_in(*all);
  const bool hashed = all->is_object() || (iterable != nullptr && !iterable->once);
  if (hashed && part.is_structured()) fail_request("{} is looked up in {}", type_name(part), type_name(*all));
  if (all->is_object()) return part.is_string() && all->contains(text_in(part));
  if (all->is_string()) {
    budget.spend(text_in(*all).size() * (1 + text_in(part).size() / 16));
    return text_in(*all).find(text_in(part)) != std::string::npos;
  }
  return std::ranges::any_of(items_of(all, budget), [&](const Value& item) { return is_equal(*item, part, budget); });
}

Value combined(std::string_view name, const Value& left, const Value& right, Budget& budget) {
  const Json &a = *left, &b = *right;
  if (name == "==" || name == "!=") return made(is_equal(a, b, budget) == (name == "=="));
  if (name == "in") return made(contains(right, a, budget));
  const bool texts = a.is_string() && b.is_string(), numbers = a.is_number() && b.is_number();
  if (name == "~" || (name == "+" && texts)) {
    std::string text = text_of(a) + text_of(b);
    budget.spend(text.size());
    return made(std::move(text));
  }
  if (name == "+" && a.is_array() && b.is_array()) {
    std::vector<Value> items = items_of(left, budget);
    for (const Value& item : items_of(right, budget)) items.push_back(item);
    return list_of(items, budget);
  }
  if (name[0] == '<' || name[0] == '>') {
    if (!texts && !numbers) fail_request("{} and {} have no order", type_name(a), type_name(b));
    const bool less = name[0] == '<' ? a < b : b < a, more = name[0] == '<' ? b < a : a < b;
    return made(name.size() == 1 ? less : !more);
  }
  if (!numbers) fail_request("'{}' of {} and {}", name, type_name(a), type_name(b));
  const std::int64_t x = integer_in(a), y = integer_in(b), most = INT32_MAX;
  if (std::max(x, y) > most || std::min(x, y) < -most) fail_request("Weft computes of numbers up to {}", most);
  if (name == "+") return made(x + y);
  if (name == "-") return made(x - y);
  if (name == "*") return made(x * y);
  if ((name != "//" && name != "%") || y == 0) fail_request("'{}' of {} and {}", name, x, y);
  const std::int64_t quotient = x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);  // rounded down
  return made(name == "//" ? quotient : x - quotient * y);
}

}  // namespace weft::jinja
