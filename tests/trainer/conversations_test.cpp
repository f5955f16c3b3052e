// Conversations as texts of their chat templates: their ids, the tokens that learned parts touch, and bad ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tokenizer_sample.h"
#include "trainer/data/chat_template.h"
#include "trainer/data/token_file.h"
#include "trainer/data/tokenize.h"

namespace weft {
namespace {

void add_marks(nlohmann::json& tokenizer, std::initializer_list<const char*> marks) {
  for (const char* mark : marks) {
    auto& added = tokenizer["added_tokens"];
    added.push_back({{"id", tokenizer["model"]["vocab"].size() + added.size()},
                     {"content", mark},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
}

// Texts that transformers 4.57 made by apply_chat_template of the published templates, and what of them is learned.
TEST(Conversations, AreTheTextsOfTheirTemplates) {
  using Json = nlohmann::ordered_json;
  const Json messages = {{{"role", "system"}, {"content", "Weave. "}},
                         {{"role", "user"}, {"content", " Warp?\n"}},
                         {{"role", "assistant"}, {"content", "Weft.\n"}}};
  std::map<std::string_view, std::pair<std::string, std::string>> found;
  for (const char* name : {"chatml", "llama3", "gemma"}) {
    Json taken = messages;
    if (name == std::string_view("gemma")) taken.erase(0);  // which knows no system message
    std::string text, learned;
    for (const TextPart& part : open_chat_template(name, "byte", 0).conversation(taken)) {
      text += part.text;
      if (part.learned) learned += part.text;
    }
    found[name] = {text, learned};
  }
  EXPECT_EQ(
      found["chatml"].first,
      "<|im_start|>system\nWeave. <|im_end|>\n<|im_start|>user\n Warp?\n<|im_end|>\n<|im_start|>assistant\nWeft.\n"
      "<|im_end|>\n");
  EXPECT_EQ(found["chatml"].second, "Weft.\n<|im_end|>");
  EXPECT_EQ(found["llama3"].first,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nWeave.<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\nWarp?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nWeft.<|eot_id|>");
  EXPECT_EQ(found["llama3"].second, "Weft.<|eot_id|>");
  EXPECT_EQ(found["gemma"].first,
            "<bos><start_of_turn>user\nWarp?<end_of_turn>\n<start_of_turn>model\nWeft.<end_of_turn>\n");
  EXPECT_EQ(found["gemma"].second, "Weft.<end_of_turn>");
}

// The ids are those of the whole text, as `tokenizers` encodes it, although marks and contents are parts. Here line
// ends of two parts are one token. The loss counts what the assistant says, and a token that is half its.
TEST(Conversations, HaveTheIdsOfTheWholeText) {
  const TemporaryFolder folder;
  nlohmann::json json = tokenizer_test::sample_json();
  const std::string line_end = "\u010a";
  json["model"]["vocab"][line_end + line_end] = json["model"]["vocab"].size();
  json["model"]["merges"].push_back(line_end + " " + line_end);
  add_marks(json, {"<|im_start|>", "<|im_end|>"});
  write_file(folder / "tok.json", json.dump());
  write_file(folder / "chat.jsonl",
             R"({"messages": [{"role": "user", "content": "warp?"}, {"role": "assistant", "content": "\n\nweft"},)"
             R"( {"role": "user", "content": "\n"}, {"role": "assistant", "content": "loom"}]})"
             "\n");
  const ChatTemplate chatml = open_chat_template("chatml", "byte", 0);
  DocumentReader documents({(folder / "chat.jsonl").string()}, {.key = "messages", .chat = &chatml});
  const std::string prefix = (folder / "chat").string();
  tokenize(documents, {.tokenizer = (folder / "tok.json").string(),
                       .prefix = prefix,
                       .losses = true,
                       .marks = chatml.marks(),
                       .end_documents = false});
  const std::string whole =
      "<|im_start|>user\nwarp?<|im_end|>\n<|im_start|>assistant\n\n\nweft<|im_end|>\n<|im_start|>user\n\n<|im_end|>\n"
      "<|im_start|>assistant\nloom<|im_end|>\n";
  const auto tokenizer = open_tokenizer((folder / "tok.json").string());
  const std::vector<std::int32_t> expected = tokenizer->encode(whole);
  const TokenFile file(prefix);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
  std::vector<std::uint8_t> counts(ids.size());
  file.read(0, ids);
  file.read_losses(0, counts);
  EXPECT_EQ(ids, expected);
  std::vector<std::int32_t> learned;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (counts[i] != 0) learned.push_back(ids[i]);
  }
  EXPECT_EQ(tokenizer->decode(learned), "\n\n\nweft<|im_end|>loom<|im_end|>");
}

// A token counts if a learned part has a byte of it. Without marks around the parts, white space of two parts meets.
TEST(Conversations, CountTheTokensThatLearnedPartsTouch) {
  const TemporaryFolder folder;
  nlohmann::json json = tokenizer_test::sample_json();
  for (const std::string blank : {"\u010a", "\u0120"}) {
    json["model"]["vocab"][blank + blank] = json["model"]["vocab"].size();
    json["model"]["merges"].push_back(blank + " " + blank);
  }
  write_file(folder / "tok.json", json.dump());
  const ChatTemplate chat(
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
      "{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}",
      "t", {}, {}, 0);
  const std::vector<std::string> words = {"the", " weft", "\n", "\n\n", "  ", " ", "é", " a", "織", "\t", ".", "'s"};
  std::string lines;
  std::uint32_t state = 7;
  for (int line = 0; line < 200; ++line) {
    nlohmann::json messages = nlohmann::json::array();
    for (int m = 0; m < 6; ++m) {
      std::string content;
      for (int word = 0; word < 4; ++word) {
        state = state * 1664525u + 1013904223u;
        content += words[(state >> 16) % words.size()];
      }
      messages.push_back({{"role", m % 2 == 0 ? "user" : "assistant"}, {"content", content}});
    }
    lines += nlohmann::json{{"messages", messages}}.dump() + "\n";
  }
  write_file(folder / "chat.jsonl", lines);
  const DocumentRules rules = {.key = "messages", .chat = &chat};
  DocumentReader documents({(folder / "chat.jsonl").string()}, rules), again({(folder / "chat.jsonl").string()}, rules);
  const std::string prefix = (folder / "chat").string();
  tokenize(documents,
           {.tokenizer = (folder / "tok.json").string(), .prefix = prefix, .losses = true, .end_documents = false});
  const auto tokenizer = open_tokenizer((folder / "tok.json").string());
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> expected;
  while (const auto document = again.next()) {
    std::string text;
    std::vector<bool> bytes;
    for (const TextPart& part : document->parts) {
      text += part.text;
      bytes.resize(text.size(), part.learned);
    }
    std::size_t end = 0;
    for (const std::int32_t id : tokenizer->encode(text)) {  // of bytes, so each decodes by itself
      const std::size_t begin = end;
      end += tokenizer->decode(std::vector{id}).size();
      ids.push_back(id);
      expected.push_back(std::count(bytes.begin() + std::ptrdiff_t(begin), bytes.begin() + std::ptrdiff_t(end), true) >
                         0);
    }
    ASSERT_EQ(end, text.size());
  }
  const TokenFile file(prefix);
  ASSERT_EQ(file.tokens(), std::ssize(ids));
  std::vector<std::int32_t> found(ids.size());
  std::vector<std::uint8_t> counts(ids.size());
  file.read(0, found);
  file.read_losses(0, counts);
  EXPECT_EQ(found, ids);
  EXPECT_EQ(counts, expected);
}

// A model that ends its answer writes the template's line end between the mark and the token behind the conversation.
// What the user says last is not learned, and neither is what stands behind it.
TEST(Conversations, LearnTheirEndBehindAnAnswer) {
  const TemporaryFolder folder;
  nlohmann::json json = tokenizer_test::sample_json();
  add_marks(json, {"<|im_end|>", "<|endoftext|>"});
  write_file(folder / "tok.json", json.dump());
  const auto tokenizer = open_tokenizer((folder / "tok.json").string());
  const std::string user = R"({"role": "user", "content": "warp"}, )", empty = R"(, {"role": "user", "content": ""})";
  const std::string answer = R"({"role": "assistant", "content": "weft"})";
  int datasets = 0;
  // The text of the tokens that count.
  const auto counted = [&](const std::string& chat, const std::string& messages, bool end = true) {
    write_file(folder / "t.jinja", chat);
    write_file(folder / "chat.jsonl", "{\"messages\": [" + messages + "]}\n");
    const ChatTemplate opened = open_chat_template(chat == "chatml" ? chat : (folder / "t.jinja").string(), "byte", 0);
    DocumentReader reader({(folder / "chat.jsonl").string()}, {.key = "messages", .chat = &opened});
    const std::string prefix = (folder / fmt::format("chat{}", ++datasets)).string();
    tokenize(reader,
             {.tokenizer = (folder / "tok.json").string(), .prefix = prefix, .losses = true, .end_documents = end});
    const TokenFile file(prefix);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens())), learned;
    std::vector<std::uint8_t> counts(ids.size());
    file.read(0, ids);
    file.read_losses(0, counts);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (counts[i] != 0) learned.push_back(ids[i]);
    }
    return tokenizer->decode(learned);
  };
  const std::string marked =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
      "{% endgeneration %}{{ '\\n' }}{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}";
  for (const std::string& chat : {std::string("chatml"), marked}) {
    EXPECT_EQ(counted(chat, user + answer), "weft<|im_end|>\n<|endoftext|>") << chat;
    EXPECT_EQ(counted(chat, user + answer + ", " + user + answer), "weft<|im_end|>weft<|im_end|>\n<|endoftext|>");
    EXPECT_EQ(counted(chat, user + answer, false), "weft<|im_end|>") << chat;
    EXPECT_EQ(counted(chat, user + answer + empty), "weft<|im_end|>") << chat;
  }
  // Behind the answer stands a mark that such a template does not have learned, so its end is not reached.
  EXPECT_EQ(counted("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
                    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}{% endfor %}",
                    user + answer),
            "weft");
  // A user's last word that is white space, in a text without marks.
  const std::string plain = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
  EXPECT_EQ(counted(plain, user + answer), "weft\n<|endoftext|>");
  EXPECT_EQ(counted(plain, user + answer + empty), "weft\n");
}

TEST(Conversations, BadOnesAreNamed) {
  const TemporaryFolder folder;
  const ChatTemplate gemma = open_chat_template("gemma", "byte", 0);
  // The fault is behind the mark.
  for (const auto& [marked, why] : std::map<std::string, std::string>{
           {R"(|{"text": 1})", "no key \"messages\""},
           {R"({"messages": |[]})", "has no message"},
           {R"({"messages": |{"role": "user"}})", "is no list of messages"},
           {R"({"messages": [{"role": "user", "content": "a"}, |{"role": "user"}]})",
            "message 2: the object has no key"},
           {R"({"messages": [|3]})", "message 1: the object has no key \"role\""},
           {R"({"messages": [{"role": "user", "content": |3}]})", "message 1: \"content\" is a number"},
           {R"({"messages": |[{"role": "user", "content": "a"}]})",
            "no message is learned: none has the role assistant or model"},
           {R"({"messages": |[{"role": "system", "content": "a"}]})", "gemma:1: gemma knows no role \"system\""}}) {
    std::string line = marked;
    line.erase(line.find('|'), 1);
    write_file(folder / "chat.jsonl", line + "\n");
    try {
      DocumentReader({(folder / "chat.jsonl").string()}, {.key = "messages", .chat = &gemma}).next();
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      const std::string place = fmt::format("chat.jsonl\":1:{}: ", marked.find('|') + 1);
      EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace weft
