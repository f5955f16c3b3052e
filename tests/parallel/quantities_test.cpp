// Bytes and seconds in the words of reports.
#include "parallel/runtime/quantities.h"

#include <gtest/gtest.h>

#include "parallel/runtime/medians.h"

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

TEST(Medians, AreInTheMiddle) {
  EXPECT_EQ(median_of({3.0}), 3.0);
  EXPECT_EQ(median_of({5.0, 1.0, 4.0}), 4.0);
  EXPECT_EQ(median_of({8.0, 2.0}), 5.0);
  EXPECT_EQ(median_of({7.0, 1.0, 9.0, 2.0}), 4.5);
}

// Numbers beside each other have the unit of the largest; from a GiB on they keep it.
TEST(Quantities, HaveTheUnitOfTheLargest) {
  const ByteUnit mebi = byte_unit(std::int64_t{22} << 20);
  EXPECT_EQ(mebi.text(std::int64_t{3} << 19), "1.50 MiB");
  EXPECT_EQ(mebi.text(0), "0.00 MiB");
  EXPECT_EQ(mebi.number(std::int64_t{2} << 30, 1), "2048.0");
  EXPECT_EQ(mebi.decimal_number(1'250'000, 2), "1.25");
  EXPECT_EQ(mebi.decimal_name(), "MB");
  EXPECT_EQ(byte_unit(0x1p30 - 1).name(), "MiB");
  for (const double large : {0x1p30, 0x1p40, 0x1p60}) EXPECT_EQ(byte_unit(large).name(), "GiB");
  EXPECT_EQ(byte_unit(1023).text(7), "7 B");
  EXPECT_EQ(byte_unit(0).decimal_name(), "B");
}

}  // namespace
}  // namespace weft
