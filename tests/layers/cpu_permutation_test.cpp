// Checks that only the CPU can make before it writes: values that are in device memory elsewhere.
#include "layers/kernels/routing.h"
#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

class CpuPermutation : public KernelTest {};

TEST_F(CpuPermutation, SortRefusesAnExpertOutsideTheRange) {
  Tensor counts = poisoned(DType::int32, 3, 1), slots = poisoned(DType::int32, 1, 2);
  EXPECT_THROW(sort_by_expert(context, tensor_of(DType::int32, 1, 2, {0, 3}), false, counts, slots), Error);
  EXPECT_THROW(sort_by_expert(context, tensor_of(DType::int32, 1, 2, {-1, 0}), false, counts, slots), Error);
}

}  // namespace
}  // namespace weft
