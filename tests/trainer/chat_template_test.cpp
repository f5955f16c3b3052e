// The learned parts of a conversation, and the places where a chat template is found.
#include "trainer/data/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

Json said(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

ChatTemplate published(const std::string& name) {
  return {read_whole_file(WEFT_SOURCE_DIR "/tests/trainer/chat_templates/" + name + ".jinja"),
          name,
          {{"bos_token", jinja::made("<s>")}, {"eos_token", jinja::made("</s>")}},
          {},
          0};
}

// The learned parts, each in brackets.
std::string learned(const ChatTemplate& format, const Json& messages) {
  std::string text;
  for (const TextPart& part : format.conversation(messages)) text += part.learned ? "[" + part.text + "]" : "";
  return text;
}
std::string whole(const ChatTemplate& format, const Json& messages) {
  std::string text;
  for (const TextPart& part : format.conversation(messages)) text += part.text;
  return text;
}

const Json two = {said("user", "Warp?"), said("assistant", "Weft."), said("user", "Loom?"), said("assistant", "Yes.")};

// Written by hand: the answers, with what ends them.
TEST(LearnedParts, AreWhatTheAssistantAdds) {
  for (const auto& [name, parts] : std::map<std::string, std::string>{
           {"chatml", "[Weft.<|im_end|>][Yes.<|im_end|>]"},
           {"llama2", "[ Weft. </s>][ Yes. </s>]"},
           {"llama3", "[Weft.<|eot_id|>][Yes.<|eot_id|>]"},
           {"llama3_2", "[Weft.<|eot_id|>][Yes.<|eot_id|>]"},
           {"qwen2", "[Weft.<|im_end|>][Yes.<|im_end|>]"},
           {"qwen2_5", "[Weft.<|im_end|>][Yes.<|im_end|>]"},
           {"mistral", "[Weft.</s>][Yes.</s>]"},
           {"mistral_nemo", "[Weft.</s>][Yes.</s>]"},
           {"gemma", "[Weft.<end_of_turn>][Yes.<end_of_turn>]"},
           {"gemma3", "[Weft.<end_of_turn>][Yes.<end_of_turn>]"},
           {"phi3", "[Weft.<|end|>][Yes.<|end|>\n</s>]"},  // a mark ends the whole text
           {"phi4", "[Weft.<|im_end|>][Yes.<|im_end|>]"},
           {"zephyr", "[Weft.</s>][Yes.</s>]"},
           {"deepseek_v2", "[ Weft.</s>][ Yes.</s>]"},
           {"deepseek_v3", "[Weft.<｜end▁of▁sentence｜>][Yes.<｜end▁of▁sentence｜>]"},
           {"olmo2", "[Weft.</s>][Yes.</s>]"},
           {"glm4", "[\nWeft.][\nYes.]"},
           {"smollm", "[Weft.<|im_end|>][Yes.<|im_end|>]"},
           {"smollm3", "[<|im_start|>assistant\nWeft.<|im_end|>\n][<|im_start|>assistant\nYes.<|im_end|>\n]"},
           {"marked", "[Weft.<|im_end|>][Yes.<|im_end|>]"}}) {
    EXPECT_EQ(learned(published(name), two), parts) << name;
  }
  const Json one = {two[0], two[1]};
  EXPECT_EQ(learned(published("qwen3"), one), "[<think>\n\n</think>\n\nWeft.<|im_end|>]");
  EXPECT_EQ(learned(published("chatml"), {two[0], said("assistant", "")}), "[<|im_end|>]");
  // Nothing but white space ends a message: it is learned.
  const ChatTemplate plain(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}",
      "plain", {}, {}, 0);
  EXPECT_EQ(learned(plain, one), "[Weft.\n\n]");
}

