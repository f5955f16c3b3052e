// `weft bench step`: the time of a configuration's step on this machine, and the share that it reaches of the machine's
// own matrix-product rate. The rate is measured before and after the steps, so that both see the machine in the same
// state. It is measured on as many threads as there are ranks (at most the cores).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "parallel/comm/local.h"
#include "parallel/runtime/medians.h"
#include "parallel/runtime/spread_work.h"
#include "tools/bench/timed_products.h"
#include "tools/command/commands.h"
#include "trainer/config/config.h"
#include "trainer/costs/step_flops.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

// Rate of dense bfloat16 products of an H100 or H200 as NVIDIA states it, in operations a second. It is the base of
// shares of a GPU's peak. (NVIDIA's figure with sparsity is twice this.)
constexpr double stated_peak = 989e12;

// Rate of square products on `threads` threads at once, in operations a second. The products are large enough for the
// device, and measured for `least_seconds`.
double product_rate(const Config& config, int threads, double least_seconds) {
  const std::int64_t n = config.run.device == DeviceKind::cuda ? 8192 : 1024;
  const DType dtype = config.precision_of(Family::dense).compute;
  const ProductCall square{n, n, n, false, true, dtype, dtype, dtype, false};
  std::mutex mutex;
  double rate = 0.0;
  run_local_ranks(threads, [&](Communicator& world) {
    TimedProducts products(config, world.rank());
    const double seconds = products.seconds(square, least_seconds, [&] { world.barrier(); });
    const std::lock_guard lock(mutex);
    rate += 2.0 * static_cast<double>(n * n * n) / seconds;
  });
  return rate;
}

struct StepTimes {
  std::vector<double> seconds;  // by step
  // Summed over ranks and steps. Actions of the compute lane run one after the other, so its phases and the rest add up
  // to the time. Exchanges of other lanes may be hidden behind it; only a trace can tell.
  std::array<double, phase_count> phase_seconds{};
  std::map<Lane, double> lane_seconds;  // communication on other lanes, if the clock distinguishes lanes
};

// One run that counts `steps` steps in each mode in turn. Before the first mode `warmup` steps are not counted, before
// each further mode one step.
std::vector<StepTimes> time_steps(Config config, std::int64_t warmup, std::int64_t steps,
                                  const std::vector<PhaseClock::Mode>& modes) {
  struct Use {
    std::size_t pass;
    bool counted;
  };
  std::vector<Use> use_of;  // by step
  for (std::size_t pass = 0; pass < modes.size(); ++pass) {
    use_of.insert(use_of.end(), static_cast<std::size_t>(pass == 0 ? warmup : 1), {pass, false});
    use_of.insert(use_of.end(), static_cast<std::size_t>(steps), {pass, true});
  }
  config.run.steps = static_cast<std::int64_t>(use_of.size());
  std::vector<StepTimes> times_of(modes.size());
  std::mutex mutex;
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) { run.clock().set_mode(modes.front()); };
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const auto step = static_cast<std::size_t>(metrics.step - 1);
    const auto [pass, counted] = use_of[step];
    if (step + 1 < use_of.size()) run.clock().set_mode(modes[use_of[step + 1].pass]);
    if (!counted) return run.clock().reset();
    const PhaseClock::Mode mode = modes[pass];
    const std::lock_guard lock(mutex);
    StepTimes& times = times_of[pass];
    if (run.rank() == 0) times.seconds.push_back(metrics.seconds);
    for (std::size_t p = 0; p < phase_count; ++p) {
      const auto phase = static_cast<Phase>(p);
      times.phase_seconds[p] += mode == PhaseClock::Mode::host ? run.clock().seconds(phase)
                                                               : run.clock().seconds(phase, run.lanes()[Lane::compute]);
    }
    for (const Lane lane : all_lanes) {
      if (mode == PhaseClock::Mode::host || lane == Lane::compute) continue;
      times.lane_seconds[lane] += run.clock().seconds(Phase::communication, run.lanes()[lane]);
    }
    run.clock().reset();
  };
  run_steps(without_files(config), observer);
  return times_of;
}

struct StepRequest {
  std::string file, clock;
  BenchLength length;
  bool json = false;
};

