// How a conversation becomes one text: the marks that published chat templates put around its messages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// A piece of a document. The loss counts the tokens of learned pieces alone.
struct TextPart {
  std::string text;
  bool learned = true;
  // Encoded together with the piece before it. A token of both counts to this one.
  bool joined = false;
  bool operator==(const TextPart&) const = default;
};

struct ChatRole {
  std::string_view role, spelled;  // of a message, and in the text
};

// A message is `before` spelled `between` content `end` `gap`. Templates are programs in Jinja; these are the ones that
// need no program: transformers makes the same text of the same messages (tools/compare/chat_formats.py).
struct ChatFormat {
  std::string_view name;
  std::string_view begin;  // of the conversation
  std::string_view before, between, end, gap;
  bool trims;  // white space around a content is dropped
  std::vector<ChatRole> roles;
  std::vector<std::string_view> tokens;  // that the tokenizer must have

  // Nothing for a role that the format does not know.
  const ChatRole* role(std::string_view name) const;
};

// chatml (Qwen, Yi and many others, with no system message of their own), llama3, gemma (which knows no system role).
std::span<const ChatFormat> chat_formats();

struct ChatMessage {
  std::string role, content;
};
// The text of a conversation in parts: what the assistant says, with the mark of its end, is learned. Encoded apart,
// the parts have the ids of the whole text, because the others meet at marks. Requires roles that the format knows.
std::vector<TextPart> conversation(const ChatFormat& format, std::span<const ChatMessage> messages);

}  // namespace weft
