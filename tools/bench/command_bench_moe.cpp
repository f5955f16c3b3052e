// `weft bench moe`: where the time of blocks with experts goes, beside the time of the products of their experts alone,
// routed and shared ones. Steps are traced. The products alone are timed in the shapes of evenly routed tokens. As many
// threads run at once as there are ranks (at most the cores).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "parallel/comm/local.h"
#include "parallel/runtime/spread_work.h"
#include "tools/bench/timed_products.h"
#include "tools/command/commands.h"
#include "trainer/config/config.h"
#include "trainer/diagnosis/trace_sum.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

constexpr auto works = all_values<Work>;
// The most that a block with experts may take, over its products alone.
constexpr double most_over_products = 1.35;

// Seconds, summed over the ranks of this process and the counted steps.
struct ExpertTimes {
  std::array<double, works.size()> work{};
  double all = 0.0;  // of the actions of expert segments; what is in no work is norms and residuals
};

// Whether an action of this name is a computation of experts, or an exchange of their rows.
bool computes_experts(const std::string& name) {
  constexpr std::string_view phases[] = {"F", "B", "I", "W", "R", "rows"};
  const ActionLabels labels = labels_of(name);
  return labels.family == "experts" && std::ranges::count(phases, labels.phase) > 0;
}

void add_times(RankRun& run, ExpertTimes& times) {
  for (const TraceSpan& span : run.profiler().trace()->work()) {
    const auto work = value_named<Work>(span.name);
    if (work && computes_experts(span.inside)) times.work[static_cast<std::size_t>(*work)] += span.end - span.begin;
  }
  for (const TraceSpan& span : run.profiler().trace()->spans()) {
    if (computes_experts(span.name)) times.all += span.end - span.begin;
  }
}

ExpertTimes time_experts(Config config, std::int64_t warmup, std::int64_t steps) {
  config = without_files(config);
  config.run.steps = warmup + steps;
  config.profiling = {.first_step = warmup + 1, .last_step = warmup + steps, .trace = true};
  std::mutex mutex;
  ExpertTimes times;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (metrics.step < config.run.steps) return;
    const std::lock_guard lock(mutex);
    add_times(run, times);
  };
  run_steps(config, observer);
  return times;
}

// One expert, as a rank has it: its rows of a microbatch, and its width.
struct ExpertShape {
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::float32;
};

// Seconds of its products: gate and up together, and down. Each of the two counts the product itself, the gradient of
// its input and that of its weight.
double product_seconds(TimedProducts& products, const ExpertShape& expert, std::int64_t hidden, double least_seconds,
                       const std::function<void()>& ready) {
  const auto& [rows, width, dtype] = expert;
  const auto call = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b,
                        bool gradient) {
    return ProductCall{m, n, k, transpose_a, transpose_b, dtype, dtype, gradient ? DType::float32 : dtype, gradient};
  };
  double seconds = 0.0;
  for (const ProductCall& each :
       {call(rows, 2 * width, hidden, false, true, false), call(rows, hidden, width, false, false, false),
        call(rows, hidden, 2 * width, false, false, false), call(rows, width, hidden, false, true, false),
        call(2 * width, hidden, rows, true, false, true), call(width, hidden, rows, true, false, true)}) {
    seconds += products.seconds(each, least_seconds, ready);
  }
  return seconds;
}

