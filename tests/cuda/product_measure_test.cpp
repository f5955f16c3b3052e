// Algorithms of products that are timed once: which is taken, what a file keeps, and that results stay what they are.
#include "layers/kernels/cuda/product_measure.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/multiply.h"
#include "parallel/runtime/checksum.h"
#include "tests/layers/matrix_products_fixture.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

using cuda::ProductTable;

TEST(FastestProduct, HasTheLeastMedianAndIsWorthAPercent) {
  using Times = std::vector<std::vector<double>>;
  const auto fastest = [](const Times& times) { return cuda::fastest(times); };
  EXPECT_EQ(fastest({}), std::nullopt);
  EXPECT_EQ(fastest({{}, {}}), std::nullopt);
  EXPECT_EQ(fastest({{}, {3.0}}), 1u);
  EXPECT_EQ(fastest({{2.0, 2.0, 2.0}, {1.0, 1.0, 9.0}, {1.5, 1.5, 1.5}}), 1u);
  EXPECT_EQ(fastest({{1.0, 1.0, 1.0}, {0.995, 0.995, 0.995}}), 0u);
  EXPECT_EQ(fastest({{1.0, 1.0, 1.0}, {0.98, 0.98, 0.98}}), 1u);
  EXPECT_EQ(fastest({{5.0, 1.0, 1.0}, {2.0, 2.0, 0.1}}), 0u);
}

class ProductTables : public ::testing::Test {
 protected:
  static ProductTable table(const std::string& machine) {
    ProductTable table(machine);
    for (std::int64_t rows = 64; rows <= 640; rows += 64) {
      cublasLtMatmulAlgo_t algorithm{};
      for (std::size_t word = 0; word < std::size(algorithm.data); ++word) {
        algorithm.data[word] = ~std::uint64_t{0} / (word + static_cast<std::uint64_t>(rows));
      }
      table.add({rows, 40, 24, true, false, DType::float8_e4m3, DType::float8_e5m2, DType::float32, true}, algorithm);
    }
    return table;
  }
  std::size_t known(const std::string& machine) const {
    ProductTable read(machine);
    read.read(file);
    return read.size();
  }

  TemporaryFolder folder;
  const std::string file = (folder.path() / "a" / "products.txt").string();
};

TEST_F(ProductTables, AreReadAsTheyWereWritten) {
  const ProductTable written = table("a card with a library");
  ASSERT_TRUE(written.write(file));
  ProductTable read("a card with a library");
  read.read(file);
  ASSERT_EQ(read.size(), written.size());
  for (std::int64_t rows = 64; rows <= 640; rows += 64) {
    const ProductCall shape{rows, 40, 24, true, false, DType::float8_e4m3, DType::float8_e5m2, DType::float32, true};
    ASSERT_NE(read.find(shape), nullptr);
    EXPECT_TRUE(std::ranges::equal(read.find(shape)->data, written.find(shape)->data));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path() / "a"), {}), 1);
}

TEST_F(ProductTables, AreAddedToAndOfOneMachine) {
  ASSERT_TRUE(table("one").write(file));
  ProductTable more("one");
  more.add({1, 2, 3}, {});
  ASSERT_TRUE(more.write(file));
  EXPECT_EQ(known("one"), 11u);
  EXPECT_EQ(known("another"), 0u);
  ASSERT_TRUE(table("another").write(file));
  EXPECT_EQ(known("another"), 10u);
  EXPECT_EQ(known("one"), 0u);
}

// Every byte but those that change nothing: a table that is not whole is none.
TEST_F(ProductTables, ThatAreDamagedAreNone) {
  ASSERT_TRUE(table("one").write(file));
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto put = [&](const std::string& content) { std::ofstream(file, std::ios::binary) << content; };
  for (std::size_t at = 0; at < text.size(); at += 3) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    put(damaged);
    EXPECT_EQ(known("one"), 0u) << at;
    put(text.substr(0, at));
    EXPECT_EQ(known("one"), 0u) << at;
  }
  const std::string head = text.substr(0, text.find('\n')) + "\none\n";
  put(head + std::string(16, '0') + "\n");
  EXPECT_EQ(known("one"), 0u);
  // What does not parse is left out, though its sum is right.
  const std::string odd = head + "1 2 three\n";
  put(odd + fmt::format("{:016x}\n", checksum(odd)));
  EXPECT_EQ(known("one"), 0u);
}

TEST_F(ProductTables, CannotBeWrittenWhereAFileIsInTheWay) {
  std::ofstream(folder.path() / "a") << "no folder";
  EXPECT_FALSE(table("one").write(file));
}

