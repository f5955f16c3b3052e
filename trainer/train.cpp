#include "trainer/train.h"

#include "parallel/comm/local.h"
#include "trainer/console.h"

namespace weft {

TrainResult run_steps(const Config& config, const RunObserver& observer, const BackendFactory& make_backend) {
  const Mesh mesh(config.parallelism);
  const TokenDataset data(config.data.train, config.training.sequence_length, config.model.vocab_size, config.run.seed);
  NvtxDomain domain;
  TrainResult result;
  result.predicted.resize(static_cast<std::size_t>(mesh.world()));
  run_local_ranks(mesh.world(), [&](Communicator& world) {
    const std::unique_ptr<Backend> backend = make_backend ? make_backend(world.rank()) : make_cpu_backend();
    RankRun run(config, mesh, data, *backend, domain, world);
    // Each rank writes its own element; nobody reads before all have ended.
    result.predicted[static_cast<std::size_t>(world.rank())] = run.predicted().bytes;
    if (observer.before_first_step) observer.before_first_step(run);
    for (std::int64_t step = 1; step <= config.run.steps; ++step) {
      const StepMetrics metrics = run.step(step);
      if (observer.after_step) observer.after_step(run, metrics);
      if (world.rank() == 0) {
        result.steps.push_back(metrics);
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
  const Program program = step_program(config, mesh, mesh.coordinates(0));
  RunDirectory directory(config.run.directory, resolved.toml);
  console.banner(config, mesh, program);

  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const StepTrace* trace = run.profiler().trace();
    if (trace != nullptr && metrics.step == config.profiling.last()) directory.trace(run.rank(), trace->spans());
    if (run.rank() != 0) return;
    directory.append(metrics);
    console.step(metrics, config.run.steps);
  };
  TrainResult result = run_steps(config, observer);
  console.memory_table(result.predicted, result.measured);
  directory.summary(result.steps, result.predicted, result.measured, record);
  console.finished(result.steps, directory.path());
  return result;
}

}  // namespace weft
