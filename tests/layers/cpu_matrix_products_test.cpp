// Products of the CPU's library alone.
#include "layers/kernels/cpu/kernels.h"
#include "tests/layers/matrix_products_fixture.h"

namespace weft {
namespace {

using CpuMatrixProductsTest = MatrixProductsTest;

TEST_F(CpuMatrixProductsTest, WidensBfloat16WhereTheProcessorLacksIt) {
  const std::unique_ptr<MatrixProducts> widening = make_library_products(false);
  check_all_layouts(*widening, 7, 5, 3);
  check_all_layouts(*widening, 131, 24, 40);
}

}  // namespace
}  // namespace weft
