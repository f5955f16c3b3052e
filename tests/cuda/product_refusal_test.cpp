// Algorithms that refuse the size they are given: another is searched once for that size, not at every product. Needs
// the emulator, whose third algorithm takes multiples of 8 alone.
#include "layers/kernels/cuda/product_plan.h"
#include "parallel/runtime/cuda/runtime.h"
#include "tests/cuda_emulator/machine.h"
#include "tests/layers/matrix_products_fixture.h"

namespace weft {
namespace {

class RefusedAlgorithms : public MatrixProductsTest {
 protected:
  static std::int64_t searches() { return cuda_emulator::Machine::instance().counters().product_searches; }

  cuda::ProductPlans plans{product_workspace_bytes};
};

TEST_F(RefusedAlgorithms, AreReplacedOnceForEachSize) {
  const std::int64_t columns = 32, inner = 16;
  Tensor workspace = ledger.allocate(Bucket::workspace, DType::int32, product_workspace_bytes / 4, 1);
  const Tensor b = random("b", DType::bfloat16, inner, columns);
  const auto run = [&](std::int64_t rows) {
    const Tensor a = random("a", DType::bfloat16, rows, inner);
    Tensor c = poisoned(DType::float32, rows, columns);
    const Product product{a, Transpose::no, b, Transpose::no, c};
    plans.run(cuda::native(*stream), cuda::checked_shape(product), product, workspace.view().data());
    Tensor expected = poisoned(DType::float32, rows, columns);
    products->run({a, Transpose::no, b, Transpose::no, expected});
    EXPECT_EQ(doubles(c), doubles(expected)) << rows << " rows";
  };
  // The product's shape with 64 rows, for which all numbers of rows up to 64 are looked up.
  const ProductCall rounded{64, columns, inner, false, false, DType::bfloat16, DType::bfloat16, DType::float32};
  const auto listed = plans.listed(rounded, 3);
  ASSERT_EQ(listed.size(), 3u);
  plans.keep(rounded, listed.back());
  run(61);  // both ways are prepared from here on
  run(56);
  const std::int64_t before = searches();
  run(56);
  run(61);
  EXPECT_EQ(searches(), before) << "a size that was refused before, or that is taken";
  run(59);
  run(59);
  EXPECT_EQ(searches(), before + 1) << "another size that is refused";
  plans.keep(rounded, listed.front());
  run(61);
  run(59);
  EXPECT_EQ(searches(), before + 1) << "sizes that the kept algorithm takes";
}

}  // namespace
}  // namespace weft
