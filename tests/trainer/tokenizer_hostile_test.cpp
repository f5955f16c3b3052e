// Faulty tokenizer files, and parts that Weft does not compute.
#include <gtest/gtest.h>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tokenizer_sample.h"
#include "trainer/tokenizer/bpe_tokenizer.h"

namespace weft::tokenizer_test {
namespace {

Json with_model(const Json& changes) {
  Json model = sample_json()["model"];
  model.update(changes);
  return {{"model", model}};
}

Json step(const char* type) {
  return {{"type", type}};
}

TEST(TokenizerHostile, RefusesPartsByName) {
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const auto changed = [](Json json, const char* key, Json value) {
    json[key] = std::move(value);
    return json;
  };
  const std::pair<Json, const char*> cases[] = {
      {{{"truncation", {{"max_length", 512}}}}, "truncation is an object of 1 entries: it would cut off texts"},
      {{{"padding", {{"strategy", "Fixed"}}}}, "padding is"},
      {{{"version", "2.0"}}, "version is \"2.0\""},
      {{{"surprise", 1}}, "surprise is not supported"},
      {{{"normalizer", step("Precompiled")}}, "normalizer is \"Precompiled\", which Weft does not compute"},
      {{{"normalizer", step("BertNormalizer")}}, "normalizer is \"BertNormalizer\""},
      {{{"normalizer", {{"type", "Sequence"}, {"normalizers", {step("NFC"), step("Nmt")}}}}},
       "normalizers[1] is \"Nmt\""},
      {{{"normalizer", {{"type", "Strip"}}}}, "strip_left is missing"},
      {{{"pre_tokenizer", step("UnicodeScripts")}}, "pre_tokenizer is \"UnicodeScripts\""},
      {{{"pre_tokenizer", changed(split, "behavior", "Sometimes")}}, "behavior is \"Sometimes\""},
      {{{"pre_tokenizer", changed(split, "pattern", {{"Regex", "[a&&b]"}})}},
       "pre_tokenizer: pattern: the pattern [a&&b] has &&"},
      {{{"pre_tokenizer", changed(split, "pattern", "a")}}, "pattern is \"a\", not an object"},
      {{{"pre_tokenizer", changed(split, "limit", 3)}}, "limit is not supported"},
      {{{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}}}, "replacement is \"ab\", not one character"},
      {{{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}}}},
       "add_prefix_space is false, but prepend_scheme is always"},
      {{{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}}},
        {"normalizer", step("NFC")}},
       "a Metaspace with prepend_scheme first behind a normalizer"},
      {{{"decoder", step("WordPiece")}}, "decoder is \"WordPiece\""},
      {{{"decoder", {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}}}}, "start -1"},
      {{{"post_processor", step("BertProcessing")}}, "post_processor is \"BertProcessing\""},
      {{{"post_processor", {{"type", "RobertaProcessing"}, {"cls", {"<s>", -1}}, {"sep", {"</s>", 2}}}}},
       "cls is a list of 2 entries, not a token and its id"},
      {with_model({{"type", "Unigram"}}), "model: type is \"Unigram\"; Weft reads the model BPE"},
      {with_model({{"type", "WordPiece"}}), "type is \"WordPiece\""},
      {with_model({{"dropout", 0.1}}), "dropout is 0.1: encodings would be random"},
      {with_model({{"end_of_word_suffix", "</w>"}}), "end_of_word_suffix is \"</w>\""},
      {with_model({{"continuing_subword_prefix", "##"}}), "continuing_subword_prefix is \"##\""},
      {with_model({{"ignore_merges", 1}}), "ignore_merges is 1, not true or false"},
  };
  for (const auto& [parts, part] : cases)
    EXPECT_TRUE(has(refusal_of_parts(parts), part)) << part << "\n" << refusal_of_parts(parts);
}

