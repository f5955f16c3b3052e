// Against encodings that the Python package `tokenizers` printed (tokenizer_golden.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "parallel/runtime/input_file.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tokenizer_sample.h"
#include "trainer/tokenizer/decoder.h"

namespace weft::tokenizer_test {
namespace {

TEST(TokenizerJson, EncodesAsThePackage) {
  for (const tokenizer_golden::Case& golden : tokenizer_golden::cases) {
    const auto tokenizer = sample(Json::parse(golden.parts));
    for (std::size_t i = 0; i < tokenizer_golden::texts.size(); ++i) {
      const std::string_view text = tokenizer_golden::texts[i];
      EXPECT_EQ(tokenizer->encode(text), parsed_ids(golden.ids[i])) << golden.name << ": " << text;
    }
  }
}

TEST(TokenizerJson, DecodesAsThePackage) {
  for (const tokenizer_golden::Case& golden : tokenizer_golden::cases) {
    const auto tokenizer = sample(Json::parse(golden.parts));
    for (std::size_t i = 0; i < tokenizer_golden::texts.size(); ++i) {
      const std::string_view expected = golden.decoded[i].empty() ? tokenizer_golden::texts[i] : golden.decoded[i];
      EXPECT_EQ(tokenizer->decode(parsed_ids(golden.ids[i])), expected) << golden.name << " " << i;
    }
  }
}

// Texts that `tokenizers` 0.23.3 gives. Steps behind ByteFallback see the characters of its bytes. Bytes that are no
// character stay as they are, where the package puts U+FFFD. So the text of more tokens begins with that of fewer.
TEST(TokenizerJson, JoinsBytesIntoCharactersAsThePackage) {
  const auto decoded = [](const Json& behind, const std::vector<std::string>& tokens) {
    const Json json = {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, behind}}};
    return TokenDecoder(&json, "decoder").decode(tokens);
  };
  const auto replace = [](const char* kind, const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
  };
  const Json space = replace("String", "\u2581", " "), each = replace("Regex", ".", "x");
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  EXPECT_EQ(decoded(space, {"<0xC3>", "<0xA9>", "\u2581a", "<0xE2>", "<0x96>", "<0x81>", "b"}), "\u00e9 a b");
  EXPECT_EQ(decoded(each, {"<0xC3>", "<0xA9>", "b", "<0xE2>", "<0x96>", "<0x81>"}), "xxx");
  EXPECT_EQ(decoded(each, {"<0xC3>", "<0xA9>", "<0xE2>", "<0x96>"}), "\xc3\xa9\xe2\x96");
  EXPECT_EQ(decoded(space, {"b", "<0xC3>", "b"}),
            "b\xc3"
            "b");
  EXPECT_EQ(decoded(space, {"b", "<0xC3>"}), "b\xc3");
  EXPECT_EQ(decoded(strip, {"<0x20>", "<0x20>"}), " ");
}

// Ids that `tokenizers` 0.23.3 gives. A token that takes the white space beside it leaves none of the next one.
TEST(TokenizerJson, AddedTokensOfWhiteSpaceTakeARunOnce) {
  const auto tokenizer =
      sample({{"added_tokens", {{{"id", 316}, {"content", "  "}, {"lstrip", true}, {"rstrip", true}}}}});
  EXPECT_EQ(tokenizer->encode("!  \""), (std::vector<std::int32_t>{0, 316, 1}));
  EXPECT_EQ(tokenizer->encode("!    \""), (std::vector<std::int32_t>{0, 316, 1}));
  EXPECT_EQ(tokenizer->encode("!     \"      "), (std::vector<std::int32_t>{0, 316, 1, 316}));
}

Json with_merges_as_pairs(Json json) {
  for (Json& merge : json["model"]["merges"]) {
    const std::string both = merge.get<std::string>();
    merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
  }
  return json;
}

