// The keyed hash against its authors' vectors, and what is a token.
#include "parallel/comm/run_token.h"

#include <gtest/gtest.h>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

EnvironmentLookup with_token(const char* value) {
  return [value](const char* name) -> std::optional<std::string> {
    return std::string(name) == "WEFT_RUN_TOKEN" && value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

// vectors_sip64 of the reference implementation: the key is 00 01 .. 0f, the text as many bytes from 00 on. The text of
// 15 bytes is also the example of the paper (appendix A).
TEST(RunToken, TheHashIsSipHash24) {
  RunToken key;
  for (std::size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<std::uint8_t>(i);
  std::string text;
  for (char byte = 0; byte < 64; ++byte) text += byte;
  const std::pair<std::size_t, std::uint64_t> vectors[] = {
      {0, 0x726fdb47dd0e0e31u}, {1, 0x74f839c593dc67fdu},  {7, 0xab0200f58b01d137u},  {8, 0x93f5f5799a932462u},
      {9, 0x9e0082df0ba9e4b0u}, {15, 0xa129ca6149be45e5u}, {16, 0x3f2acc7f57c29bdbu}, {63, 0x958a324ceb064572u}};
  for (const auto& [length, expected] : vectors) {
    EXPECT_EQ(sip_hash(key, std::string_view(text).substr(0, length)), expected) << length;
  }
}

TEST(RunToken, IsThirtyTwoHexadecimalDigitsOrRefusedUnseen) {
  EXPECT_FALSE(run_token(with_token(nullptr)));
  const auto token = run_token(with_token("000102030405060708090a0b0c0d0eFf"));
  ASSERT_TRUE(token);
  EXPECT_EQ(token->bytes[1], 0x01);
  EXPECT_EQ(token->bytes[15], 0xff);
  for (const char* value :
       {"", "secret", "000102030405060708090a0b0c0d0e", "000102030405060708090a0b0c0d0e0f0",
        "000102030405060708090a0b0c0d0e0g", "0x0102030405060708090a0b0c0d0e0f", "000102030405060708090a0b0c0d0e-1"}) {
    try {
      run_token(with_token(value));
      ADD_FAILURE() << value;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::request);
      EXPECT_NE(text.find("WEFT_RUN_TOKEN"), std::string::npos) << text;
      EXPECT_TRUE(*value == '\0' || text.find(value) == std::string::npos) << text;
    }
  }
}

TEST(RunToken, EachNewOneIsAnother) {
  const std::string first = new_run_token(), second = new_run_token();
  EXPECT_NE(first, second);
  EXPECT_TRUE(run_token(with_token(first.c_str())));
}

}  // namespace
}  // namespace weft
