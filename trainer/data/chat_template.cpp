#include "trainer/data/chat_template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/jinja/tokens.h"
#include "trainer/tokenizer/json_fields.h"

namespace weft {
namespace {

// The published templates, for tokenizers that have none. They refuse roles that they do not know.
struct NamedTemplate {
  std::string_view name, source;
  std::vector<std::string> marks;
};
std::vector<NamedTemplate> named_templates() {
  return {
      {"chatml",
       "{%- for message in messages %}{% if message.role not in ['system', 'user', 'assistant', 'tool'] %}"
       "{{ raise_exception('chatml knows no role \"' ~ message.role ~ '\"') }}{% endif %}"
       "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
       {"<|im_start|>", "<|im_end|>"}},
      {"llama3",
       "<|begin_of_text|>{% for message in messages %}{% if message.role not in ['system', 'user', 'assistant'] %}"
       "{{ raise_exception('llama3 knows no role \"' ~ message.role ~ '\"') }}{% endif %}"
       "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}"
       "{% endfor %}"
       "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"gemma",
       "<bos>{% for message in messages %}{% if message.role not in ['user', 'assistant', 'model'] %}"
       "{{ raise_exception('gemma knows no role \"' ~ message.role ~ '\"') }}{% endif %}"
       "{{ '<start_of_turn>' + ('user' if message.role == 'user' else 'model') + '\\n' + message.content | trim +"
       " '<end_of_turn>\\n' }}{% endfor %}"
       "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
       {"<bos>", "<start_of_turn>", "<end_of_turn>"}}};
}

// Throws Error (request), beginning with `what`, unless a text begins with another.
void expect_beginning(std::string_view text, std::string_view beginning, const std::string& what) {
  if (text.starts_with(beginning)) return;
  auto at = static_cast<std::size_t>(std::ranges::mismatch(text, beginning).in1 - text.begin());
  while (at > 0 && at < text.size() && continues_character(text[at])) --at;
  fail_request(
      "{}: it has {} where the other has {}. So the template does not tell what the assistant says; a copy of it with "
      "{{% generation %}} around that does, as --chat FILE",
      what, shown_value(std::string(beginning.substr(at))), shown_value(std::string(text.substr(at))));
}

// chat_template of tokenizer_config.json: a text, or a list of objects with name and template.
const std::string* configured_template(const TokenizerJson& settings) {
  const auto found = settings.find("chat_template");
  if (found == settings.end()) return nullptr;
  const TokenizerJson* text = &*found;
  if (found->is_array()) {
    for (const TokenizerJson& each : *found) {
      const bool whole = each.is_object() && each.contains("name") && each.contains("template");
      if (whole && each["name"] == "default") text = &each["template"];
    }
  }
  return text->get_ptr<const std::string*>();
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::map<std::string, jinja::Value> variables,
                           std::vector<std::string> marks, std::time_t now)
    : name_(std::move(name)), variables_(std::move(variables)), marks_(std::move(marks)), template_(source, name_) {
  // A call that goes on on the same day makes the same texts.
  std::tm day = {};
  localtime_r(&now, &day);
  day.tm_hour = day.tm_min = day.tm_sec = 0;
  now_ = std::mktime(&day);
  identity_ = std::string(source);
  for (const auto& [key, value] : variables_) identity_ += fmt::format(", {} {}", key, value->dump());
  if (source.find("strftime_now") != std::string_view::npos) identity_ += fmt::format(", {}", now_);
  identity_ = checksum_text(checksum(identity_));
}

jinja::Rendering ChatTemplate::render(const jinja::Json& messages, std::size_t count, bool prompt) const {
  auto variables = variables_;
  const auto end = messages.begin() + static_cast<std::ptrdiff_t>(count);
  variables["messages"] = jinja::made(jinja::Json(jinja::Json::array_t(messages.begin(), end)));
  variables["tools"] = variables["documents"] = jinja::made(nullptr);
  variables["add_generation_prompt"] = jinja::made(prompt);
  return template_.render(variables, now_);
}

std::vector<jinja::Span> ChatTemplate::learned_spans(const jinja::Json& messages, const std::string& whole) const {
  std::vector<jinja::Span> spans;
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const jinja::Json& role = messages[m]["role"];
    if (role != "assistant" && role != "model") continue;
    const std::string before = render(messages, m, true).text;
    std::string with = m + 1 == messages.size() ? whole : render(messages, m + 1, false).text;
    // Some templates end each text by a mark, which is not there between messages.
    const auto end = variables_.find("eos_token");
    const bool ends =
        end != variables_.end() && with.ends_with(jinja::text_in(*end->second)) && !whole.starts_with(with);
    if (ends) with.resize(with.size() - jinja::text_in(*end->second).size());
    expect_beginning(with, before,
                     fmt::format("{}: the prompt for message {} does not begin the text with it", name_, m + 1));
    expect_beginning(whole, with,
                     fmt::format("{}: the text up to message {} does not begin the whole text", name_, m + 1));
    // The end of a message is learned with it. White space behind a mark only separates messages.
    const std::string_view added = std::string_view(with).substr(before.size()), said = jinja::stripped_right(added);
    const std::string_view content = jinja::stripped_right(messages[m]["content"].get_ref<const std::string&>());
    const bool marked = content.empty() ? !said.empty() : !said.ends_with(content);
    spans.push_back({before.size(), before.size() + (marked ? said.size() : added.size())});
  }
  return spans;
}

std::vector<TextPart> ChatTemplate::conversation(const jinja::Json& messages) const {
  jinja::Json present = jinja::Json::array();
  for (const jinja::Json& message : messages) {
    jinja::Json& members = present.emplace_back(jinja::Json::object());
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) members[key] = value;
    }
  }
  const jinja::Rendering whole = render(present, present.size(), false);
  std::vector<jinja::Span> spans = template_.has_generation() ? whole.generated : learned_spans(present, whole.text);
  spans.push_back({whole.text.size(), whole.text.size()});
  std::ranges::sort(spans, {}, &jinja::Span::begin);
  std::vector<TextPart> parts;
  std::size_t at = 0;
  for (const auto& [begin, end] : spans) {
    if (begin > at) parts.push_back({whole.text.substr(at, begin - at), false});
    at = std::max(at, begin);
    if (end > at) parts.push_back({whole.text.substr(at, end - at), true});
    at = std::max(at, end);
  }
  return parts;
}