// Seconds of a rank for the products of its experts in a step, if tokens are routed evenly. The shared expert is split
// as a dense block is: all tokens of a microbatch, and a part of its width.
double products_alone(const Config& config, double least_seconds) {
  const Degrees& d = config.parallelism;
  const MoeConfig& moe = config.model.moe;
  const std::int64_t tokens = config.microbatch_tokens() / (d.context * d.tensor) * d.expert * d.expert_tensor;
  const std::int64_t rows = std::max<std::int64_t>(1, tokens * moe.num_experts_per_tok / moe.num_experts);
  const int ranks = std::min(d.world(), static_cast<int>(host_cores()));
  std::mutex mutex;
  std::map<std::int64_t, double> of_expert;  // by width of the whole expert
  for (const std::int64_t width : config.model.widths(BlockKind::moe)) of_expert[width] = 0.0;
  double of_shared = 0.0;
  run_local_ranks(ranks, [&](Communicator& world) {
    TimedProducts products(config, world.rank());
    const auto add = [&](double& sum, const ExpertShape& expert) {
      const double seconds =
          product_seconds(products, expert, config.model.hidden_size, least_seconds, [&] { world.barrier(); });
      const std::lock_guard lock(mutex);
      sum += seconds / ranks;
    };
    for (auto& [width, seconds] : of_expert) {
      add(seconds, {rows, width / d.expert_tensor, config.precision_of(Family::experts).compute});
    }
    if (moe.shared_expert_intermediate_size > 0) {
      add(of_shared, {config.microbatch_tokens() / d.context, moe.shared_expert_intermediate_size / d.tensor,
                      config.precision_of(Family::dense).compute});
    }
  });
  const double taking_turns = std::max(1.0, static_cast<double>(d.world()) / static_cast<double>(host_cores()));
  const auto experts = static_cast<double>(moe.num_experts / d.expert);
  double of_blocks = 0.0;
  for (const ModelBlock& block : config.model.blocks) {
    if (block == BlockKind::moe) of_blocks += experts * of_expert.at(config.model.width(block)) + of_shared;
  }
  return of_blocks / d.pipeline * static_cast<double>(config.microbatches()) * taking_turns;
}

struct MoeRequest {
  std::string file;
  BenchLength length{.product_seconds = 0.2};
  bool json = false;
};

void bench_moe(const CLI::App& command, const MoeRequest& request) {
  const Config config = read_config_given_to(command, request.file).config;
  const BenchLength& length = request.length;
  if (!config.model.has(BlockKind::moe)) fail_request("no block of the model has experts");
  if (config.run.launch == LaunchKind::processes) fail_request("weft bench moe times ranks that are threads");
  const double before = products_alone(config, length.product_seconds);
  const ExpertTimes times = time_experts(config, length.warmup, length.steps);
  const double alone = 0.5 * (before + products_alone(config, length.product_seconds));
  const double rank_steps = static_cast<double>(config.parallelism.world()) * static_cast<double>(length.steps);
  const bool forced = forces_balance(config.model);
  nlohmann::ordered_json report = {{"forced_balance", forced}};
  double named = 0.0;
  for (std::size_t w = 0; w < works.size(); ++w) {
    report["milliseconds"][std::string(name_of(works[w]))] = 1e3 * times.work[w] / rank_steps;
    named += times.work[w];
  }
  report["milliseconds"]["norm and residual"] = 1e3 * (times.all - named) / rank_steps;
  const double all = times.all / rank_steps;
  report["all"] = 1e3 * all;
  report["products_alone"] = 1e3 * alone;
  report["all_over_products_alone"] = all / alone;
  report["most_over_products_alone"] = most_over_products;
  if (request.json) return fmt::print("{}\n", report.dump());
  if (forced) fmt::print("{}\n", forced_balance_text);
  fmt::print("blocks with experts, a rank's mean of {} steps:\n", length.steps);
  for (const auto& [part, milliseconds] : report["milliseconds"].items()) {
    const double value = milliseconds.get<double>();
    fmt::print("  {:<18} {:9.3f} ms  {:5.1f} %\n", part, value, 1e-1 * value / all);
  }
  fmt::print("  {:<18} {:9.3f} ms\n", "all", 1e3 * all);
  fmt::print("their experts' products alone, evenly routed: {:.3f} ms; all takes {:.2f} times as long, {} {}\n",
             1e3 * alone, all / alone, all <= most_over_products * alone ? "within" : "above", most_over_products);
}

}  // namespace

void add_bench_moe_command(CLI::App& bench) {
  const auto [command, request] = add_command<MoeRequest>(
      bench, "moe", "time of blocks with experts, by part, beside their products alone", bench_moe);
  add_config_arguments(command, request.file)->required();
  add_length_options(command, request.length);
  command.add_flag("--json", request.json, "print one JSON document");
}

}  // namespace weft