TEST(TokenizerHostile, RefusesFaultyVocabularies) {
  const auto vocab = [](const char* token, Json id) {
    Json all = sample_json()["model"]["vocab"];
    all[token] = std::move(id);
    return with_model({{"vocab", all}});
  };
  const auto merges = [](Json merge) {
    Json all = sample_json()["model"]["merges"];
    all.push_back(std::move(merge));
    return with_model({{"merges", all}});
  };
  const auto added = [](Json id, const char* content) {
    return Json{{"added_tokens", {{{"id", std::move(id)}, {"content", content}}}}};
  };
  const std::pair<Json, const char*> cases[] = {
      {with_model({{"merges", Json::array()}}), "merges is empty"},
      {with_model({{"merges", nullptr}}), "merges is null, not a list"},
      {with_model({{"vocab", Json::object()}}), "vocab is empty"},
      {with_model({{"vocab", {"a", "b"}}}), "vocab is no object"},
      {vocab("x y", -1), "the token x y has the id -1"},
      {vocab("x y", 1.5), "the token x y has the id 1.5"},
      {vocab("x y", "7"), "the token x y has the id \"7\""},
      {vocab("x y", 16777216), "ids are integers in 0 .. 16777215"},
      {vocab("x y", 18446744073709551615u), "has the id 18446744073709551615"},
      {vocab("x y", 5), "both have the id 5"},
      {merges("he q"), "merges[60]: heq is not in the vocabulary"},
      {merges({"h", "e", "n"}), "merges[60] is a list of 3 entries, neither"},
      {merges({"h", 1}), "merges[60] is a list of 2 entries"},
      {merges("he"), "merges[60] is \"he\", not two tokens"},
      {merges("h  e"), "not two tokens with one space"},
      {merges({"", "he"}), "merges[60] has an empty half"},  // a merge whose result is its own half never ends
      {merges(7), "merges[60] is 7"},
      {added(400, "<x>"), "the added token <x> has the id 400; ids continue behind the vocabulary, so it would be 316"},
      {added(0, "he"), "the added token he has the id 0; it is in the vocabulary too, so it would be 256"},
      {added(-1, "<x>"), "id is -1"},
      {added(316, ""), "content is empty"},
      {added("316", "<x>"), "id is \"316\", not an integer"},
      {{{"added_tokens", {{{"id", 316}, {"content", "<x>"}}, {{"id", 317}, {"content", "<x>"}}}}}, "two added tokens"},
      {{{"added_tokens", {{"id", 316}}}}, "added_tokens is an object of 1 entries, not a list"},
  };
  for (const auto& [parts, part] : cases)
    EXPECT_TRUE(has(refusal_of_parts(parts), part)) << part << "\n" << refusal_of_parts(parts);
}

TEST(TokenizerHostile, RefusesTextsThatAreNoTokenizers) {
  const std::string whole = sample_json().dump();
  EXPECT_EQ(refusal_of_text(whole), "");
  for (std::size_t size = 0; size < whole.size(); size += 1 + size / 7) {
    EXPECT_TRUE(has(refusal_of_text(whole.substr(0, size)), "\"tokenizer.json\" is no JSON")) << size;
  }
  EXPECT_TRUE(has(refusal_of_text("[]"), "is a list of 0 entries, not an object"));
  EXPECT_TRUE(has(refusal_of_text("{}"), "has no model"));
  EXPECT_TRUE(has(refusal_of_text("{\"model\": \"\xff\"}"), "is no JSON"));
  constexpr std::size_t deep = 100'000;
  for (const char* open : {"[", "{\"type\":"}) {
    std::string text = "{\"normalizer\":";
    for (std::size_t i = 0; i < deep; ++i) text += open;
    EXPECT_TRUE(has(refusal_of_text(text), "nested deeper than 64 levels"));
  }
}

// Any value in place of any other is read or refused, never a crash.
TEST(TokenizerHostile, SurvivesOtherValuesAnywhere) {
  Json json = sample_json({{"normalizer", {{"type", "Sequence"}, {"normalizers", {step("NFC"), step("Lowercase")}}}},
                           {"added_tokens", {{{"id", 316}, {"content", "<x>"}, {"special", true}}}}});
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"abab", 3}};
  json["model"]["merges"] = {"a b", "ab ab"};
  json["added_tokens"][0]["id"] = 4;
  const Json flat = json.flatten();
  ASSERT_EQ(refusal_of_text(json.dump()), "");
  int refused = 0;
  for (const auto& [path, value] : flat.items()) {
    for (const Json& other : {Json(nullptr), Json(-1), Json(1e300), Json("text"), Json::array({1}),
                              Json::object({{"type", "NFC"}}), Json(true)}) {
      Json changed = json;
      changed[Json::json_pointer(path)] = other;
      refused += refusal_of_text(changed.dump()).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, 100);
}

