#include "trainer/tokenizer/json_fields.h"

#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

constexpr std::size_t most_shown = 60;

}  // namespace

TokenizerJson parse_outside_json(const std::string& text, const std::string& place) {
  if (nested_deeper_than(text, deepest_json)) {
    fail_request("{}: lists and objects are nested deeper than {} levels", place, deepest_json);
  }
  try {
    return TokenizerJson::parse(text);
  } catch (const TokenizerJson::exception& error) {
    fail_request("{} is no JSON: {}", place, error.what());
  }
}

const std::string* token_text(const TokenizerJson& settings, const std::string& key) {
  const auto token = settings.find(key);
  if (token == settings.end()) return nullptr;
  const auto content = token->find("content");
  return (content != token->end() ? *content : *token).get_ptr<const std::string*>();
}

std::string shown_value(const TokenizerJson& value) {
  if (value.is_structured())
    return fmt::format("a{} of {} entries", value.is_array() ? " list" : "n object", value.size());
  std::string text = value.dump(-1, ' ', true, TokenizerJson::error_handler_t::replace);
  if (text.size() > most_shown) text = text.substr(0, most_shown) + "...";
  return text;
}

JsonFields::JsonFields(const TokenizerJson& object, std::string place) : object_(object), place_(std::move(place)) {
  if (!object.is_object()) fail_request("{} is {}, not an object", place_, shown_value(object));
}

void JsonFields::refuse_type(const std::string& key, const char* expected) const {
  const auto found = object_.find(key);
  if (found == object_.end()) fail_request("{}: {} is missing", place_, key);
  fail_request("{}: {} is {}, not {}", place_, key, shown_value(*found), expected);
}

const TokenizerJson* JsonFields::find(const std::string& key) {
  read_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::flag(const std::string& key, std::optional<bool> otherwise) {
  const TokenizerJson* value = find(key);
  if ((value == nullptr && !otherwise) || (value != nullptr && !value->is_boolean())) refuse_type(key, "true or false");
  const bool result = value != nullptr ? value->get<bool>() : *otherwise;
  meaning_[key] = result;
  return result;
}

std::string JsonFields::text(const std::string& key, std::optional<std::string> otherwise) {
  const TokenizerJson* value = find(key);
  if ((value == nullptr && !otherwise) || (value != nullptr && !value->is_string())) refuse_type(key, "a text");
  std::string result = value != nullptr ? value->get<std::string>() : *otherwise;
  meaning_[key] = result;
  return result;
}

std::string JsonFields::character(const std::string& key) {
  std::string result = text(key);
  if (result.empty() || code_point_at(result, 0).bytes != result.size()) refuse_type(key, "one character");
  return result;
}

std::int64_t JsonFields::integer(const std::string& key) {
  const TokenizerJson* value = find(key);
  if (value == nullptr || !value->is_number_integer()) refuse_type(key, "an integer");
  if (value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX) refuse_type(key, "an integer of 63 bits");
  const auto result = value->get<std::int64_t>();
  meaning_[key] = result;
  return result;
}

const TokenizerJson& JsonFields::list(const std::string& key) {
  const TokenizerJson* value = find(key);
  if (value == nullptr || !value->is_array()) refuse_type(key, "a list");
  return *value;
}

void JsonFields::refuse(const std::string& key, const char* why) {
  const TokenizerJson* value = find(key);
  if (value == nullptr || (value->is_structured() && value->empty()) || *value == false || *value == "") return;
  if (value->is_number() && *value == 0) return;
  fail_request("{}: {} is {}: {}", place_, key, shown_value(*value), why);
}

void JsonFields::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (!value.is_null() && !read_.contains(key)) fail_request("{}: {} is not supported", place_, key);
  }
}

TokenizerJson read_steps(const TokenizerJson* json, const std::string& place, const char* steps, const ReadStep& read) {
  TokenizerJson meanings = TokenizerJson::array();
  if (json == nullptr) return meanings;
  JsonFields fields(*json, place);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    const TokenizerJson& list = fields.list(steps);
    fields.finish();
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (TokenizerJson& meaning : read_steps(&list[i], fmt::format("{}: {}[{}]", place, steps, i), steps, read)) {
        meanings.push_back(std::move(meaning));
      }
    }
    return meanings;
  }
  read(fields, type);
  fields.finish();
  meanings.push_back(fields.meaning());
  return meanings;
}

void refuse_step(const JsonFields& fields, const std::string& type, const char* known) {
  fail_request("{} is {}, which Weft does not compute; it has {}", fields.place(), shown_value(type), known);
}

}  // namespace weft
