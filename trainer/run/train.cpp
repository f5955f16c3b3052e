#include "trainer/run/train.h"

#include <cstdio>
#include <optional>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/runtime/input_file.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/console.h"
#include "trainer/run/start_check.h"

namespace weft {
namespace {

std::filesystem::path checkpoint_after(const Config& config, std::int64_t step) {
  return std::filesystem::path(config.checkpoint_directory()) / checkpoint_name(step);
}

std::string spike_text(const Config& config, std::int64_t step, const Spike& spike) {
  return fmt::format(
      "step {} has a spike and was not taken: {}; the run is saved as {}, as it was before. The same command stops "
      "there again; --spikes.action=skip goes on without the update of that step, --spikes.action=log with it",
      step, spike.text(), checkpoint_after(config, step - 1).string());
}

BucketBytes unit_byte_steps(const RankRun& run, const Mesh& mesh) {
  const LiveBytes sum = live_integral(run.program(), mesh.coordinates(run.rank()).pp).byte_steps;
  BucketBytes byte_steps;
  byte_steps[Bucket::unsharded_parameters] = sum.unsharded_parameters;
  byte_steps[Bucket::unsharded_gradients] = sum.unsharded_gradients;
  byte_steps[Bucket::communication] = sum.communication;
  return byte_steps;
}

}  // namespace

TrainResult run_steps(const Config& config, const RunObserver& observer, const BackendFactory& make_backend,
                      const CheckpointSetup& setup, const RunRequests& requests) {
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  const std::optional<HeldOutWindows> held_out = validation_windows(config);
  const KeyValues identity = data_keys(config, data);
  NvtxDomain domain;
  const int first_rank = first_rank_of_process(config);
  TrainResult result;
  const RankMain rank_main = [&](const RankSeat& seat) {
    RankRun run(resolved, data, domain, seat);
    RankCheckpoints checkpoints(config, identity, run.checkpoint_rows(), run.world(), run.stream(), setup);
    run.resume(checkpoints.load());
    run.compare_copies();
    run.change_after([&] { return checkpoints.copied(); });
    if (observer.before_first_step) observer.before_first_step(run);
    if (run.rank() == first_rank) requests.begin();
    bool stop = false;
    for (std::int64_t step = run.progress().step + 1; step <= config.run.steps && !stop; ++step) {
      RunVotes votes = checkpoints.votes();
      if (run.rank() == first_rank) {
        votes.stop_requests = requests.stop() ? 1 : 0;
        votes.save_requests = requests.save() ? 1 : 0;
      }
      StepMetrics metrics = run.step(step, votes);
      const bool stops_at_spike = metrics.spike && metrics.spike->action == SpikeAction::stop;
      if (held_out && validates_after(config, step) && !stops_at_spike) {
        metrics.validation = run.held_out(*held_out);
        checkpoints.validated(step, metrics.validation->loss);
      }
      if (step % config.metrics.interval == 0 || checkpoints.due(step)) run.compare_copies();
      if (observer.after_step) observer.after_step(run, metrics);
      if (run.rank() == first_rank) result.totals.add(metrics);
      if (stops_at_spike) {
        checkpoints.save(run.progress());
        if (run.rank() == first_rank) result.stopping_spike = spike_text(config, step, *metrics.spike);
        break;
      }
      checkpoints.end_step(run.progress(), run.votes());
      stop = run.votes().stop_requests > 0;
    }
    checkpoints.finish();
    const std::vector<BucketBytes> predicted = gather_buckets(run.world(), run.predicted().bytes);
    const std::vector<BucketBytes> measured = gather_buckets(run.world(), run.measured());
    const std::vector<BucketBytes> byte_steps = gather_buckets(run.world(), unit_byte_steps(run, resolved.mesh()));
    if (run.rank() == first_rank) {
      result.predicted = predicted;
      result.measured = measured;
      result.byte_steps = byte_steps;
      result.steps_taken = run.progress().step;
      result.stopped = stop && result.steps_taken < config.run.steps;
    }
  };
  run_ranks(config, make_backend ? make_backend : backend_of(config), rank_main, observer.admit);
  return result;
}

TrainResult train(const ResolvedConfig& resolved, const RunRecord& record, Console& console,
                  const RunRequests& requests) {
  const Config& config = resolved.config;
  // Only the process of rank 0 writes to run.directory and to the console.
  const bool speaks = first_rank_of_process(config) == 0;
  // All checks of the request come before any write.
  std::optional<CheckedStart> start;
  if (speaks) start = check_start(resolved);
  if (config.run.device == DeviceKind::cuda) {
    if (const auto reason = why_no_cuda())
      fail_request("run.device is \"cuda\", which cannot be used here: {}", *reason);
  }
  std::optional<RunDirectory> directory;
  std::optional<RunLock> checkpoint_lock;  // other runs may have the same checkpoint.directory

  ReportedSteps reports(config.metrics.interval, config.run.steps);  // used on the thread of rank 0
  RunObserver observer;
  observer.admit = [&] {
    if (!config.checkpoint.directory.empty()) {
      checkpoint_lock.emplace(config.checkpoint.directory, "checkpoint.directory");
    }
    directory.emplace(config.run.directory);
    console.banner(config, start->program, start->predicted);
    console.note("data", start->reading);
    if (!directory->locked()) {
      console.note("lock", "none on this file system: see to it that no other run has this run.directory");
    }
  };
  observer.before_first_step = [&](RankRun& run) {
    const std::int64_t taken = run.progress().step;
    if (run.rank() != 0 || taken >= config.run.steps) return;
    directory->begin_after(taken, resolved.toml, config.metrics.tensorboard);
    const ProfilingConfig& profiling = config.profiling;
    if (profiling.first_step > 0 && profiling.last() <= taken) {
      console.note("profiling", fmt::format("WARNING: nothing is recorded: the last step to record is {}, and the run "
                                            "goes on behind step {}. Name later steps, or another run.directory",
                                            profiling.last(), taken));
    } else if (profiling.first_step > 0 && profiling.trace) {
      directory->remove_traces();
    }
    console.note("attention", run.attention());
    if (!run.products().empty()) console.note("products", run.products());
  };
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const StepTrace* trace = run.profiler().trace();
    if (trace != nullptr && metrics.step == config.profiling.last()) {
      write_trace(config.run.directory, run.rank(), trace->spans(), trace->work());
    }
    if (run.rank() != 0) return;
    if (const auto trouble = directory->append(metrics)) console.note("metrics", *trouble);
    if (const auto reported = reports.add(metrics)) {
      if (const auto trouble = directory->report(*reported)) console.note("metrics", *trouble);
      console.step(*reported, config.run.steps);
    }
    console.progress(metrics.step, config.run.steps);
  };
  CheckpointSetup checkpoints;
  checkpoints.texts.push_back({checkpoint_config_name, resolved.toml});
  for (const TokenizerPart& part : tokenizer_parts(config.data.tokenizer)) {
    checkpoints.texts.push_back({part.kept_name, read_whole_file(part.path)});
  }
  checkpoints.say = [&](int rank, const std::string& text) {
    if (rank == 0) return console.note("checkpoint", text);
    std::fputs(fmt::format("rank {}: {}\n", rank, text).c_str(), stderr);
  };
  RunRequests polled = requests;
  // The run also stops if the reader of the console's pipe has gone.
  polled.stop = [&] { return requests.stop() || console.closed(); };
  TrainResult result = run_steps(config, observer, {}, checkpoints, polled);
  if (!speaks) return result;
  if (result.totals.steps == 0) {
    console.note("checkpoint", fmt::format("all {} steps of the run had been taken. To train further give more, as "
                                           "--run.steps={}; to begin anew name another run.directory",
                                           config.run.steps, 2 * result.steps_taken));
    return result;
  }
  console.memory_table(result.predicted, result.measured);
  directory->summary(result.totals, result.predicted, result.measured, result.byte_steps, record);
  console.finished(result.totals, directory->path());
  if (result.stopped) {
    console.stopped(requests.stopped_by(), result.steps_taken, config.run.steps,
                    checkpoint_after(config, result.steps_taken));
  }
  return result;
}

}  // namespace weft
