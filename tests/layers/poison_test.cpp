#include "tests/layers/poison.h"

#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

class Poison : public KernelTest {};

TEST_F(Poison, ShowsInEveryDtypeAndAgainAfterReuse) {
  for (int use = 0; use < 2; ++use) {
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64}) {
      // Of the size of a block that was written before: devices hand out the same memory again.
      Tensor workspace = ledger.allocate(Bucket::workspace, dtype, 300, 1000);
      for (double value : doubles(workspace)) ASSERT_TRUE(std::isnan(value)) << name_of(dtype);
      write_bytes(*stream, workspace, 0);
      EXPECT_EQ(doubles(workspace), std::vector<double>(300 * 1000, 0.0));
    }
    const Tensor integers = ledger.allocate(Bucket::workspace, DType::int32, 5, 1);
    EXPECT_EQ(doubles(integers), std::vector<double>(5, -1.0));
  }
}

}  // namespace
}  // namespace weft