// A reader that knows one spelling would load no merges and give bytes.
TEST(TokenizerJson, ReadsBothSpellingsOfMerges) {
  const Json json = sample_json();
  const auto old = parse_tokenizer_json(json.dump(), "a"),
             pairs = parse_tokenizer_json(with_merges_as_pairs(json).dump(), "b");
  EXPECT_EQ(old->encode(" the dog"), (std::vector<std::int32_t>{258, 273}));
  EXPECT_EQ(pairs->encode(" the dog"), old->encode(" the dog"));
  EXPECT_EQ(pairs->content_hash(), old->content_hash());
}

TEST(TokenizerJson, HashesTheMeaning) {
  const Json json = sample_json();
  const auto hash = [](const Json& changed) { return parse_tokenizer_json(changed.dump(), "x")->content_hash(); };
  const std::string original = hash(json);
  Json same = json;
  same["model"].update({{"ignore_merges", false}, {"fuse_unk", false}, {"dropout", nullptr}, {"unk_token", nullptr}});
  same["truncation"] = nullptr;
  same["pre_tokenizer"].erase("use_regex");
  EXPECT_EQ(hash(same), original);
  EXPECT_EQ(parse_tokenizer_json(json.dump(4), "x")->content_hash(), original);
  std::vector<Json> others(5, json);
  std::swap(others[0]["model"]["merges"][0], others[0]["model"]["merges"][1]);
  std::swap(others[1]["model"]["vocab"]["a"], others[1]["model"]["vocab"]["b"]);
  others[2]["pre_tokenizer"]["use_regex"] = false;
  others[3]["normalizer"] = {{"type", "NFC"}};
  others[4]["model"]["ignore_merges"] = true;
  for (const Json& other : others) EXPECT_NE(hash(other), original);
}

Json added_token(int id, const char* content, bool special) {
  return {{"id", id}, {"content", content}, {"special", special}};
}

TEST(TokenizerJson, LeavesSpecialTokensInPlainText) {
  const auto tokenizer =
      sample({{"added_tokens", {added_token(316, "<|end|>", true), added_token(317, "dog dog", false)}}});
  const auto recognised = tokenizer->encode("the<|end|>dog dog");
  EXPECT_EQ(recognised[recognised.size() - 2], 316);
  const auto plain = tokenizer->encode("the<|end|>dog dog", SpecialTokens::plain_text);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 316), 0);
  EXPECT_EQ(plain.back(), 317);
  EXPECT_EQ(tokenizer->decode(plain), "the<|end|>dog dog");
  EXPECT_EQ(tokenizer->vocab_size(), 318);
}

TEST(TokenizerJson, FindsTheEndOfText) {
  EXPECT_EQ(sample()->end_of_text(), std::nullopt);
  const Json parts = {
      {"added_tokens", {added_token(316, "<|im_end|>", true), added_token(317, "<|endoftext|>", true)}}};
  EXPECT_EQ(sample(parts)->end_of_text(), 317);
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json", sample_json(parts).dump());
  EXPECT_EQ(open_tokenizer(folder.path().string())->end_of_text(), 317);
  for (const char* config : {R"({"eos_token": "<|im_end|>"})", R"({"eos_token": {"content": "<|im_end|>"}})"}) {
    write_file(folder / "tokenizer_config.json", config);
    EXPECT_EQ(open_tokenizer(folder.path().string())->end_of_text(), 316);
    EXPECT_EQ(open_tokenizer((folder / "tokenizer.json").string())->end_of_text(), 316);
  }
}

