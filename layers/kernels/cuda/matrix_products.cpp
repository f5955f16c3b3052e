#include "layers/kernels/cuda/kernels.h"

#include <algorithm>
#include <array>

#include "layers/kernels/cuda/product_measure.h"
#include "layers/kernels/cuda/product_plan.h"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/elementwise.h"

namespace weft::cuda {
namespace {

class CublasProducts final : public MatrixProducts {
 public:
  CublasProducts(Stream& stream, MemoryLedger& ledger, bool measured, std::int64_t workspace_bytes)
      : stream_(stream),
        ledger_(ledger),
        measured_(measured),
        workspace_bytes_(workspace_bytes),
        workspace_(ledger.allocate(Bucket::workspace, DType::int32, workspace_bytes / 4, 1 + product_side_streams)),
        plans_(workspace_bytes) {
    for (auto& side : side_streams_) side = stream.device().create_stream("products");
    // The workspace is first used on the main stream; side streams wait for its allocation.
    for (auto& side : side_streams_) side->wait_for(stream);
  }

  // The library adds the addend before it rounds.
  void run(const Product& product) override { run_on(stream_, 0, product); }

  std::string measure(std::span<const ProductCall> products) override {
    if (!measured_) return "cuBLASLt's first choice of each";
    return measure_products(plans_, stream_, ledger_, workspace_.view().data(), products, product_table_file());
  }

  void load(std::span<const ProductCall> products) override {
    load_products(plans_, stream_, ledger_, workspace_.view().data(), products);
  }

  void run_all(std::span<const Product> products) override {
    if (products.size() == 1) return run(products.front());
    const std::size_t used = std::min(products.size(), product_side_streams);
    const Fence begin = stream_.record();
    for (std::size_t s = 0; s < used; ++s) side_streams_[s]->wait(begin);
    for (std::size_t i = 0; i < products.size(); ++i) {
      run_on(*side_streams_[i % product_side_streams], 1 + i % product_side_streams, products[i]);
    }
    for (std::size_t s = 0; s < used; ++s) stream_.wait_for(*side_streams_[s]);
  }

 private:
  void run_on(Stream& stream, std::size_t workspace, const Product& product) {
    const ProductCall shape = checked_shape(product);
    if (shape.rows == 0 || shape.columns == 0) return;
    if (shape.inner == 0) {
      if (!product.addend.empty()) return cast(stream, product.addend, product.c);
      if (!shape.adds) fill(stream, product.c, 0.0f);
      return;
    }
    std::byte* bytes = workspace_.view().data() + static_cast<std::int64_t>(workspace) * workspace_bytes_;
    plans_.run(native(stream), shape, product, bytes);
  }

  Stream& stream_;
  MemoryLedger& ledger_;
  bool measured_;
  std::array<std::unique_ptr<Stream>, product_side_streams> side_streams_;
  std::int64_t workspace_bytes_;
  Tensor workspace_;  // one part per stream
  ProductPlans plans_;
};

}  // namespace

std::unique_ptr<MatrixProducts> make_matrix_products(Stream& stream, MemoryLedger& ledger, bool measured,
                                                     std::int64_t workspace_bytes) {
  return std::make_unique<CublasProducts>(stream, ledger, measured, workspace_bytes);
}

}  // namespace weft::cuda
