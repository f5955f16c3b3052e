// `weft bench products`: the rate of every matrix product in the step of a configuration's first rank, and the time of
// all. Each product runs alone on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tools/bench/timed_products.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

struct ProductRow {
  ProductCall product;
  std::int64_t calls = 0;  // in a step
  double seconds = 0.0;    // of one

  double flops() const {
    return 2.0 * static_cast<double>(product.rows) * static_cast<double>(product.columns) *
           static_cast<double>(product.inner);
  }
  double step_seconds() const { return static_cast<double>(calls) * seconds; }
};

// "bfloat16", "float8_e5m2 x float8_e4m3".
std::string factors_text(const ProductCall& product) {
  if (product.input_a == product.input_b) return std::string(name_of(product.input_a));
  return fmt::format("{} x {}", name_of(product.input_a), name_of(product.input_b));
}

std::string_view layout_of(const ProductCall& product) {
  constexpr std::string_view layouts[] = {"a b", "a b^T", "a^T b", "a^T b^T"};
  return layouts[(product.transpose_a ? 2 : 0) + (product.transpose_b ? 1 : 0)];
}

Json product_json(const ProductRow& row) {
  const ProductCall& product = row.product;
  return {{"rows", product.rows},
          {"columns", product.columns},
          {"inner", product.inner},
          {"layout", layout_of(product)},
          {"factors", factors_text(product)},
          {"result", name_of(product.output)},
          {"adds", product.adds},
          {"calls", row.calls},
          {"microseconds", 1e6 * row.seconds},
          {"gflops_per_second", row.flops() / row.seconds / 1e9},
          {"step_milliseconds", 1e3 * row.step_seconds()}};
}

struct ProductsRequest {
  std::string file;
  double seconds = 0.1;
  bool json = false;
};

void bench_products(const CLI::App& command, const ProductsRequest& request) {
  const ResolvedRun run(read_config_given_to(command, request.file).config);
  const Config& config = run.config();
  const Program program = step_program(run, run.mesh().coordinates(0));
  TimedProducts timed(config, 0);
  std::vector<ProductCall> shapes;
  std::vector<ProductRow> rows;
  const StepCalls asked = dry_calls(config, run.mesh(), program, 0);
  for (const auto& [product, calls] : asked.products) {
    if (product.rows == 0 || product.columns == 0 || product.inner == 0) continue;
    shapes.push_back(product);
    rows.push_back({product, calls});
  }
  const std::string chosen = timed.choose(shapes);
  double flops = 0.0, seconds = 0.0;
  for (ProductRow& row : rows) {
    row.seconds = timed.seconds(row.product, request.seconds);
    flops += static_cast<double>(row.calls) * row.flops();
    seconds += row.step_seconds();
  }
  std::ranges::stable_sort(rows, std::ranges::greater{}, &ProductRow::step_seconds);
  if (request.json) {
    const Json report = {{"gflops_per_step", flops / 1e9},
                         {"step_milliseconds", 1e3 * seconds},
                         {"gflops_per_second", flops / seconds / 1e9},
                         {"products", json_list(rows, product_json)}};
    return fmt::print("{}\n", report.dump());
  }
  BenchTable table{
      {"rows x columns x inner", "layout", "factors", "result", "calls", "us", "GFLOP/s", "ms a step", "%"}};
  for (const ProductRow& row : rows) {
    const ProductCall& product = row.product;
    table.add(fmt::format("{} x {} x {}", product.rows, product.columns, product.inner), layout_of(product),
              factors_text(product), fmt::format("{}{}", product.adds ? "+ " : "", name_of(product.output)), row.calls,
              decimals(1e6 * row.seconds, 1), decimals(row.flops() / row.seconds / 1e9, 0),
              decimals(1e3 * row.step_seconds(), 2), decimals(100.0 * row.step_seconds() / seconds, 1));
  }
  fmt::print("products of a step of rank 0 of {}, each alone{}{}\n\n{}\n", run.mesh().world(),
             chosen.empty() ? "" : "; algorithms: ", chosen, aligned_text(table));
  fmt::print("{:.1f} GFLOP in {:.1f} ms: {:.0f} GFLOP/s\n", flops / 1e9, 1e3 * seconds, flops / seconds / 1e9);
}

}  // namespace

void add_bench_products_command(CLI::App& bench) {
  const auto [command, request] = add_command<ProductsRequest>(
      bench, "products", "rate of each matrix product of a configuration's step, alone", bench_products);
  add_config_arguments(command, request.file)->required();
  command.add_option("--seconds", request.seconds, "time for each product at least")
      ->check(positive())
      ->capture_default_str();
  command.add_flag("--json", request.json, "print one JSON document");
}

}  // namespace weft
