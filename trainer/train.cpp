#include "trainer/train.h"

#include <optional>

#include "trainer/console.h"

namespace weft {

TrainResult run_steps(const Config& config, const RunObserver& observer, const BackendFactory& make_backend) {
  const Mesh mesh(config.parallelism);
  const TokenDataset data(config.data.train, config.training.sequence_length, config.model.vocab_size, config.run.seed);
  NvtxDomain domain;
  const int first_rank = first_rank_of_process(config);
  TrainResult result;
  run_ranks(config, make_backend ? make_backend : backend_of(config), [&](const RankSeat& seat) {
    RankRun run(config, mesh, data, domain, seat);
    if (observer.before_first_step) observer.before_first_step(run);
    for (std::int64_t step = 1; step <= config.run.steps; ++step) {
      const StepMetrics metrics = run.step(step);
      if (observer.after_step) observer.after_step(run, metrics);
      if (run.rank() == first_rank) {
        result.steps.push_back(metrics);
        result.predicted = run.predicted_of_all();
        result.measured = run.measured();
      }
    }
  });
  return result;
}

TrainResult train(const ResolvedConfig& resolved, const RunRecord& record, Console& console) {
  const Config& config = resolved.config;
  // Everything that can be wrong with the request is found before anything is written.
  const Mesh mesh(config.parallelism);
  const TokenDataset data(config.data.train, config.training.sequence_length, config.model.vocab_size, config.run.seed);
  if (config.run.device == DeviceKind::cuda) {
    if (const auto reason = why_no_cuda())
      fail_request("run.device is \"cuda\", which cannot be used here: {}", *reason);
  }
  // Of all processes of a run, that of rank 0 writes and speaks.
  const bool speaks = first_rank_of_process(config) == 0;
  std::optional<RunDirectory> directory;
  if (speaks) {
    directory.emplace(config.run.directory, resolved.toml);
    console.banner(config, mesh, step_program(config, mesh, mesh.coordinates(0)));
  }

  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    if (run.rank() == 0) console.note("attention", run.attention());
  };
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const StepTrace* trace = run.profiler().trace();
    if (trace != nullptr && metrics.step == config.profiling.last())
      write_trace(config.run.directory, run.rank(), trace->spans());
    if (run.rank() != 0) return;
    directory->append(metrics);
    console.step(metrics, config.run.steps);
  };
  TrainResult result = run_steps(config, observer);
  if (!speaks) return result;
  console.memory_table(result.predicted, result.measured);
  directory->summary(result.steps, result.predicted, result.measured, record);
  console.finished(result.steps, directory->path());
  return result;
}

}  // namespace weft
