// The facts beside a dataset: they read back, and numbers out of their range are refused.
#include <gtest/gtest.h>

#include <string>

#include "parallel/runtime/error.h"
#include "trainer/data/token_facts.h"

namespace weft {
namespace {

TEST(TokenFactsFile, ReadsBack) {
  TokenFacts facts{"tokenizer.json", "0123456789abcdef", 300, 2, 90, std::nullopt};
  EXPECT_EQ(parse_token_facts(format_token_facts(facts), "x.json"), facts);
  facts.document_end = 299;
  EXPECT_EQ(parse_token_facts(format_token_facts(facts), "x.json"), facts);
  facts.losses = true;
  EXPECT_EQ(parse_token_facts(format_token_facts(facts), "x.json"), facts);
  // The name of a file may have any bytes.
  facts.tokenizer = "\xff.json";
  EXPECT_EQ(parse_token_facts(format_token_facts(facts), "x.json").tokenizer, "\xef\xbf\xbd.json");
}

TEST(TokenFactsFile, RefusesNumbersOutsideTheirRange) {
  const std::string text =
      format_token_facts({"tokenizer.json", "0123456789abcdef", 300, 2, 90, std::optional<std::int32_t>(7)});
  const auto message = [&](const std::string& part, const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(part), part.size(), other);
    return refusal_of([&] { parse_token_facts(changed, "x.json"); }).value_or("");
  };
  for (const char* value : {"1e300", "3.5", "0", "-1", "true", "\"300\"", "null", "18446744073709551615"}) {
    EXPECT_NE(
        message("300", value).find("vocab_size is " + std::string(value == std::string("1e300") ? "1e+300" : value)),
        std::string::npos)
        << value;
  }
  EXPECT_NE(message("\"documents\": 2", "\"documents\": -2").find("documents is -2"), std::string::npos);
  EXPECT_NE(message("\"tokens\": 90", "\"tokens\": 1e9").find("tokens is 1000000000.0"), std::string::npos);
  // Neither may be cut to 32 bits.
  EXPECT_NE(message("\"document_end\": 7", "\"document_end\": 4294967303").find("in 0 .. 299"), std::string::npos);
  EXPECT_NE(message("\"document_end\": 7", "\"document_end\": 300").find("in 0 .. 299"), std::string::npos);
}

}  // namespace
}  // namespace weft
