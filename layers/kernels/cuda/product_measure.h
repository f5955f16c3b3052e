// Measures which of cuBLASLt's listed algorithms for a product is the fastest on this GPU. The first of the list is a
// guess, least reliable for float32 results that are added to, such as weight gradients. The measured choice is kept in
// a file for later runs on such a GPU with this version of the library.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layers/kernels/cuda/product_plan.h"
#include "parallel/runtime/ledger.h"

namespace weft::cuda {

// The index of the list with the least median; a later list must be 1 % faster to replace an earlier one. Empty lists
// stand for algorithms that cannot be run. nullopt if all lists are empty.
std::optional<std::size_t> fastest(std::span<const std::vector<double>> seconds);

// Algorithms by shape, as stored in a file.
class ProductTable {
 public:
  // `machine`: one line with everything that must be equal for the stored algorithms to be valid.
  explicit ProductTable(std::string machine) : machine_(std::move(machine)) {}

  // Reads nothing if the file is missing, incomplete or of another machine.
  void read(const std::string& file);
  // Replaces the file by the union of its contents and this table. Returns whether that was possible.
  bool write(const std::string& file) const;

  void add(const ProductCall& shape, const cublasLtMatmulAlgo_t& algorithm) { algorithms_[shape] = algorithm; }
  const cublasLtMatmulAlgo_t* find(const ProductCall& shape) const;
  std::size_t size() const { return algorithms_.size(); }

 private:
  std::string text() const;

  std::string machine_;
  std::map<ProductCall, cublasLtMatmulAlgo_t> algorithms_;
};

// Makes `plans` use the fastest algorithm for products of these shapes. Algorithms come from `file`; those of missing
// shapes are timed now on `stream`, with random operands from `ledger`, which are released afterwards. An empty `file`
// means none. `workspace` as for ProductPlans::run. Waits for the stream. Returns a description of what was done.
std::string measure_products(ProductPlans& plans, Stream& stream, MemoryLedger& ledger, void* workspace,
                             std::span<const ProductCall> products, const std::string& file);

// Runs a product of each of these shapes, as ProductPlans::run does, so that its kernel is loaded. On `stream`, with
// operands from `ledger` that are released afterwards; their contents are undefined.
void load_products(ProductPlans& plans, Stream& stream, MemoryLedger& ledger, void* workspace,
                   std::span<const ProductCall> products);

// The file of algorithms: under XDG_CACHE_HOME, or under .cache of HOME; empty if neither is set.
std::string product_table_file();

}  // namespace weft::cuda
