// Against Python: bytes.decode(errors="replace") and unicodedata.normalize.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft::tokenizer_test {
namespace {

using std::string_literals::operator""s;

TEST(TokenizerUnicode, ReplacesMalformedPartsAsPython) {
  const std::string r = "\ufffd";
  const std::pair<std::string, std::string> cases[] = {
      {"a\xff"s + "b", "a" + r + "b"},
      {"\xc3(", r + "("},
      {"\xed\xa0\x80", r + r + r},
      {"\xc0\x80", r + r},
      {"\xe2\x82", r},
      {"\xf0\x9f\x98", r},
      {"\xf0\x9f\x98x", r + "x"},
      {"\xf4\x90\x80\x80", r + r + r + r},
      {"\xe0\x9f\xbf", r + r + r},
      {"\xf8\x88\x80\x80\x80", r + r + r + r + r},
      {"\x80", r},
      {"ok \xe2\x82\xac\xe2(\xa1 and more text", "ok \u20ac" + r + "(" + r + " and more text"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(replace_malformed(text).value_or("well-formed"), expected);
  for (const std::string& text : {""s, "plain text of more than one word"s, "\u00e9\u20ac\U0001f600\U0010ffff\0"s}) {
    EXPECT_EQ(replace_malformed(text), std::nullopt);
  }
}

TEST(TokenizerUnicode, ReadsWhatItWrites) {
  for (char32_t value = 0; value < 0x110000; ++value) {
    if (value >= 0xd800 && value < 0xe000) continue;
    std::string text = "x";
    append_code_point(text, value);
    ASSERT_EQ(replace_malformed(text), std::nullopt) << static_cast<unsigned>(value);
    ASSERT_TRUE(code_point_at(text, 1).value == value);
    ASSERT_TRUE(code_point_before(text, text.size()).value == value);
    ASSERT_EQ(code_point_at(text, 1).bytes + 1, text.size());
  }
}

TEST(TokenizerUnicode, HasTheNormalFormsOfPython) {
  struct Forms {
    std::string text, nfc, nfd, nfkc, nfkd;
  };
  const Forms cases[] = {
      {"\u212b\u1e9b\u0323\ufb01", "\u00c5\u1e9b\u0323\ufb01", "A\u030a\u017f\u0323\u0307\ufb01", "\u00c5\u1e69fi",
       "A\u030as\u0323\u0307fi"},
      {"\uac00\u1100\u1161\u11a8", "\uac00\uac01", "\u1100\u1161\u1100\u1161\u11a8", "\uac00\uac01",
       "\u1100\u1161\u1100\u1161\u11a8"},
      {"q\u0307\u0323", "q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307", "q\u0323\u0307"},
      {"\u0958", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c"},
      {"\u2126 e\u0301\u0345\u0300", "\u03a9 \u00e9\u0300\u0345", "\u03a9 e\u0301\u0300\u0345",
       "\u03a9 \u00e9\u0300\u0345", "\u03a9 e\u0301\u0300\u0345"},
      {"plain e\u0301 plain", "plain \u00e9 plain", "plain e\u0301 plain", "plain \u00e9 plain", "plain e\u0301 plain"},
  };
  for (const Forms& forms : cases) {
    EXPECT_EQ(to_normal_form(forms.text, NormalForm::nfc), forms.nfc);
    EXPECT_EQ(to_normal_form(forms.text, NormalForm::nfd), forms.nfd);
    EXPECT_EQ(to_normal_form(forms.text, NormalForm::nfkc), forms.nfkc);
    EXPECT_EQ(to_normal_form(forms.text, NormalForm::nfkd), forms.nfkd);
  }
}

// An order by exchanges of neighbours would take 10^10 steps.
TEST(TokenizerUnicode, OrdersLongRunsOfMarks) {
  std::string text = "a", above, below;
  for (int i = 0; i < 100'000; ++i) {
    text += "\u0301\u0323";
    above += "\u0301";
    below += "\u0323";
  }
  EXPECT_EQ(to_normal_form(text, NormalForm::nfd), "a" + below + above);
}

TEST(TokenizerUnicode, LowersEachCharacterByItself) {
  EXPECT_EQ(to_lower_case("\u0130\u03a3\u00c9Z \u1e9e"), "i\u0307\u03c3\u00e9z \u00df");
}

// By the definition of GPT-2: the printed bytes are themselves, the others count up from 256.
TEST(TokenizerUnicode, WritesEachByteAsACharacter) {
  EXPECT_EQ(to_byte_characters(" \n!~\x7f\xa0\xad\xff"s + '\0'), "\u0120\u010a!~\u0121\u0142\u0143\u00ff\u0100");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(from_byte_characters(to_byte_characters(all)), all);
  EXPECT_EQ(from_byte_characters("a b"), std::nullopt);
  EXPECT_EQ(from_byte_characters("\u0144"), std::nullopt);
}

}  // namespace
}  // namespace weft::tokenizer_test
