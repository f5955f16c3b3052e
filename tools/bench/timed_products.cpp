#include "tools/bench/timed_products.h"

#include <chrono>

#include "layers/kernels/float8.h"
#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/rank/initialize.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

TimedProducts::TimedProducts(const Config& config, int rank)
    : between_waits_(config.run.device == DeviceKind::cuda ? 10 : 1),
      backend_(backend_of(config)(rank)),
      stream_(backend_->device().create_stream("compute")),
      ledger_(backend_->device(), *stream_),
      products_(backend_->make_products(*stream_, ledger_)) {}

Tensor TimedProducts::random(const std::string& name, DType dtype, std::int64_t rows, std::int64_t columns) {
  const ParameterSpec all = whole_parameter(name, Family::dense, rows, columns, Initializer::normal, 1.0);
  Tensor drawn = ledger_.allocate(Bucket::workspace, DType::float32, rows, columns);
  OwnedRows owned;
  owned.parameter = &all;
  owned.rows = rows;
  owned.values = drawn;
  initialize_rows(*stream_, owned, {.seed = 1, .threads = static_cast<int>(host_cores())});
  if (dtype == DType::float32) return drawn;
  Tensor matrix = ledger_.allocate(Bucket::workspace, dtype, rows, columns);
  if (size_of(dtype) > 1) {
    cast(*stream_, drawn, matrix);
    return matrix;
  }
  KernelContext context{ledger_, clock_, *stream_, *products_, backend_->layer_kernels()};
  Tensor scale = ledger_.allocate(Bucket::workspace, DType::float32, 1, float8_scale_columns);
  const Float8Factor factor{drawn, Transpose::no, matrix};
  round_to_float8(context, {&factor, 1}, scale);
  return matrix;
}

double TimedProducts::seconds(const ProductCall& call, double least_seconds, const std::function<void()>& ready) {
  const auto& [m, n, k, turned_a, turned_b, input_a, input_b, output, adds] = call;
  const Tensor a = turned_a ? random("a", input_a, k, m) : random("a", input_a, m, k);
  const Tensor b = turned_b ? random("b", input_b, n, k) : random("b", input_b, k, n);
  Tensor c = ledger_.allocate(Bucket::workspace, output, m, n), scale = random("scale", DType::float32, 1, 1);
  fill(*stream_, c, 0.0f);
  fill(*stream_, scale, 1.0f);
  Product product{a, turned_a ? Transpose::yes : Transpose::no, b, turned_b ? Transpose::yes : Transpose::no, c, adds};
  if (size_of(input_a) == 1) product.scale_a = product.scale_b = scale;
  products_->run(product);
  stream_->synchronize();
  if (ready) ready();
  const auto begin = Clock::now();
  int done = 0;
  do {
    for (int i = 0; i < between_waits_; ++i) products_->run(product);
    stream_->synchronize();
    done += between_waits_;
  } while (seconds_since(begin) < least_seconds);
  return seconds_since(begin) / done;
}

}  // namespace weft
