// The way of a conversation into one text: by a chat template (jinja/template.h), which also tells the parts to learn.
#pragma once

#include <ctime>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/jinja/template.h"

namespace weft {

// A piece of a document. The loss counts the tokens of learned pieces alone.
struct TextPart {
  std::string text;
  bool learned = true;
  bool operator==(const TextPart&) const = default;
};

// Immutable after construction.
class ChatTemplate {
 public:
  // `source`: the template, whose `name` stands in messages. `marks`: tokens that the tokenizer must have. `variables`:
  // of the template, besides those of a conversation. `now`: the template sees its day. Throws Error (request),
  // `name:line: why`.
  ChatTemplate(std::string_view source, std::string name, std::map<std::string, jinja::Value> variables,
               std::vector<std::string> marks, std::time_t now);

  // The text of a list of objects with role and content, as transformers renders it (tools, documents: none; members
  // that are null: absent). Learned is what {% generation %} marks, in templates that have it. In others it is the text
  // that the messages of the assistant add to the text that prompts for them. White space behind a mark of their end is
  // not learned (except with the token behind the document, Document::ends_learned). Throws Error (request) where the
  // template refuses the conversation. So it does where such texts do not begin one another, so that the learned parts
  // are not known.
  std::vector<TextPart> conversation(const nlohmann::ordered_json& messages) const;

  const std::vector<std::string>& marks() const { return marks_; }
  // Equal for templates that make equal texts.
  const std::string& identity() const { return identity_; }

 private:
  jinja::Rendering render(const nlohmann::ordered_json& messages, std::size_t count, bool prompt) const;
  std::vector<jinja::Span> learned_spans(const nlohmann::ordered_json& messages, const std::string& whole) const;

  std::string name_;
  std::map<std::string, jinja::Value> variables_;
  std::vector<std::string> marks_;
  std::string identity_;
  std::time_t now_;
  jinja::Template template_;
};

// `chat` is "tokenizer", for chat_template.jinja or chat_template of tokenizer_config.json beside the tokenizer's file.
// Or it is chatml, llama3 or gemma, for templates of those names, or the file of a template. Tokens that
// tokenizer_config.json names, as bos_token, are variables. Throws Error (request) for a template that is not there,
// and as ChatTemplate.
ChatTemplate open_chat_template(const std::string& chat, const std::string& tokenizer, std::time_t now);

}  // namespace weft