Json sequence(const char* type, const char* key, const Json& first, const Json& second, int times) {
  Json list = Json::array();
  for (int i = 0; i < times; ++i) {
    list.push_back(first);
    list.push_back(second);
  }
  return {{"type", type}, {key, list}};
}

// Steps that double a text 60 times would make exabytes of it.
TEST(TokenizerHostile, RefusesStepsThatLengthenATextWithoutEnd) {
  const auto replace = [](const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const Json byte_level = {{"type", "ByteLevel"}, {"use_regex", false}};
  const Json each = {{"type", "Split"}, {"pattern", {{"Regex", "."}}}, {"behavior", "Isolated"}};
  const char* why = "would lengthen a part of the text to more than";
  for (const Json& parts :
       {Json{{"normalizer", sequence("Sequence", "normalizers", replace("h", "ee"), replace("e", "hh"), 30)}},
        Json{{"pre_tokenizer", sequence("Sequence", "pretokenizers", byte_level, each, 60)}}}) {
    const auto tokenizer = sample(parts);
    EXPECT_TRUE(has(refusal_of([&] { tokenizer->encode("he\u00e9he"); }).value_or(""), why));
  }
  const auto tokenizer =
      sample({{"decoder", sequence("Sequence", "decoders", replace("h", "ee"), replace("e", "hh"), 30)}});
  EXPECT_TRUE(has(refusal_of([&] { tokenizer->decode(tokenizer->encode("hehe")); }).value_or(""), why));
}

// Each of these tokens reaches over the white space beside it, which is the whole text. The first takes it.
TEST(TokenizerHostile, TokensThatTakeWhiteSpaceTakeLinearTime) {
  Json parts;
  parts["added_tokens"] = {{{"id", 316}, {"content", " "}, {"lstrip", true}, {"rstrip", true}}};
  const std::size_t spaces = 2'000'000;
  EXPECT_EQ(sample(parts)->encode("a" + std::string(spaces, ' ') + "b").size(), 3u);
}

TEST(TokenizerHostile, IdsThatAFileLeavesOutHaveNoToken) {
  const auto tokenizer =
      sample(with_model({{"vocab", {{"a", 0}, {"b", 1}, {"ab", most_token_ids - 1}}}, {"merges", {"a b"}}}));
  EXPECT_EQ(tokenizer->vocab_size(), most_token_ids);
  EXPECT_EQ(tokenizer->encode("ab"), std::vector<std::int32_t>{most_token_ids - 1});
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab")), "ab");
  EXPECT_TRUE(
      has(refusal_of([&] { tokenizer->decode(std::vector<std::int32_t>{2}); }).value_or(""), "no token with the id 2"));
}

TEST(TokenizerHostile, RefusesFilesOfOtherKinds) {
  const TemporaryFolder folder;
  const auto message = [](const std::string& name) { return refusal_of([&] { open_tokenizer(name); }).value_or(""); };
  const std::string model = (folder / "tokenizer.model").string();
  EXPECT_TRUE(has(message(folder.path().string()), "tokenizer.json"));
  write_file(model, "\n\x0e\n\x05<unk>");
  EXPECT_TRUE(has(message(model + "#llama3"), "line 2 is not a token in base64"));
  write_file(folder / "words.txt", "hello\nworld\n");
  EXPECT_TRUE(has(message((folder / "words.txt").string()), "is no tokenizer.json"));
  EXPECT_TRUE(has(message((folder / "none").string()), "No such file"));
  write_file(folder / "tokenizer.json", sample_json().dump());
  write_file(folder / "tokenizer_config.json", R"({"eos_token": 7})");
  EXPECT_TRUE(has(message(folder.path().string()), "eos_token is 7, not a text"));
}

}  // namespace
}  // namespace weft::tokenizer_test
