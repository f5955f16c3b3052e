// Lines of JSON as documents: the quick reader against nlohmann's, and the places of faults.
#include "trainer/data/document_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "trainer/data/json_places.h"
#include "trainer/data/unpacked_file.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// The fault of a line, as "column: why"; its texts, with bars between, if there is none.
std::string parsed_line(std::string line, const DocumentRules& rules = {}) {
  DocumentParser parser(rules);
  const std::size_t size = line.size();
  line.append(UnpackedFile::padding, '\0');
  std::string fault;
  const auto document = parser.parse(std::string_view(line).substr(0, size), fault);
  if (!document) return fault;
  std::string texts;
  for (const TextPart& part : document->parts) texts += (texts.empty() ? "" : "|") + part.text;
  return texts;
}

TEST(DocumentParser, ReadsTheTextsAtTheirKeys) {
  const DocumentRules inner{.key = "a.b", .prompt = "q"};
  EXPECT_EQ(parsed_line(R"({"text": "one\n\u00e9\ud83d\ude00"})"), "one\n\u00e9\U0001f600");
  EXPECT_EQ(parsed_line(R"({"q": "why", "a": {"c": [{}], "b": "so"}, "z": null})", inner), "why|so");
  EXPECT_EQ(parsed_line(R"({"text": "one", "text": "two"})"), "two");
  EXPECT_EQ(parsed_line(R"({"a": {"b": "x"}, "q": "why", "a": {"b": "so"}})", inner), "why|so");
  EXPECT_EQ(parsed_line(R"({"te\u0078t": "one", "n": 1234567890123456789012345678901234567890})"), "one");
  DocumentParser parser(inner);
  std::string fault;
  const std::string line = R"({"q": "why", "a": {"b": "so"}})" + std::string(UnpackedFile::padding, '\0');
  const auto document = parser.parse(std::string_view(line).substr(0, line.size() - UnpackedFile::padding), fault);
  EXPECT_FALSE(document->parts.front().learned);
  EXPECT_TRUE(document->parts.back().learned);
}

// The fault of each line stands behind the mark, which editors count in characters.
TEST(DocumentParser, NamesTheColumnOfAFault) {
  const std::string deep(256, '['), long_number = "1" + std::string(400, '0');
  const std::pair<std::string, std::string> cases[] = {
      {R"(|{"txt": 1})", "the object has no key \"text\""},
      {R"(|[{"text": "one"}])", "the line is no object"},
      {R"(|"text")", "the line is no object"},
      {R"({"text": |2})", "\"text\" is a number, not a text"},
      {R"(  {"é,:{": "}\"", "text" :  |{"text": "one"}})", "\"text\" is an object, not a text"},
      {R"({"text": "one", "te\u0078t": |null})", "\"text\" is a null, not a text"},
      {R"({"織": "織機", |])", "no JSON"},
      {R"({"text": "one"|)", "no JSON"},
      {R"({"text": "one|)", "no JSON"},
      {R"({"text": "one"} |{"text": "two"})", "no JSON"},
      {R"({"text": "one", "a" |"long text"})", "no JSON"},
      {R"({"text": "he said "|no" to"})", "no JSON"},
      {R"({|-"a": 1})", "no JSON"},
      {R"({"a": null|-, "text": "one"})", "no JSON"},
      {R"({"text": "one", "a": 0|12})", "no JSON"},
      {R"({"text": "one", "a": 1|-2})", "no JSON"},
      {R"({"text": "one", "a": 1.|})", "no JSON"},
      {R"({"text": "one", "a": null|_})", "no JSON"},
      {R"({"text": "one", "a": true|false})", "no JSON"},
      {R"({"text": "o\|xe"})", "no JSON"},
      {R"({"text": "\ud800|"})", "no JSON"},
      {"{\"text\": \"é|\tone\"}", "no JSON"},
      {"{\"text\": \"é|\xff\"}", "no JSON"},
      {R"({"text": "one"})" + std::string("|\0x", 3), "no JSON"},
      {"{\"text\": \"one\", \"a\": [2, |" + long_number + "]}", "a number is too large"},
      {deep + "|[", "lists and objects are nested deeper than 256 levels"},
  };
  for (auto [line, why] : cases) {
    const std::size_t mark = line.find('|');
    const std::size_t column =
        1 + static_cast<std::size_t>(std::count_if(line.begin(), line.begin() + std::ptrdiff_t(mark), [](char byte) {
          return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
        }));
    line.erase(mark, 1);
    EXPECT_EQ(parsed_line(line), fmt::format("{}: {}", column, why)) << line;
  }
  EXPECT_EQ(parsed_line(R"({"a": {"c": 1}})", {.key = "a.b"}), "7: the object has no key \"a.b\"");
  EXPECT_EQ(parsed_line(R"({"a": [1, 2]})", {.key = "a.b"}), "7: the object has no key \"a.b\"");
  EXPECT_EQ(parsed_line(R"({"q": 1, "a": "x"})", {.key = "a", .prompt = "q"}), "7: \"q\" is a number, not a text");
}

