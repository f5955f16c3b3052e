#include "trainer/data/document_parser.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/data/json_places.h"
#include "trainer/data/unpacked_file.h"
#include "trainer/jinja/tokens.h"

#ifdef WEFT_HAVE_SIMDJSON
#include <simdjson.h>
#endif

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// The value at a path of keys; null if there is none.
const Json* value_at(const Json& object, const std::vector<std::string>& path) {
  const Json* value = &object;
  for (const std::string& key : path) {
    if (!value->is_object()) return nullptr;
    const auto found = value->find(key);
    if (found == value->end()) return nullptr;
    value = &*found;
  }
  return value;
}

// Why the value that a key leads to is no text; empty if it is one.
std::string text_fault(const Json* value, std::string_view key) {
  if (value == nullptr) return fmt::format("the object has no key \"{}\"", key);
  const char* const article = value->is_array() || value->is_object() ? "an" : "a";
  return value->is_string() ? "" : fmt::format("\"{}\" is {} {}, not a text", key, article, value->type_name());
}

}  // namespace

#ifdef WEFT_HAVE_SIMDJSON
namespace {

static_assert(UnpackedFile::padding >= simdjson::SIMDJSON_PADDING);
// Above this the parser would take more memory than a batch of documents.
constexpr std::size_t longest_quick_line = std::size_t{1} << 24;

bool find_text(simdjson::dom::element value, const std::vector<std::string>& path, std::string& text) {
  for (const std::string& key : path) {
    simdjson::dom::object object;
    if (value.get(object) != simdjson::SUCCESS) return false;
    bool found = false;
    for (const auto field : object) {
      if (field.key != key) continue;
      value = field.value;
      found = true;
    }
    if (!found) return false;
  }
  std::string_view characters;
  if (value.get(characters) != simdjson::SUCCESS) return false;
  text = characters;
  return true;
}

}  // namespace

struct DocumentParser::QuickJson : simdjson::dom::parser {};

bool DocumentParser::find_quickly(std::string_view line, std::vector<std::string>& texts) {
  if (line.size() > longest_quick_line) return false;
  if (line.size() > quick_->capacity() && quick_->allocate(2 * line.size(), deepest_line) != simdjson::SUCCESS) {
    return false;
  }
  simdjson::dom::element object;
  if (quick_->parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(object) != simdjson::SUCCESS) {
    return false;
  }
  texts.resize(paths_.size());
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (!find_text(object, paths_[p], texts[p])) return false;
  }
  return true;
}
#else
struct DocumentParser::QuickJson {};

bool DocumentParser::find_quickly(std::string_view, std::vector<std::string>&) {
  return false;
}
#endif

std::int64_t Document::bytes() const {
  std::int64_t bytes = 0;
  for (const TextPart& part : parts) bytes += std::ssize(part.text);
  return bytes;
}

DocumentParser::~DocumentParser() = default;
DocumentParser::DocumentParser(DocumentParser&&) noexcept = default;

DocumentParser::DocumentParser(const DocumentRules& rules) : chat_(rules.chat), quick_(std::make_unique<QuickJson>()) {
  if (chat_ == nullptr && !rules.prompt.empty()) keys_.push_back(rules.prompt);
  keys_.push_back(rules.key);
  for (const std::string& key : keys_) {
    const std::vector<std::string_view> parts = parts_between(key, '.');
    paths_.emplace_back(parts.begin(), parts.end());
  }
}

Document DocumentParser::plain_document(std::vector<std::string> texts) const {
  Document document;
  for (std::string& text : texts) document.parts.push_back({std::move(text)});
  if (texts.size() > 1) document.parts.front().learned = false;
  return document;
}

std::optional<DocumentParser::ValueFault> DocumentParser::take(const Json& object, Document& document) const {
  if (!object.is_object()) return ValueFault{{}, "the line is no object"};
  if (chat_ != nullptr) return take_conversation(object, document);
  std::vector<std::string> texts;
  for (std::size_t k = 0; k < keys_.size(); ++k) {
    const Json* value = value_at(object, paths_[k]);
    if (std::string why = text_fault(value, keys_[k]); !why.empty()) return ValueFault{paths_[k], std::move(why)};
    texts.push_back(value->get<std::string>());
  }
  document = plain_document(std::move(texts));
  return std::nullopt;
}

std::optional<DocumentParser::ValueFault> DocumentParser::take_conversation(const Json& object,
                                                                            Document& document) const {
  const std::string& key = keys_.front();
  std::vector<std::string> path = paths_.front();
  const Json* list = value_at(object, path);
  if (list == nullptr) return ValueFault{path, fmt::format("the object has no key \"{}\"", key)};
  if (!list->is_array()) return ValueFault{path, fmt::format("\"{}\" is no list of messages", key)};
  if (list->empty()) return ValueFault{path, fmt::format("\"{}\" has no message", key)};
  for (std::size_t m = 0; m < list->size(); ++m) {
    for (const char* part : {"role", "content"}) {
      const std::string why = text_fault(value_at((*list)[m], {part}), part);
      if (why.empty()) continue;
      path.insert(path.end(), {std::to_string(m), part});
      return ValueFault{path, fmt::format("message {}: {}", m + 1, why)};
    }
  }
  document.joined = true;
  auto why = refusal_of([&] { document.parts = chat_->conversation(*list); });
  if (!why && std::ranges::none_of(document.parts, &TextPart::learned)) {
    why = "no message is learned: none has the role assistant or model, or what the template marks is empty";
  }
  // Templates that mark what is learned know other roles.
  const Json& role = list->back()["role"];
  const bool answered = role == "assistant" || role == "model";
  document.ends_learned =
      !document.parts.empty() &&
      (document.parts.back().learned || (answered && jinja::stripped_right(document.parts.back().text).empty()));
  return why ? std::optional(ValueFault{path, std::move(*why)}) : std::nullopt;
}

std::optional<Document> DocumentParser::parse(std::string_view line, std::string& fault) {
  if (std::vector<std::string> texts; chat_ == nullptr && find_quickly(line, texts)) {
    return plain_document(std::move(texts));
  }
  const auto refuse = [&](std::size_t place, const std::string& why) {
    fault = fmt::format("{}: {}", column_of(line, place), why);
    return std::nullopt;
  };
  if (const auto place = nested_deeper_than(line, deepest_line)) {
    return refuse(*place, fmt::format("lists and objects are nested deeper than {} levels", deepest_line));
  }
  try {
    Document document;
    const auto value = take(Json::parse(line), document);
    // The library takes a zero byte for the end of the text.
    if (const std::size_t zero = line.find('\0'); zero != std::string_view::npos) return refuse(zero, "no JSON");
    if (!value) return document;
    return refuse(place_of_value(line, value->path), value->why);
  } catch (const Json::parse_error& error) {
    return refuse(place_of_fault(line, error.byte), "no JSON");
  } catch (const Json::out_of_range&) {
    return refuse(place_of_large_number(line), "a number is too large");
  }
}

}  // namespace weft
