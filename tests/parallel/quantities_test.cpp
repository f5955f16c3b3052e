// Bytes and seconds in the words of reports.
#include "parallel/runtime/quantities.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Quantities, AreWrittenForReaders) {
  EXPECT_EQ(format_time(0.0, false), "0 s");
  EXPECT_EQ(format_time(1.5, false), "1.5 s");
  EXPECT_EQ(format_time(0.0125, false), "12.5 ms");
  EXPECT_EQ(format_time(3.4e-6, false), "3.4 us");
  EXPECT_EQ(format_time(3.5, true), "3.5");
  EXPECT_EQ(grouped_digits(999), "999");
  EXPECT_EQ(grouped_digits(8'030'261'248), "8,030,261,248");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(std::int64_t{5} << 40), "5120.00 GiB");
}

}  // namespace
}  // namespace weft
