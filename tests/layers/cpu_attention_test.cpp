// The memory that attention on the CPU takes from the ledger.
#include "tests/layers/attention_fixture.h"

namespace weft {
namespace {

using CpuAttentionTest = AttentionTest;

TEST_F(CpuAttentionTest, WorkspaceIsBlocksAndCopiesOfOneHead) {
  const HeadShape heads{2, 1, 16, 1024};
  const std::int64_t full_matrix = heads.sequence_length * heads.sequence_length * size_of(DType::float32);
  for (DType dtype : float_types) {
    run(dtype, heads, 1);
    // Two blocks of 64 x 256 in float32 and two in 16 bits, and six copies of one head (four of them in 16 bits).
    const std::int64_t blocks = 2 * 64 * 256 * (4 + 2),
                       copies = heads.sequence_length * heads.head_dim * (2 * 4 + 4 * 2);
    const std::int64_t peak = ledger.peak_by_bucket()[Bucket::workspace];
    EXPECT_LE(peak, blocks + copies + 64 * (heads.head_dim + 2) * 4) << name_of(dtype);
    EXPECT_LT(peak, full_matrix / 4) << name_of(dtype);
    EXPECT_EQ(ledger.live()[Bucket::workspace], 0);
    ledger.reset_peak();
  }
}

}  // namespace
}  // namespace weft
