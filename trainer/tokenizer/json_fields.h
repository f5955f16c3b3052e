// The fields of one object of a JSON file. Each value is read by name and type. A field that nothing has read is
// refused at the end, since it asks for something that Weft would ignore.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace weft {

using TokenizerJson = nlohmann::json;

// The JSON text of another program. Throws Error (request), beginning with `place`, for a text that is no JSON or is
// nested deeper than deepest_json levels.
TokenizerJson parse_outside_json(const std::string& text, const std::string& place);
// A token of tokenizer_config.json: a text, or an object with its content. Null for anything else.
const std::string* token_text(const TokenizerJson& settings, const std::string& key);

// Refers to the object, which must live longer. Messages begin with `place`. Each function throws Error (request) for a
// missing field without default and for a value of another type. A field that is null counts as missing.
class JsonFields {
 public:
  JsonFields(const TokenizerJson& object, std::string place);

  const std::string& place() const { return place_; }
  std::string place_of(const std::string& key) const { return place_ + ": " + key; }

  bool flag(const std::string& key, std::optional<bool> otherwise = std::nullopt);
  std::string text(const std::string& key, std::optional<std::string> otherwise = std::nullopt);
  // A text of one character.
  std::string character(const std::string& key);
  std::int64_t integer(const std::string& key);
  // Null if the field is missing.
  const TokenizerJson* find(const std::string& key);
  const TokenizerJson& list(const std::string& key);
  // Reads a field that has no effect on tokens.
  void ignore(const std::string& key) { read_.insert(key); }
  // Refuses a field that is present with another value than null, 0, false, "" or an empty list.
  void refuse(const std::string& key, const char* why);
  // Refuses the fields that nothing has read.
  void finish() const;

  // The fields that were read by flag(), text() and integer(), and the defaults of those missing. Two spellings of the
  // same object mean the same.
  const TokenizerJson& meaning() const { return meaning_; }
  // The meaning of a field that find() has read.
  void set_meaning(const std::string& key, TokenizerJson meaning) { meaning_[key] = std::move(meaning); }

 private:
  [[noreturn]] void refuse_type(const std::string& key, const char* expected) const;

  const TokenizerJson& object_;
  std::string place_;
  std::set<std::string> read_;
  TokenizerJson meaning_ = TokenizerJson::object();
};

// Calls `read` for the step that `json` describes, or for each step of its list `steps` if its type is Sequence. `read`
// refuses unknown types. Returns the list of meanings; of null, none.
using ReadStep = std::function<void(JsonFields& fields, const std::string& type)>;
TokenizerJson read_steps(const TokenizerJson* json, const std::string& place, const char* steps, const ReadStep& read);
// Throws Error (request) for a step of a type that is none of `known`, names in words.
[[noreturn]] void refuse_step(const JsonFields& fields, const std::string& type, const char* known);

// A value in a message, cut to a readable length.
std::string shown_value(const TokenizerJson& value);

}  // namespace weft