TEST(LearnedParts, AreRefusedWhereTheyAreNotKnown) {
  const auto why = [](const ChatTemplate& format) {
    return refusal_of([&] { format.conversation(two); }).value_or("");
  };
  // The last answer is written unlike the others, and so is the last question.
  EXPECT_EQ(why(published("qwen3"))
                .find("qwen3: the text up to message 2 does not begin the whole text: it has "
                      "\"<think>\\n\\n</think>\\n\\nWeft.<|im_end|>\\n\" where the other has \"Weft."),
            0u)
      << why(published("qwen3"));
  const ChatTemplate prompts("{% for m in messages %}{{ m.content }}{% endfor %}{{ 'A:' if add_generation_prompt }}",
                             "prompts", {}, {}, 0);
  EXPECT_EQ(why(prompts).find("prompts: the prompt for message 2 does not begin the text with it"), 0u) << why(prompts);
}

TEST(ChatTemplate, HasNoMembersThatAreNull) {
  const ChatTemplate format("{% for m in messages %}{{ 'x' in m }}{{ m.content }}{% endfor %}", "t", {}, {}, 0);
  Json messages = Json::array({said("user", "a")});
  messages[0]["x"] = nullptr;
  messages[0]["tool_calls"] = nullptr;
  EXPECT_EQ(whole(format, messages), "Falsea");
}

TEST(ChatTemplate, IsFoundBesideTheTokenizer) {
  const TemporaryFolder folder;
  const std::string place = folder.path().string();
  const Json messages = Json::array({said("user", "a")});
  const auto text = [&](const std::string& tokenizer) {
    return whole(open_chat_template("tokenizer", tokenizer, 0), messages);
  };
  const auto refusal = [&] { return refusal_of([&] { text(place); }).value_or(""); };
  EXPECT_EQ(refusal(), "the tokenizer \"" + place + "\" has no chat template beside it");
  write_file(
      folder / "tokenizer_config.json",
      R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": null, "chat_template": "{{ bos_token + )"
      R"(messages[0].content + eos_token }}{{ pad_token is defined }}"})");
  EXPECT_EQ(text(place), "<b>a<e>False");
  EXPECT_EQ(text(place + "/tokenizer.json"), "<b>a<e>False");
  write_file(
      folder / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y{{ 1 }}"}]})");
  EXPECT_EQ(text(place), "y1");
  write_file(folder / "tokenizer_config.json", R"({"bos_token": "<b>", "chat_template": "{{ 1\n + }}"})");
  EXPECT_EQ(refusal().find(place + "/tokenizer_config.json: chat_template:2: "), 0u) << refusal();
  write_file(folder / "chat_template.jinja", "{{ bos_token }}z");
  EXPECT_EQ(text(place), "<b>z");
  write_file(folder / "own.jinja", "own{{ bos_token }}");
  EXPECT_EQ(whole(open_chat_template(folder / "own.jinja", place, 0), messages), "own<b>");
  EXPECT_THROW(open_chat_template("nosuch", place, 0), Error);
  // It travels with the tokenizer.
  write_file(folder / "tokenizer.json", "{}");
  const auto parts = tokenizer_parts(place);
  EXPECT_TRUE(std::ranges::any_of(parts, [](const auto& part) { return part.kept_name == "chat_template.jinja"; }));
  EXPECT_THROW(open_chat_template("tokenizer", "byte", 0), Error);
}

// Equal texts have equal identities; a template that tells the day has another one on each.
TEST(ChatTemplate, HasAnIdentity) {
  constexpr std::time_t noon = 1'721'995'200, day = 86'400;
  const auto identity = [](const char* source, const char* bos, std::time_t now) {
    return ChatTemplate(source, "t", {{"bos_token", jinja::made(bos)}}, {}, now).identity();
  };
  EXPECT_EQ(identity("a", "b", noon), identity("a", "b", noon + day));
  EXPECT_NE(identity("a", "b", noon), identity("a", "c", noon));
  EXPECT_NE(identity("a", "b", noon), identity("b", "b", noon));
  const char* dated = "{{ strftime_now('%Y-%m-%d %H') }}";
  EXPECT_EQ(identity(dated, "", noon), identity(dated, "", noon + 60));
  EXPECT_NE(identity(dated, "", noon), identity(dated, "", noon + day));
  EXPECT_EQ(whole(ChatTemplate(dated, "t", {}, {}, noon), Json::array({said("user", "a")})).substr(10), " 00");
}

}  // namespace
}  // namespace weft
