// The cause of a refused allocation, by counters of a card of 100 bytes.
#include "parallel/runtime/pool_refusal.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(PoolRefusal, IsNamedByWhoHoldsTheBytes) {
  const auto expect = [](std::int64_t bytes, const PoolCounters& counters, const char* cause) {
    const std::string text = refusal_text(bytes, counters);
    EXPECT_NE(text.find(cause), std::string::npos) << text;
  };
  constexpr const char *fragmentation = "(fragmentation)", *others = "Other programs", *full = "names what fills it";
  // 30 are asked for. 20 are free, and 15 lie in pieces between the blocks of this rank.
  expect(30, {.free = 20, .total = 100, .reserved = 75, .used = 60}, fragmentation);
  // Exactly enough.
  expect(35, {.free = 20, .total = 100, .reserved = 75, .used = 60}, fragmentation);
  // 5 of others make 36 just so.
  expect(36, {.free = 20, .total = 100, .reserved = 75, .used = 60}, others);
  expect(41, {.free = 20, .total = 100, .reserved = 75, .used = 60}, full);
  // A whole card beside another program.
  expect(30, {.free = 10, .total = 100, .reserved = 20, .used = 20}, others);
}

TEST(PoolRefusal, SaysWhatToTryFirst) {
  const auto text = refusal_text(30, {.free = 20, .total = 100, .reserved = 75, .used = 60});
  EXPECT_NE(text.find("refused 30 bytes: 20 of its 100 bytes are free, 75 are held by this rank, 60 of these in use"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("(fragmentation)"), std::string::npos) << text;
  EXPECT_NE(refusal_text(41, {.free = 20, .total = 100, .reserved = 75, .used = 60}).find("--explain"),
            std::string::npos);
  EXPECT_NE(refusal_text(30, {.free = 10, .total = 100, .reserved = 20, .used = 20}).find("CUDA context hold 70"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
