#include "tools/bench/timed_products.h"

#include <chrono>

#include "layers/kernels/float8.h"
#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/spread_work.h"
#include "tools/command/commands.h"
#include "trainer/rank/initialize.h"
#include "trainer/run/train.h"

namespace weft {

TimedProducts::TimedProducts(const Config& config, int rank)
    : between_waits_(config.run.device == DeviceKind::cuda ? 10 : 1),
      backend_(backend_of(config)(rank)),
      stream_(backend_->device->create_stream("compute")),
      ledger_(*backend_->device, *stream_),
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
  cast(*stream_, drawn, matrix);
  return matrix;
}

TimedProducts::Factor TimedProducts::factor(const std::string& name, DType dtype, std::int64_t rows,
                                            std::int64_t columns, ScaledBlock each) {
  if (size_of(dtype) > 1) return {random(name, dtype, rows, columns)};
  const Tensor drawn = random(name, DType::float32, rows, columns);
  const auto [scale_rows, scale_columns] = scale_shape(each, rows, columns);
  Factor made{ledger_.allocate(Bucket::workspace, dtype, rows, columns),
              ledger_.allocate(Bucket::workspace, DType::float32, scale_rows, scale_columns)};
  KernelContext context{ledger_, clock_, *stream_, *products_, backend_->layer_kernels};
  const Float8Factor rounding{drawn, Transpose::no, made.elements, each, made.scales};
  round_to_float8(context, {&rounding, 1});
  return made;
}

double TimedProducts::seconds(const ProductCall& call, double least_seconds, const std::function<void()>& ready) {
  const auto& [m, n, k, turned_a, turned_b, input_a, input_b, output, adds, scaled_a, scaled_b, alignment] = call;
  const Factor a = factor("a", input_a, turned_a ? k : m, turned_a ? m : k, scaled_a);
  const Factor b = factor("b", input_b, turned_b ? n : k, turned_b ? k : n, scaled_b);
  Tensor c = ledger_.allocate(Bucket::workspace, output, m, n);
  fill(*stream_, c, 0.0f);
  const Product product{.a = a.elements,
                        .transpose_a = turned_a ? Transpose::yes : Transpose::no,
                        .b = b.elements,
                        .transpose_b = turned_b ? Transpose::yes : Transpose::no,
                        .c = c,
                        .accumulate = adds,
                        .scales_a = {a.scales, scaled_a},
                        .scales_b = {b.scales, scaled_b}};
  products_->run(product);
  stream_->synchronize();
  if (ready) ready();
  const auto begin = std::chrono::steady_clock::now();
  int done = 0;
  do {
    for (int i = 0; i < between_waits_; ++i) products_->run(product);
    stream_->synchronize();
    done += between_waits_;
  } while (seconds_since(begin) < least_seconds);
  return seconds_since(begin) / done;
}

void add_length_options(CLI::App& command, BenchLength& length) {
  command.add_option("--warmup", length.warmup, "steps not counted")->check(not_negative())->capture_default_str();
  command.add_option("--steps", length.steps, "steps counted")->check(positive())->capture_default_str();
  command.add_option("--seconds", length.product_seconds, "time for each product alone at least")
      ->check(positive())
      ->capture_default_str();
}

}  // namespace weft