TEST(TokenizerJson, ReportsTheTemplateWithoutApplyingIt) {
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto special = [](const char* id) { return Json{{"SpecialToken", {{"id", id}, {"type_id", 0}}}}; };
  const auto ids = [](const char* id, Json list) { return Json{{"id", id}, {"ids", list}, {"tokens", {id}}}; };
  const Json processor = {{"type", "TemplateProcessing"},
                          {"single", {special("<s>"), text, special("</s>")}},
                          {"pair", Json::array()},
                          {"special_tokens", {{"<s>", ids("<s>", {316})}, {"</s>", ids("</s>", {317, 316})}}}};
  const Json bytes = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  Json parts = {{"added_tokens", {added_token(316, "<s>", true), added_token(317, "</s>", true)}},
                {"post_processor", {{"type", "Sequence"}, {"processors", {bytes, processor}}}}};
  const auto tokenizer = sample(parts);
  EXPECT_EQ(tokenizer->frame(), (TextFrame{{316}, {317, 316}}));
  EXPECT_EQ(tokenizer->encode("he"), std::vector<std::int32_t>{256});
  // Roberta's writes the same as a begin and an end.
  Json roberta = parts;
  roberta["post_processor"] = {{"type", "RobertaProcessing"},
                               {"sep", {"</s>", 317}},
                               {"cls", {"<s>", 316}},
                               {"trim_offsets", true},
                               {"add_prefix_space", false}};
  EXPECT_EQ(sample(roberta)->frame(), (TextFrame{{316}, {317}}));
  parts.erase("added_tokens");
  EXPECT_TRUE(has(refusal_of_parts(parts), "no token has the id 316"));
}

// Every byte, in and out of characters, comes back.
TEST(TokenizerJson, DecodesWhatItEncodes) {
  const auto tokenizer = sample();
  std::string text;
  for (char32_t code = 1; code < 0x11000; code += 7) {
    if (code >= 0xd800 && code < 0xe000) continue;
    if (code < 0x80) text += static_cast<char>(code);
    if (code >= 0x80 && code < 0x800)
      text += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    if (code >= 0x800 && code < 0x10000) {
      text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
               static_cast<char>(0x80 | (code & 63))};
    }
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  for (std::int32_t id = 0; id < 256; ++id) EXPECT_EQ(tokenizer->decode(std::vector{id}).size(), 1u);
}

TEST(TokenizerJson, RefusesIdsWithoutToken) {
  const auto tokenizer = sample();
  for (const std::int32_t id : {-1, 316, 1 << 30}) {
    EXPECT_TRUE(has(refusal_of([&] {
                      tokenizer->decode(std::vector{0, id});
                    }).value_or(""),
                    fmt::format("the id {}", id)));
  }
  Json hole = sample_json();
  hole["model"]["vocab"]["unused"] = 400;
  const auto with_hole = parse_tokenizer_json(hole.dump(), "x");
  EXPECT_EQ(with_hole->vocab_size(), 401);
  EXPECT_TRUE(refusal_of([&] { with_hole->decode(std::vector{399}); }));
}

// `tokenizers` leaves such a character out.
TEST(TokenizerJson, RefusesCharactersThatTheVocabularyCannotExpress) {
  const Json model = {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}};
  const auto tokenizer = sample({{"model", model}, {"pre_tokenizer", nullptr}});
  EXPECT_EQ(tokenizer->encode("abab"), (std::vector<std::int32_t>{2, 2}));
  EXPECT_TRUE(has(refusal_of([&] { tokenizer->encode("ab\u00e9"); }).value_or(""), "the character \u00e9"));
}

TEST(TokenizerJson, IsSafeForSeveralThreads) {
  const auto tokenizer = sample();
  std::vector<std::vector<std::int32_t>> expected, found(8);
  for (const std::string_view text : tokenizer_golden::texts) expected.push_back(tokenizer->encode(text));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (tokenizer->encode(tokenizer_golden::texts[i]) != expected[i]) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(TokenizerJson, TakesBytesAsTokens) {
  const auto tokenizer = open_tokenizer("byte");
  EXPECT_EQ(tokenizer->encode("a\xff"), (std::vector<std::int32_t>{97, 255}));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{97, 255}), "a\xff");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->token_id("a"), 97);
  EXPECT_TRUE(refusal_of([&] { tokenizer->decode(std::vector<std::int32_t>{256}); }));
}

}  // namespace
}  // namespace weft::tokenizer_test
