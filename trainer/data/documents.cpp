#include "trainer/data/documents.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/data/text_file.h"

namespace weft {
namespace {

bool has_json_lines(const std::string& file) {
  std::string lower = file;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string_view name = lower;
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.remove_suffix(packed.size());
  }
  constexpr std::array<std::string_view, 3> endings = {".jsonl", ".ndjson", ".json"};
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

// Throws for what is neither text nor JSON lines, as its name says, plain or packed.
void require_text(const std::string& name) {
  UnpackedFile file(name);
  const JsonLines json = has_json_lines(name) ? JsonLines::expected : JsonLines::refused;
  std::string_view text = file.beginning(bytes_to_know_format({}));
  const std::size_t more = json == JsonLines::refused ? bytes_to_know_format(text) : 0;
  if (more > text.size()) text = file.beginning(more);
  if (const auto format = find_format(text, json)) {
    fail_request(
        "\"{}\": the file is {}{}. Read are texts in UTF-8, and JSON lines in files called .jsonl, .ndjson or .json, "
        "plain or packed as .gz or .zst",
        name, *format, format == "JSON lines" ? ", by its name a text" : "");
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

// The value at a path of keys joined by dots; null if there is none.
const nlohmann::ordered_json* value_at(const nlohmann::ordered_json& object, std::string_view path) {
  const nlohmann::ordered_json* value = &object;
  while (true) {
    const std::size_t dot = path.find('.');
    if (!value->is_object()) return nullptr;
    const auto found = value->find(std::string(path.substr(0, dot)));
    if (found == value->end()) return nullptr;
    value = &*found;
    if (dot == std::string_view::npos) return value;
    path.remove_prefix(dot + 1);
  }
}

// The text at a path of keys; otherwise `fault` says why there is none, unless it says something already.
std::string text_at(const nlohmann::ordered_json& object, const std::string& key, std::string& fault) {
  const nlohmann::ordered_json* text = value_at(object, key);
  if (text != nullptr && text->is_string()) return text->get<std::string>();
  if (fault.empty()) {
    fault = text == nullptr ? fmt::format("the object has no key \"{}\"", key)
                            : fmt::format("\"{}\" is a {}, not a text", key, text->type_name());
  }
  return {};
}

// A line of hostile depth would end the parser's stack.
constexpr int deepest_line = 256;

}  // namespace

DocumentReader::DocumentReader(std::vector<std::string> files, DocumentRules rules, OnBadLine on_bad_line)
    : files_(std::move(files)), rules_(std::move(rules)), on_bad_line_(std::move(on_bad_line)) {
  std::string faults;
  for (const std::string& name : files_) {
    try {
      bytes_ += InputFile(name).size();
      require_text(name);
    } catch (const Error& error) {
      faults += (faults.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
}

std::int64_t Document::bytes() const {
  std::int64_t bytes = 0;
  for (const TextPart& part : parts) bytes += std::ssize(part.text);
  return bytes;
}

std::string DocumentReader::identity() const {
  std::string text = fmt::format("key {}, prompt {}, chat {}, bad lines {}, text {}", rules_.key, rules_.prompt,
                                 rules_.chat == nullptr ? "" : rules_.chat->identity(),
                                 static_cast<int>(rules_.bad_lines), static_cast<int>(rules_.text));
  for (const std::string& name : files_) {
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(name, ignored).time_since_epoch().count();
    text += fmt::format("; {}, {} bytes, changed {}", name, InputFile(name).size(), time);
  }
  return text;
}

std::int64_t DocumentReader::position() const {
  return before_ + (file_ == nullptr ? 0 : file_->position());
}

std::optional<Document> DocumentReader::next() {
  while (true) {
    if (file_ == nullptr) {
      if (next_file_ == files_.size()) return std::nullopt;
      file_ = std::make_unique<UnpackedFile>(files_[next_file_]);
      json_ = has_json_lines(files_[next_file_++]);
      if (!json_ && rules_.has_losses()) {
        fail_request("\"{}\": plain text has no \"{}\"; prompts, answers and messages come in JSON lines",
                     file_->name(), rules_.chat != nullptr ? rules_.key : rules_.prompt);
      }
    }
    if (auto document = next_of_file()) return document;
    before_ += file_->position();
    file_.reset();
  }
}

std::optional<Document> DocumentReader::next_of_file() {
  if (!json_ && rules_.text == TextDocuments::file) {
    std::string text = file_->rest();
    return text.empty() ? std::nullopt : std::optional(Document{{{std::move(text)}}});
  }
  for (std::string line; file_->next_line(line);) {
    if (is_blank(line)) continue;
    if (!json_) return Document{{{std::move(line)}}};
    if (auto document = document_of(line)) return document;
  }
  return std::nullopt;
}

std::string DocumentReader::take(const nlohmann::ordered_json& object, Document& document) const {
  std::string fault;
  if (rules_.chat == nullptr) {
    if (!rules_.prompt.empty()) document.parts.push_back({text_at(object, rules_.prompt, fault), false});
    document.parts.push_back({text_at(object, rules_.key, fault)});
    return fault;
  }
  const nlohmann::ordered_json* list = value_at(object, rules_.key);
  if (list == nullptr) return fmt::format("the object has no key \"{}\"", rules_.key);
  if (!list->is_array() || list->empty()) return fmt::format("\"{}\" is no list of messages", rules_.key);
  for (std::size_t m = 0; m < list->size(); ++m) {
    for (const char* key : {"role", "content"}) text_at((*list)[m], key, fault);
    if (!fault.empty()) return fmt::format("message {}: {}", m + 1, fault);
  }
  document.joined = true;
  return refusal_of([&] { document.parts = rules_.chat->conversation(*list); }).value_or("");
}

std::optional<Document> DocumentReader::document_of(const std::string& line) {
  std::string fault;
  std::size_t column = 1;
  if (nested_deeper_than(line, deepest_line)) {
    fault = fmt::format("lists and objects are nested deeper than {} levels", deepest_line);
  } else {
    try {
      Document document;
      fault = take(nlohmann::ordered_json::parse(line), document);
      if (fault.empty()) return document;
    } catch (const nlohmann::ordered_json::parse_error& error) {
      column = error.byte;
      fault = "no JSON";
    } catch (const nlohmann::ordered_json::out_of_range&) {
      fault = "a number is too large";
    }
  }
  fault = fmt::format("\"{}\":{}:{}: {}", file_->name(), file_->lines(), column, fault);
  if (rules_.bad_lines == BadLines::refuse) {
    fail_request("{}; --bad-lines skip leaves such lines out and counts them", fault);
  }
  ++skipped_;
  if (on_bad_line_) on_bad_line_(fault);
  return std::nullopt;
}

}  // namespace weft
