#include "trainer/run/run_steps.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/runtime/checksum.h"
#include "parallel/runtime/phase_clock.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/config.h"
#include "trainer/rank/backend.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

std::string spike_text(const Config& config, std::int64_t step, const Spike& spike) {
  return fmt::format(
      "step {} has a spike and was not taken: {}; the run is saved as {}, as it was before. The same command stops "
      "there again; --spikes.action=skip goes on without the update of that step, --spikes.action=log with it",
      step, spike.text(), checkpoint_after(config, step - 1).string());
}

// The steps of a rank, as `result` tells of them.
void take_steps(RankRun& run, RankCheckpoints& checkpoints, const Config& config, const RunObserver& observer,
                const RunRequests& requests, const std::optional<HeldOutWindows>& held_out, TrainResult& result) {
  double copying = 0.0;  // seconds of a step that it waits for a save
  run.change_after([&] {
    const auto begin = std::chrono::steady_clock::now();
    Fence copied = checkpoints.copied();
    copying += seconds_since(begin);
    return copied;
  });
  if (observer.before_first_step) observer.before_first_step(run);
  requests.begin();
  result.timer.add(RunPart::start_up);
  bool stop = false;
  for (std::int64_t step = run.progress().step + 1; step <= config.run.steps && !stop; ++step) {
    RunVotes votes = checkpoints.votes();
    votes.stop_requests = requests.stop() ? 1 : 0;
    votes.save_requests = requests.save() ? 1 : 0;
    StepMetrics metrics = run.step(step, votes);
    checkpoints.heard(run.votes());
    result.timer.add(RunPart::steps);
    result.timer.take_from_steps(RunPart::data_wait, metrics.data_wait);
    result.timer.take_from_steps(RunPart::checkpoints, std::exchange(copying, 0.0));
    if (held_out && validates_after(config, step) && metrics.taken()) {
      metrics.validation = run.held_out(*held_out);
      checkpoints.validated(step, metrics.validation->loss);
      result.timer.add(RunPart::validation);
    }
    // No checkpoint has copies that differ, or a bias that is not finite.
    if (step % config.metrics.interval == 0 || !metrics.taken() || checkpoints.saves_after(step, run.votes())) {
      run.compare_copies();
    }
    if (observer.after_step) observer.after_step(run, metrics);
    result.timer.add(RunPart::other);
    if (!metrics.taken()) {
      checkpoints.save(run.progress());
      result.stopping_spike = spike_text(config, step, *metrics.spike);
      break;
    }
    result.totals.add(metrics);
    checkpoints.end_step(run.progress(), run.votes());
    result.timer.add(RunPart::checkpoints);
    stop = run.votes().stop_requests > 0;
  }
  checkpoints.finish();
  result.timer.add(RunPart::checkpoints);
  run.change_after(nullptr);  // `copying` ends here
  result.stopped = stop && run.progress().step < config.run.steps;
}

// The measurements of all ranks over their steps. Collective over the world.
void gather_figures(RankRun& run, const Mesh& mesh, TrainResult& result) {
  result.predicted = gather_buckets(run.world(), run.predicted());
  result.measured = gather_buckets(run.world(), run.measured());
  const LiveIntegral integral = live_integral(run.program(), mesh.coordinates(run.rank()).pp);
  result.byte_steps = gather_buckets(run.world(), integral.byte_steps);
  const HostBytes host = run.host_bytes();
  const std::vector<double> host_bytes =
      gather_numbers(run.world(), std::array{static_cast<double>(host.predicted), static_cast<double>(host.measured)});
  for (std::size_t i = 0; i + 1 < host_bytes.size(); i += 2) {
    result.host.push_back({static_cast<std::int64_t>(host_bytes[i]), static_cast<std::int64_t>(host_bytes[i + 1])});
  }
  const double computed = run.compute_seconds();
  result.compute = compare_ranks(mesh, gather_numbers(run.world(), {&computed, 1}));
  result.steps_taken = run.progress().step;
  result.timer.add(RunPart::other);
}

}  // namespace

std::filesystem::path checkpoint_after(const Config& config, std::int64_t step) {
  return std::filesystem::path(config.checkpoint_directory()) / checkpoint_name(step);
}

TrainResult run_steps(const Config& config, const RunObserver& observer, const BackendFactory& make_backend,
                      const CheckpointSetup& given, const RunRequests& requests, const RunTimer& timer) {
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  // Of the resolved run: a memory budget decides the layout of stages too.
  const std::optional<HeldOutWindows> held_out = validation_windows(resolved.config());
  const KeyValues identity = data_keys(config, data);
  CheckpointSetup setup = given;
  if (held_out && config.validation.keep_best) {
    setup.held_out = checksum_text(checksum(held_out->windows().contents()));
  }
  NvtxDomain domain;
  const int first_rank = first_rank_of_process(config);
  TrainResult result;
  std::once_flag hashed;
  const RankMain rank_main = [&](const RankContext& context) {
    RankRun run(resolved, data, domain, context);
    std::call_once(hashed, [&] {
      // Names of units may differ between ranks, and any may come first.
      const auto hashes = [&](const Program& program) { return hashes_of(config, resolved, program); };
      setup.hashes =
          run.rank() == 0 ? hashes(run.program()) : hashes(step_program(resolved, resolved.mesh().coordinates(0)));
      if (observer.identified) observer.identified(*setup.hashes);
    });
    RankCheckpoints checkpoints(config, identity, run.checkpoint_rows(), run.world(), run.stream(), setup);
    run.resume(checkpoints.load());
    run.compare_copies();
    const bool first = run.rank() == first_rank;
    TrainResult own;
    own.timer = timer;
    take_steps(run, checkpoints, config, observer, first ? requests : RunRequests(), held_out, own);
    gather_figures(run, resolved.mesh(), own);
    if (first) result = std::move(own);
  };
  run_ranks(config, make_backend ? make_backend : backend_of(config), rank_main, observer.admit);
  result.timer.add(RunPart::other);
  return result;
}

}  // namespace weft