// Lines a few bytes away from good ones. nlohmann's reader is the judge of the text, of the faulty lines and of the
// place. The text before the place can still become JSON, so that its only fault is its end.
TEST(DocumentParser, AgreesWithAnotherReaderOnDamagedLines) {
  const std::string seeds[] = {
      R"({"id": 7, "text": "the \"weft\"\n\u00e9", "meta": {"score": -0.5e3, "ok": [true, null]}})",
      R"({"text": "織機 é", "text": "two", "b": [[], {}, [{"text": 1}]]})",
      R"( {"text":"","n":18446744073709551615} )"};
  const std::string_view bytes = "{}[]:,\"\\ntrue0123.-eE \t\x01\xc3\xa9\xe7/";
  std::mt19937 random(11);
  int good = 0, bad = 0;
  for (int round = 0; round < 40'000; ++round) {
    std::string line = seeds[random() % std::size(seeds)];
    for (std::size_t edits = random() % 3 + 1; edits > 0 && !line.empty(); --edits) {
      const std::size_t at = random() % line.size();
      const char byte = bytes[random() % bytes.size()];
      switch (random() % 4) {
        case 0:
          line[at] = byte;
          break;
        case 1:
          line.insert(at, 1, byte);
          break;
        case 2:
          line.erase(at, 1);
          break;
        default:
          line.resize(at);
      }
    }
    const std::string found = parsed_line(line);
    try {
      const Json json = Json::parse(line);
      if (json.is_object() && json.contains("text") && json["text"].is_string()) {
        EXPECT_EQ(found, json["text"].get<std::string>()) << line;
        ++good;
      } else {
        EXPECT_TRUE(found.ends_with("a text") || found.ends_with("key \"text\"") || found.ends_with("no object"))
            << line << "\n"
            << found;
      }
    } catch (const Json::parse_error& error) {
      ++bad;
      EXPECT_TRUE(found.ends_with(": no JSON")) << line << "\n" << found;
      const std::size_t place = place_of_fault(line, error.byte);
      EXPECT_EQ(found, fmt::format("{}: no JSON", column_of(line, place)));
      ASSERT_LE(place, line.size());
      EXPECT_LT(place, std::max<std::size_t>(error.byte, 1));
      std::size_t end = 0;
      try {
        end = Json::parse(line.substr(0, place)).is_discarded() ? 0 : place + 1;
      } catch (const Json::parse_error& cut) {
        end = cut.byte;
      } catch (const Json::out_of_range&) {
        end = place + 1;
      }
      EXPECT_EQ(end, place + 1) << line << "\n" << place;
    } catch (const Json::out_of_range&) {
      EXPECT_TRUE(found.ends_with("a number is too large")) << line;
    }
  }
  EXPECT_GT(good, 2000);
  EXPECT_GT(bad, 5000);
}

}  // namespace
}  // namespace weft