void bench_step(const CLI::App& command, const StepRequest& request) {
  const Config config = read_config_given_to(command, request.file).config;
  const BenchLength& length = request.length;
  if (config.run.launch == LaunchKind::processes) fail_request("weft bench step times ranks that are threads");
  const bool gpu = config.run.device == DeviceKind::cuda;
  const int ranks = config.parallelism.world();
  const auto cores = static_cast<int>(host_cores());
  const int threads = gpu ? 1 : std::min(ranks, cores);
  const double rate_before = product_rate(config, threads, length.product_seconds);
  // Reading times from streams slows steps down, so it is done in later steps of the same run.
  const bool streams = request.clock.empty() ? gpu : request.clock == "stream";
  std::vector<PhaseClock::Mode> modes = {streams ? PhaseClock::Mode::stream : PhaseClock::Mode::host};
  if (streams) modes.insert(modes.begin(), PhaseClock::Mode::off);
  const std::vector<StepTimes> passes = time_steps(config, length.warmup, length.steps, modes);
  const StepTimes &times = passes.front(), &shares = passes.back();
  const double rate = 0.5 * (rate_before + product_rate(config, threads, length.product_seconds));

  const double seconds = median_of(times.seconds);
  const double best = *std::min_element(times.seconds.begin(), times.seconds.end());
  const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  const double achieved = step_flops(config) / seconds;
  const double all = ranks * std::reduce(shares.seconds.begin(), shares.seconds.end());
  const bool forced = forces_balance(config.model);
  nlohmann::ordered_json report = {{"forced_balance", forced},
                                   {"tokens_per_second", tokens / seconds},
                                   {"tokens_per_second_best", tokens / best},
                                   {"step_milliseconds", 1e3 * seconds},
                                   {"gflops_per_step", step_flops(config) / 1e9},
                                   {"gflops_per_second", achieved / 1e9},
                                   {"product_gflops_per_second", rate / 1e9},
                                   {"share_of_product_rate", achieved / rate}};
  if (gpu) report["share_of_989_tflops"] = achieved / stated_peak;
  // The host's clock times the queueing of a GPU's work, not the work.
  if (!gpu || streams) {
    double named = 0.0;
    for (std::size_t p = 0; p < phase_count; ++p) {
      report["share_of_rank_time"][std::string(name_of(static_cast<Phase>(p)))] = shares.phase_seconds[p] / all;
      named += shares.phase_seconds[p] / all;
    }
    report["share_of_rank_time"]["other"] = 1.0 - named;
  }
  for (const auto& [lane, lane_seconds] : shares.lane_seconds) {
    report["communication_by_lane"][std::string(name_of(lane))] = lane_seconds / all;
  }
  if (request.json) return fmt::print("{}\n", report.dump());
  if (forced) fmt::print("{}\n", forced_balance_text);
  fmt::print("{} ranks on {}, {}: {:.0f} tok/s (best {:.0f}), {:.1f} ms a step, median of {}\n", ranks,
             gpu ? "a GPU" : fmt::format("{} cores", cores), name_of(config.precision_of(Family::dense).compute),
             tokens / seconds, tokens / best, 1e3 * seconds, times.seconds.size());
  fmt::print("{:.1f} GFLOP a step at {:.0f} GFLOP/s: {:.0f} % of the machine's product rate ({:.0f} GFLOP/s)\n",
             step_flops(config) / 1e9, achieved / 1e9, 100.0 * achieved / rate, rate / 1e9);
  if (gpu) fmt::print("{:.1f} % of 989 TFLOP/s, the peak of an H100 or H200\n", 100.0 * achieved / stated_peak);
  if (report.contains("share_of_rank_time")) {
    for (const auto& [phase, share] : report["share_of_rank_time"].items()) {
      fmt::print("  {:<14} {:5.1f} %\n", phase, 100.0 * share.get<double>());
    }
  }
  if (!streams) return;
  fmt::print("communication on the other lanes, hidden or not:\n");
  for (const auto& [lane, share] : report["communication_by_lane"].items()) {
    fmt::print("  {:<18} {:5.1f} %\n", lane, 100.0 * share.get<double>());
  }
}

}  // namespace

void add_bench_step_command(CLI::App& bench) {
  const auto [command, request] =
      add_command<StepRequest>(bench, "step", "tokens a second of a configuration and where the time goes", bench_step);
  add_config_arguments(command, request.file)->required();
  add_length_options(command, request.length);
  command
      .add_option("--clock", request.clock,
                  "clock of the shares: the host's, or that of the streams of a device that runs behind it, behind "
                  "the others. Default: host on the CPU, stream on a GPU, where host leaves the shares out")
      ->check(CLI::IsMember({"host", "stream"}));
  command.add_flag("--json", request.json, "print one JSON document");
}

}  // namespace weft