ChatTemplate open_chat_template(const std::string& chat, const std::string& tokenizer, std::time_t now) {
  namespace fs = std::filesystem;
  for (NamedTemplate& each : named_templates()) {
    if (chat == each.name) return {each.source, chat, {}, std::move(each.marks), now};
  }
  // Beside bytes there is no file.
  const fs::path folder = fs::is_directory(tokenizer) ? fs::path(tokenizer) : fs::path(tokenizer).parent_path();
  const std::string settings_name = tokenizer == "byte" ? "" : (folder / "tokenizer_config.json").string();
  TokenizerJson settings = TokenizerJson::object();
  const std::string quoted = fmt::format("\"{}\"", settings_name);
  if (fs::exists(settings_name)) settings = parse_outside_json(read_whole_file(settings_name), quoted);
  std::map<std::string, jinja::Value> variables;
  for (const auto& [key, value] : settings.items()) {
    const std::string* text = key.ends_with("_token") ? token_text(settings, key) : nullptr;
    if (text != nullptr) variables[key] = jinja::made(*text);
  }
  const std::string file =
      chat == "tokenizer" && tokenizer != "byte" ? (folder / "chat_template.jinja").string() : chat;
  if (chat != "tokenizer" || fs::exists(file)) return {read_whole_file(file), file, std::move(variables), {}, now};
  const std::string* configured = configured_template(settings);
  if (configured == nullptr) fail_request("the tokenizer \"{}\" has no chat template beside it", tokenizer);
  return {*configured, settings_name + ": chat_template", std::move(variables), {}, now};
}

}  // namespace weft
