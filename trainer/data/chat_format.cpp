#include "trainer/data/chat_format.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// What Jinja's trim takes away: Python's str.strip() of ASCII.
std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\n\r\v\f\x1c\x1d\x1e\x1f";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

}  // namespace

const ChatRole* ChatFormat::role(std::string_view wanted) const {
  const auto found = std::ranges::find(roles, wanted, &ChatRole::role);
  return found == roles.end() ? nullptr : &*found;
}

std::span<const ChatFormat> chat_formats() {
  static const std::vector<ChatFormat> formats = {
      {.name = "chatml",
       .begin = "",
       .before = "<|im_start|>",
       .between = "\n",
       .end = "<|im_end|>",
       .gap = "\n",
       .trims = false,
       .roles = {{"system", "system"}, {"user", "user"}, {"assistant", "assistant"}, {"tool", "tool"}},
       .tokens = {"<|im_start|>", "<|im_end|>"}},
      {.name = "llama3",
       .begin = "<|begin_of_text|>",
       .before = "<|start_header_id|>",
       .between = "<|end_header_id|>\n\n",
       .end = "<|eot_id|>",
       .gap = "",
       .trims = true,
       .roles = {{"system", "system"}, {"user", "user"}, {"assistant", "assistant"}},
       .tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {.name = "gemma",
       .begin = "<bos>",
       .before = "<start_of_turn>",
       .between = "\n",
       .end = "<end_of_turn>",
       .gap = "\n",
       .trims = true,
       .roles = {{"user", "user"}, {"assistant", "model"}, {"model", "model"}},
       .tokens = {"<bos>", "<start_of_turn>", "<end_of_turn>"}},
  };
  return formats;
}

std::vector<TextPart> conversation(const ChatFormat& format, std::span<const ChatMessage> messages) {
  std::vector<TextPart> parts = {{std::string(format.begin), false}};
  for (const ChatMessage& message : messages) {
    const ChatRole* role = format.role(message.role);
    require(role != nullptr, "messages have roles that the format knows");
    const ChatRole* assistant = format.role("assistant");
    parts.back().text += std::string(format.before) + std::string(role->spelled) + std::string(format.between);
    const std::string_view content = format.trims ? trimmed(message.content) : std::string_view(message.content);
    parts.push_back(
        {std::string(content) + std::string(format.end), role->spelled == assistant->spelled, /*joined=*/true});
    parts.push_back({std::string(format.gap), false});
  }
  std::erase_if(parts, [](const TextPart& part) { return part.text.empty(); });
  return parts;
}

}  // namespace weft
