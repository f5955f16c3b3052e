#include "trainer/jinja/functions.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "parallel/runtime/error.h"
#include "trainer/jinja/tokens.h"

namespace weft::jinja {
namespace {

Value stripped(std::string_view text, const Json& characters, bool left, bool right) {
  if (characters.is_discarded() || characters.is_null()) {
    if (left) text = stripped_left(text);
    return made(right ? stripped_right(text) : text);
  }
  const std::string& all = text_in(characters);
  if (std::ranges::any_of(all, [](signed char c) { return c < 0; })) fail_request("Weft strips ASCII characters alone");
  if (left) text.remove_prefix(std::min(text.find_first_not_of(all), text.size()));
  return made(right ? text.substr(0, text.find_last_not_of(all) + 1) : text);
}

// `name`: upper, lower, capitalize or title, whose words begin as those of Jinja's filter.
Value in_case(std::string text, std::string_view name) {
  bool first = name != "lower";
  for (char& c : text) {
    if (static_cast<signed char>(c) < 0) fail_request("Weft knows upper and lower case of ASCII alone");
    const bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
    if (first ? lower : upper) c = static_cast<char>(c ^ 0x20);
    first =
        name == "upper" || (name == "title" && std::string_view("-({[< \t\n\r\v\f").find(c) != std::string_view::npos);
  }
  return made(text);
}

// The parts of a text around the first `most` separators; around all of them below 0.
std::vector<std::string_view> cut(std::string_view text, std::string_view separator, std::int64_t most,
                                  Budget& budget) {
  if (separator.empty()) fail_request("a text is cut at an empty one");
  budget.spend(text.size() * (1 + separator.size() / 16));
  std::vector<std::string_view> parts;
  for (std::size_t found; most != 0 && (found = text.find(separator)) != std::string_view::npos; --most) {
    budget.spend(Budget::item);
    parts.push_back(text.substr(0, found));
    text.remove_prefix(found + separator.size());
  }
  parts.push_back(text);
  return parts;
}

// The parts of a text between white space; behind `most` of them (if not below 0) the rest is one.
std::vector<std::string_view> words_of(std::string_view text, std::int64_t most, Budget& budget) {
  budget.spend(text.size());
  std::vector<std::string_view> words;
  for (text = stripped_left(text); !text.empty(); text = stripped_left(text)) {
    budget.spend(Budget::item);
    words.push_back(most-- == 0 ? text : up_to_space(text));
    text.remove_prefix(words.back().size());
  }
  return words;
}

template <typename Texts>
Value joined(const Texts& texts, std::string_view separator, Budget& budget) {
  std::string all;
  for (const auto& text : texts) {
    budget.spend(text.size() + separator.size());
    if (&text != &texts.front()) all += separator;
    all += text;
  }
  return made(all);
}

std::vector<std::string> texts_of(const Value& items, Budget& budget) {
  std::vector<std::string> texts;
  for (const Value& item : items_of(items, budget)) texts.push_back(text_of(*item));
  return texts;
}

Value generator_of(const Value& list) {
  return std::make_shared<const Iterable>(list, true);
}
Value view_of(const Value& list) {
  return std::make_shared<const Iterable>(list, false);
}

// The attribute "a.0.b" of an item, part by part; `otherwise`, unless it is none, stands for undefined parts.
Value attribute_of(Value item, std::string_view path, const Value& otherwise, Budget& budget) {
  for (const std::string_view part : cut(path, ".", -1, budget)) {
    std::int64_t place = INT64_MAX;  // stays where digits are too many
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (digits) std::from_chars(part.data(), part.data() + part.size(), place);
    item = item_of(item, digits ? Json(place) : Json(part));
    if (item->is_discarded() && !otherwise->is_null()) item = otherwise;
  }
  return item;
}

// selectattr("a", "test", ...) and its like: items whose attribute passes the test, or does not; without attr, items
// that do themselves. map("filter", ...): their results. map(attribute="a", default=b): the attributes.
Value selected(const std::string& name, const Value& of, Arguments& a, Budget& budget) {
  const bool map = name == "map", attributes = map ? a.given.empty() : name.ends_with("attr");
  const Value attribute = attributes ? a(map ? "attribute" : "") : nullptr;
  const Value otherwise = map && attributes ? a("default") : made(nullptr);
  const Value function = a.places < a.given.size() ? a("") : nullptr;
  if (attributes && attribute->is_discarded()) fail_request("'{}' lacks its first argument", name);
  if (map && !attributes && text_in(*function) == "map") fail_request("Weft runs no 'map' by a 'map'");
  Arguments rest;
  while (a.places < a.given.size()) rest.given.push_back(a(""));
  if (function != nullptr) rest.named.swap(a.named);
  std::vector<Value> kept;
  for (const Value& item : items_of(of, budget)) {
    budget.spend(Budget::item);
    Value judged = attributes ? attribute_of(item, text_in(*attribute), otherwise, budget) : item;
    if (function != nullptr) {
      judged = applied(map ? FunctionKind::filter : FunctionKind::test, text_in(*function), judged, rest, budget);
    }
    if (map || is_true(*judged) == name.starts_with("select")) kept.push_back(map ? judged : item);
  }
  return generator_of(list_of(kept, budget));
}

// The common parts of filters and methods of texts; nothing for another name.
Value changed(const std::string& name, const std::string& text, Arguments& a, Budget& budget) {
  if (name == "upper" || name == "lower" || name == "capitalize") return in_case(text, name);
  if (name == "replace") {
    const Value from = a("old"), to = a("new"), count = a("count");
    return joined(cut(text, text_in(*from), integer_in(*count, -1), budget), text_in(*to), budget);
  }
  return nullptr;
}

Value pairs_of(const Json& dict, Budget& budget) {
  if (!dict.is_object() && !dict.is_discarded()) fail_request("a dict expected, not {}", type_name(dict));
  budget.spend_copy(dict);
  Json pairs = Json::array();
  if (dict.is_object()) {
    for (const auto& [key, value] : dict.items()) pairs.push_back(Json::array({key, value}));
  }
  return made(std::move(pairs));
}

Value text_method(const std::string& name, const std::string& text, Arguments& a, Budget& budget) {
  if (name == "strip") return stripped(text, *a("chars"), true, true);
  if (name == "lstrip") return stripped(text, *a("chars"), true, false);
  if (name == "rstrip") return stripped(text, *a("chars"), false, true);
  if (name == "startswith") return made(text.starts_with(text_in(*a("prefix"))));
  if (name == "endswith") return made(text.ends_with(text_in(*a("suffix"))));
  if (name == "join") return joined(texts_of(a("iterable"), budget), text, budget);
  if (name == "split") {
    const Value separator = a("sep"), most = a("maxsplit");
    Json parts = Json::array();
    const std::int64_t cuts = integer_in(*most, -1);
    const bool at_space = separator->is_discarded() || separator->is_null();
    for (const auto part : at_space ? words_of(text, cuts, budget) : cut(text, text_in(*separator), cuts, budget)) {
      parts.push_back(part);
    }
    return made(std::move(parts));
  }
  return changed(name, text, a, budget);
}

Value dict_method(const std::string& name, const Value& of, Arguments& a, Budget& budget) {
  if (name == "items") return view_of(pairs_of(*of, budget));
  if (name == "keys") return view_of(list_of(items_of(of, budget), budget));
  if (name == "values") {
    std::vector<Value> values;
    for (const auto& [key, value] : of->items()) values.emplace_back(of, &value);
    return view_of(list_of(values, budget));
  }
  if (name != "get") return nullptr;
  const Value key = a("key"), otherwise = a("default");
  if (contains(of, *key, budget)) return item_of(of, *key);
  return otherwise->is_discarded() ? made(nullptr) : otherwise;
}

Value filter_result(const std::string& name, const Value& of, Arguments& a, Budget& budget) {
  constexpr std::array<std::string_view, 5> selections = {"map", "reject", "rejectattr", "select", "selectattr"};
  if (std::ranges::find(selections, name) != selections.end()) return selected(name, of, a, budget);
  if (name == "default" || name == "d") {
    const Value otherwise = a("default_value");
    const bool missing = of->is_discarded() || (is_true(*a("boolean")) && !is_true(*of));
    return !missing ? of : otherwise->is_discarded() ? made("") : otherwise;
  }
  if (name == "items") return generator_of(pairs_of(*of, budget));
  const Iterable* iterable = iterable_in(*of);
  const bool once = iterable != nullptr && iterable->once;
  if (name == "length" || name == "count") {
    if (of->is_string()) return made(characters_of(text_in(*of)).size());
    if (iterable != nullptr && !once) return made(iterable->list->size());
    if (!of->is_structured() && !of->is_discarded()) fail_request("{} has no length", type_name(*of));
    return made(of->is_structured() ? of->size() : 0);
  }
  if (name == "list") return list_of(items_of(of, budget), budget);
  if (name == "first" || name == "reverse" || (name == "last" && !once)) {
    Value all = unwrapped(of);
    if (!all->is_string() && !all->is_array()) all = list_of(items_of(all, budget), budget);
    if (name != "reverse") return item_of(all, name == "first" ? 0 : -1);
    const Value reversed = slice_of(all, nullptr, nullptr, -1, budget);
    return of->is_string() || once ? reversed : generator_of(reversed);
  }
  if (name == "join") return joined(texts_of(of, budget), text_of(*a("d")), budget);
  if (name == "tojson") {
    if (is_true(*a("ensure_ascii"))) fail_request("Weft does not write ensure_ascii");
    return made(json_text(*of, budget));
  }
  if (name == "safe" || name == "string") return made(text_of(*of));
  if (name == "trim") return stripped(text_of(*of), *a("chars"), true, true);
  if (name == "title") return in_case(text_of(*of), name);
  return of->is_structured() || of->is_binary() ? nullptr : changed(name, text_of(*of), a, budget);
}

Value test_result(const std::string& name, const Value& of, Arguments& a, Budget& budget) {
  if (name == "defined") return made(!of->is_discarded());
  if (name == "undefined") return made(of->is_discarded());
  if (name == "none") return made(of->is_null());
  if (name == "string") return made(of->is_string());
  if (name == "mapping") return made(of->is_object());
  if (name == "sequence" || name == "iterable")
    return made(of->is_string() || of->is_structured() || of->is_discarded() ||
                (name == "iterable" && iterable_in(*of) != nullptr));
  if (name == "boolean") return made(of->is_boolean());
  if (name == "true" || name == "false") return made(of->is_boolean() && is_true(*of) == (name == "true"));
  if (name == "number") return made(of->is_number() || of->is_boolean());
  if (name == "integer") return made(of->is_number_integer());
  if (name == "float") return made(of->is_number_float());
  if (name == "odd" || name == "even") return made((integer_in(*of) % 2 != 0) == (name == "odd"));
  if (name == "==" || name == "eq" || name == "equalto") return made(is_equal(*of, *a("other"), budget));
  if (name == "!=" || name == "ne") return made(!is_equal(*of, *a("other"), budget));
  if (name == "in") return made(contains(a("seq"), *of, budget));
  return nullptr;
}

}  // namespace

Value Arguments::operator()(std::string_view name) {
  if (places < given.size()) return given[places++];
  ++places;
  const auto found = named.find(name);
  names += found == named.end() ? 0 : 1;
  return found == named.end() ? undefined() : found->second;
}

void Arguments::finish(std::string_view function) const {
  if (places < given.size() || names < named.size())
    fail_request("'{}' has arguments that Weft does not know", function);
}

Value applied(FunctionKind kind, const std::string& name, const Value& of, Arguments arguments, Budget& budget) {
  Value result = nullptr;
  if (kind == FunctionKind::filter) result = filter_result(name, of, arguments, budget);
  if (kind == FunctionKind::test) result = test_result(name, of, arguments, budget);
  if (kind == FunctionKind::method && of->is_string()) result = text_method(name, text_in(*of), arguments, budget);
  if (kind == FunctionKind::method && of->is_object()) result = dict_method(name, of, arguments, budget);
  constexpr std::array<std::string_view, 3> kinds = {"filter", "test", "method"};
  if (result == nullptr)
    fail_request("Weft knows no {} '{}' of {}", kinds[static_cast<std::size_t>(kind)], name, type_name(*of));
  arguments.finish(name);
  return result;
}

}  // namespace weft::jinja
