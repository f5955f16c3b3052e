// Times of matrix products alone, on the device of a configuration, and how long benches that take them last.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"
#include "parallel/runtime/phase_clock.h"
#include "trainer/config/config.h"
#include "trainer/rank/backend.h"

namespace weft {

// Belongs to the calling thread, which stands for rank `rank`.
class TimedProducts {
 public:
  TimedProducts(const Config& config, int rank);

  // Chooses the algorithms (MatrixProducts::measure).
  std::string choose(std::span<const ProductCall> products) { return products_->measure(products); }
  // Mean seconds of a call, of as many calls as take `least_seconds`, after one that is not counted. Factors are normal
  // numbers, because a GPU draws less power for constants and multiplies them faster. `ready` is called before the
  // counted calls.
  double seconds(const ProductCall& call, double least_seconds, const std::function<void()>& ready = {});

 private:
  struct Factor {
    Tensor elements, scales = {};  // scales of 8 bits
  };
  Factor factor(const std::string& name, DType dtype, std::int64_t rows, std::int64_t columns, ScaledBlock each);
  Tensor random(const std::string& name, DType dtype, std::int64_t rows, std::int64_t columns);

  int between_waits_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  MemoryLedger ledger_;
  PhaseClock clock_;
  std::unique_ptr<MatrixProducts> products_;
};

// How long a bench of training steps lasts, as its command is told.
struct BenchLength {
  std::int64_t warmup = 3, steps = 20;  // not counted, and counted
  double product_seconds = 0.5;         // at least, of each product that is measured alone
};
// Adds --warmup, --steps and --seconds.
void add_length_options(CLI::App& command, BenchLength& length);

}  // namespace weft
