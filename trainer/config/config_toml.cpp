#include "trainer/config/config_sources.h"

#include <fmt/format.h>

#include <toml++/toml.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace weft {
namespace {

bool is_bare(std::string_view key) {
  constexpr std::string_view bare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !key.empty() && key.find_first_not_of(bare) == std::string_view::npos;
}

// Turns nodes into entries. With a fixed place (an override), positions inside the text are not used.
class Flattener {
 public:
  Flattener(std::shared_ptr<const SourceText> source, std::optional<Place> fixed)
      : source_(std::move(source)), fixed_(std::move(fixed)) {}

  void add_table(const std::string& prefix, const toml::table& table) {
    for (const auto& [key, node] : table) {
      // Quotes keep "a.b" apart from the key b of section a.
      const std::string name = is_bare(key.str()) ? std::string(key.str()) : toml_text(std::string(key.str()));
      add(prefix.empty() ? name : prefix + "." + name, key.source(), node);
    }
  }

  void add(const std::string& path, const toml::source_region& key, const toml::node& node) {
    entries_.push_back({path, place(key), value(node)});
    if (const toml::table* table = node.as_table()) add_table(path, *table);
  }

  std::vector<ConfigEntry> take() { return std::move(entries_); }

 private:
  Place place(const toml::source_region& region) const {
    if (fixed_) return *fixed_;
    const auto line = static_cast<int>(region.begin.line), column = static_cast<int>(region.begin.column);
    const bool one_line = region.end.line == region.begin.line && region.end.column > region.begin.column;
    return {source_, line, column, one_line ? static_cast<int>(region.end.column) - column : 1};
  }

  ConfigValue value(const toml::node& node) const {
    ConfigValue result{TableMark{}, place(node.source())};
    if (const auto* boolean = node.as_boolean()) {
      result.data = boolean->get();
    } else if (const auto* integer = node.as_integer()) {
      result.data = integer->get();
    } else if (const auto* number = node.as_floating_point()) {
      result.data = number->get();
    } else if (const auto* string = node.as_string()) {
      result.data = string->get();
    } else if (const auto* array = node.as_array()) {
      std::vector<ConfigValue> elements;
      for (const toml::node& element : *array) {
        elements.push_back(value(element));
        const toml::table* table = element.as_table();
        if (table == nullptr) continue;
        std::vector<ConfigField> fields;
        for (const auto& [key, field] : *table) fields.push_back({std::string(key.str()), value(field)});
        elements.back().data = TableMark{std::make_shared<const std::vector<ConfigField>>(std::move(fields))};
      }
      result.data = std::move(elements);
    } else if (!node.is_table()) {
      result.data = DateMark{};
    }
    return result;
  }

  std::shared_ptr<const SourceText> source_;
  std::optional<Place> fixed_;
  std::vector<ConfigEntry> entries_;
};

// The library and all code that walks its tables recurse once for each part of a key. No real key has so many parts.
constexpr int most_key_parts = 64;

// The place of a key with more parts in the text: dots outside strings and comments, with only names between them.
std::optional<std::size_t> overlong_key(std::string_view text) {
  int dots = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char symbol = text[at];
    if (symbol == '#') {
      at = std::min(text.find('\n', at), text.size());
      dots = 0;
    } else if (symbol == '"' || symbol == '\'') {
      const std::string_view once = text.substr(at, 1), thrice = symbol == '"' ? "\"\"\"" : "'''";
      const std::string_view mark = text.substr(at).starts_with(thrice) ? thrice : once;
      for (at += mark.size(); at < text.size() && !text.substr(at).starts_with(mark); ++at) {
        if (symbol == '"' && text[at] == '\\') {
          ++at;
          continue;
        }
        if (mark.size() == 1 && text[at] == '\n') break;  // not closed: the library will say so
      }
      at += mark.size() - 1;
    } else if (std::string_view("=[]{},\n").find(symbol) != std::string_view::npos) {
      dots = 0;
    } else if (symbol == '.' && ++dots >= most_key_parts) {
      return at;
    }
  }
  return std::nullopt;
}

}  // namespace

TomlDocument parse_toml(const std::string& text, const std::shared_ptr<const SourceText>& source) {
  if (const auto at = overlong_key(text)) {
    const std::string_view before = std::string_view(text).substr(0, *at);
    const Place place{source, static_cast<int>(std::ranges::count(before, '\n')) + 1,
                      static_cast<int>(*at - (before.find_last_of('\n') + 1)) + 1, 1};
    return {{}, Fault{place, fmt::format("a key has more than {} parts", most_key_parts)}};
  }
  try {
    const toml::table table = toml::parse(std::string_view(text));
    Flattener flattener(source, std::nullopt);
    flattener.add_table("", table);
    return {flattener.take(), std::nullopt};
  } catch (const toml::parse_error& error) {
    const auto& begin = error.source().begin;
    const Place place{source, static_cast<int>(begin.line), static_cast<int>(begin.column), 1};
    std::string_view description = error.description();
    if (description.starts_with("Error ")) description.remove_prefix(6);  // format_fault() says so already
    return {{}, Fault{place, std::string(description)}};
  }
}

std::vector<ConfigEntry> parse_toml_value(const std::string& path, const std::string& text, const Place& place) {
  Flattener flattener(place.source, place);
  toml::table table;
  try {
    if (!overlong_key(text)) table = toml::parse("value = " + text);
  } catch (const toml::parse_error&) {
    // a string
  }
  const toml::node* node = table.get("value");
  // A text with a line break could hold further keys. A date is read as a string, since no key takes dates.
  const bool one_value = table.size() == 1 && node != nullptr && text.find('\n') == std::string::npos;
  if (one_value && !node->is_date() && !node->is_time() && !node->is_date_time()) {
    flattener.add(path, {}, *node);
  } else {
    flattener.add(path, {}, toml::value<std::string>(text));
  }
  return flattener.take();
}

}  // namespace weft