class MeasuredProducts : public MatrixProductsTest {
 protected:
  void SetUp() override {
    MatrixProductsTest::SetUp();
    setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    MatrixProductsTest::TearDown();
  }
  static std::vector<ProductCall> calls(std::int64_t m, std::int64_t n, std::int64_t k) {
    std::vector<ProductCall> calls;
    for (const Dtypes& dtypes : all_dtypes) {
      for (int layout = 0; layout < 8; ++layout) {
        calls.push_back({m, n, k, (layout & 1) != 0, (layout & 2) != 0, dtypes.factors, dtypes.factors, dtypes.result,
                         (layout & 4) != 0});
      }
    }
    return calls;
  }
  std::unique_ptr<MatrixProducts> made(bool measured = true) {
    return cuda::make_matrix_products(*stream, ledger, measured);
  }

  TemporaryFolder folder;
};

// Of the shapes that were timed, of others that are near them in tokens, and of some that have no measured neighbour.
TEST_F(MeasuredProducts, AreWhatTheyWere) {
  const auto timed = made();
  const std::int64_t before = ledger.live().total();
  const std::string said = timed->measure(calls(64, 64, 64));
  EXPECT_TRUE(said.starts_with("40 shapes: 40 timed in ")) << said;
  EXPECT_NE(said.find((folder.path() / "weft" / "products.txt").string()), std::string::npos) << said;
  EXPECT_EQ(ledger.live().total(), before);
  check_all_layouts(*timed, 64, 64, 64);
  check_all_layouts(*timed, 61, 64, 64);
  check_all_layouts(*timed, 64, 64, 100);
  check_all_layouts(*timed, 130, 64, 64);
  check_all_layouts(*timed, 33, 96, 17);
}

TEST_F(MeasuredProducts, AreRememberedByTheNextRun) {
  EXPECT_TRUE(made()->measure(calls(64, 40, 24)).starts_with("40 shapes: 40 timed"));
  const auto timed = made();
  std::vector<ProductCall> more = calls(64, 40, 24);
  more.push_back({128, 40, 24, false, false, DType::bfloat16, DType::bfloat16, DType::bfloat16, false});
  more.push_back(
      {120, 40, 24, false, false, DType::bfloat16, DType::bfloat16, DType::bfloat16, false});  // alike when rounded
  more.push_back(
      {0, 40, 24, false, false, DType::bfloat16, DType::bfloat16, DType::bfloat16, false});  // computes nothing
  const std::string said = timed->measure(more);
  EXPECT_TRUE(said.starts_with("41 shapes: 1 timed")) << said;
  EXPECT_NE(said.find(", 40 known"), std::string::npos) << said;
  check_all_layouts(*timed, 64, 40, 24);
  EXPECT_EQ(made(false)->measure(more), "cuBLASLt's first choice of each");
}

// Factors of 8 bits, of one format and of both, with one scale and of blocks, measured and not: the same bits.
TEST_F(MeasuredProducts, OfEightBitsAreWhatTheyWere) {
  const Tensor a = random("a", DType::bfloat16, 64, 128), b = random("b", DType::bfloat16, 96, 128);
  const auto results = [&](MatrixProducts& under_test) {
    KernelContext with{ledger, clock, *stream, under_test, backend->kernels()};
    std::vector<std::vector<double>> all;
    for (const GradientFactor gradient : {GradientFactor::none, GradientFactor::a, GradientFactor::b}) {
      for (const DType result : {DType::bfloat16, DType::float32}) {
        Tensor c = poisoned(result, 64, 96);
        multiply(with, ProductFormat::float8, {a, Transpose::no, b, Transpose::yes, c, false, {}, gradient});
        all.push_back(doubles(c));
      }
    }
    Tensor c = poisoned(DType::bfloat16, 64, 96);
    multiply(with, ProductFormat::float8_blocks, {a, Transpose::no, b, Transpose::yes, c});
    all.push_back(doubles(c));
    return all;
  };
  std::vector<ProductCall> wanted;
  for (const DType first : {DType::float8_e4m3, DType::float8_e5m2}) {
    for (const DType result : {DType::bfloat16, DType::float32}) {
      wanted.push_back({64, 96, 128, false, true, first, DType::float8_e4m3, result, false});
    }
  }
  for (const ScaledBlock weight : {ScaledBlock::row, ScaledBlock::square}) {
    wanted.push_back({64, 96, 128, false, true, DType::float8_e4m3, DType::float8_e4m3, DType::bfloat16, false,
                      ScaledBlock::row, weight});
  }
  const auto timed = made();
  const std::string said = timed->measure(wanted);
  EXPECT_TRUE(said.starts_with("6 shapes: 6 timed")) << said;
  EXPECT_EQ(results(*timed), results(*made(false)));
}

TEST_F(MeasuredProducts, GoOnWithoutAPlaceToKeepThem) {
  std::ofstream(folder.path() / "weft") << "no folder";
  const auto timed = made();
  const std::string said = timed->measure(calls(64, 40, 24));
  EXPECT_NE(said.find("cannot be written"), std::string::npos) << said;
  check_all_layouts(*timed, 64, 40, 24);
}

}  // namespace
}  // namespace weft
