// Which of the algorithms that cuBLASLt lists for a product is the fastest on this GPU. Its first is a guess, the more
// so for float32 results that are added to, as those of weight gradients; measured once, the choice is kept in a file
// for the next run on such a GPU with this version of the library.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layers/kernels/cuda/product_plan.h"
#include "parallel/runtime/ledger.h"

namespace weft::cuda {

// The place of the one with the least median; a later one has to be faster by a percent. Empty lists are of those that
// cannot be run. Nothing where all are empty.
std::optional<std::size_t> fastest(std::span<const std::vector<double>> seconds);

// Algorithms by shape, as a file keeps them.
class ProductTable {
 public:
  // `machine`: whatever must be the same for the algorithms to be those meant, in one line.
  explicit ProductTable(std::string machine) : machine_(std::move(machine)) {}

  // What is not there, not whole or of another machine reads as nothing.
  void read(const std::string& file);
  // Replaces the file by one with what it has and this has. Whether that was possible.
  bool write(const std::string& file) const;

  void add(const ProductShape& shape, const cublasLtMatmulAlgo_t& algorithm) { algorithms_[shape] = algorithm; }
  const cublasLtMatmulAlgo_t* find(const ProductShape& shape) const;
  std::size_t size() const { return algorithms_.size(); }

 private:
  std::string text() const;

  std::string machine_;
  std::map<ProductShape, cublasLtMatmulAlgo_t> algorithms_;
};

// Has `plans` use the fastest algorithm for products of these shapes: those of `file`, and for the others what is timed
// now on `stream`, on random operands from `ledger`, which is given back all of it. The file may be empty for none.
// `workspace` as for ProductPlans::run. Waits for the stream. Says in words what was done.
std::string measure_products(ProductPlans& plans, Stream& stream, MemoryLedger& ledger, void* workspace,
                             std::span<const ProductCall> products, const std::string& file);

// Of the current GPU: under XDG_CACHE_HOME, or .cache of HOME; empty where neither is set.
std::string product_table_file();

}  // namespace weft::cuda
