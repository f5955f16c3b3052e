#include "tests/trainer/diagnosed_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string_view>
#include <thread>

#include "parallel/runtime/outside_text.h"
#include "trainer/costs/hardware.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// Sleeps at the end of each computation until its time is up; begins before and ends within the trace's spans.
class PaddedCompute final : public ActionObserver {
 public:
  PaddedCompute(const Config& config, RankRun& run, double slowness)
      : actions_(run.program().ranks[static_cast<std::size_t>(Mesh(config.parallelism).coordinates(run.rank()).pp)]) {
    const auto flops = timed_flops(config, run.program(), find_hardware("cpu"));
    // An attention part and an MLP of sharded_dense take about 1 ms forward together.
    const double block = 2.0 * 64.0 * (4 * 64 + 3 * 128) * 64.0;
    for (const Action& action : actions_) {
      double operations = 0.0;
      if (action.segment) {
        const SegmentFlops& segment = flops[static_cast<std::size_t>(*action.segment)];
        if (action.op == Op::forward) operations = segment.forward;
        if (makes_input_gradient(action.op)) operations += segment.backward_input;
        if (makes_weight_gradient(action.op)) operations += segment.backward_weight;
      }
      const double seconds = is_compute(action.op) ? slowness * (2e-4 + 1e-3 * operations / block) : 0.0;
      padding_.push_back(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
    }
  }
  void begin(std::size_t) override { begin_ = Clock::now(); }
  void end(std::size_t action) override {
    if (is_compute(actions_[action].op)) std::this_thread::sleep_until(begin_ + padding_[action]);
  }

 private:
  std::span<const Action> actions_;
  std::vector<Clock::duration> padding_;
  Clock::time_point begin_;
};

std::vector<std::string> names_of(const Diagnosis& diagnosis) {
  std::vector<std::string> names;
  for (const DiagnosedFault& finding : diagnosis.findings) names.push_back(finding.rule);
  return names;
}

std::string text_of(const Diagnosis& diagnosis) {
  std::string text;
  for (const RuleResult& result : diagnosis.rules) text += fmt::format("{}: {}\n", result.rule, result.verdict.note);
  for (const DiagnosedFault& finding : diagnosis.findings) {
    text += fmt::format("{}: {} ({} s)\n", finding.rule, finding.sentence, finding.step ? finding.step->seconds : -1.0);
    for (const EvidenceLine& line : finding.evidence) {
      text += fmt::format("  {}: {}; expected {} ({})\n", line.what, line.value, line.expected, line.source);
    }
    for (const SettingChange& change : finding.changes)
      text += fmt::format("  {} = {}\n", change.setting, change.value);
  }
  return text;
}

}  // namespace

void leave_run(const TemporaryFolder& folder, const Overrides& overrides, const RunFaults& faults) {
  std::string text;
  while (text.size() < 20000) text += faults.text;
  write_file(folder / "text.txt", text);
  const ResolvedConfig resolved = read_config_text(
      sharded_dense, "base.toml",
      overrides + Overrides{fmt::format("data.train=[\"{}\"]", (folder / "text.txt").string()),
                            fmt::format("run.directory=\"{}\"", folder.path().string()), "checkpoint.at_end=false"});
  EXPECT_EQ(resolved.unread, std::vector<std::string>{});
  const Config& config = resolved.config;
  RunDirectory directory(folder.path());
  std::vector<std::unique_ptr<PaddedCompute>> padded(static_cast<std::size_t>(config.parallelism.world()));
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    auto& own = padded[static_cast<std::size_t>(run.rank())];
    own = std::make_unique<PaddedCompute>(config, run, faults.slowness(run.rank()));
    run.observe(*own);
    faults.before_first_step(run);
    if (run.rank() == 0) directory.begin_after(0, resolved.toml, false);
  };
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const StepTrace* trace = run.profiler().trace();
    if (trace != nullptr && metrics.step == config.profiling.last()) {
      write_trace(folder.path(), run.rank(), trace->spans());
    }
    if (run.rank() == 0) directory.append(metrics);
    if (metrics.step == config.run.steps) faults.after_last_step(run);
  };
  const TrainResult result = run_steps(config, observer);
  directory.summary(result, {.command_line = "weft train", .versions = "none"});
}

std::vector<Simulation> retimed_on_own_lanes(RunOutputs& run, const HardwareConfig& hardware) {
  run.config.run.device = DeviceKind::cuda;
  run.config.hardware = hardware;
  const ResolvedRun resolved(run.config);
  const Mesh& mesh = resolved.mesh();
  std::vector<Simulation> simulations;
  for (RankTrace& trace : run.traces) {
    const Coordinates at = mesh.coordinates(trace.rank);
    const Program program = step_program(resolved, at);
    const ProgramCosts costs = modelled_costs(resolved.config(), mesh, program, hardware_of(run.config));
    const Simulation& simulation = simulations.emplace_back(simulate(program, costs, LaneChannels::own()));
    const auto traced = traced_actions(run.config, program, trace);
    const auto& simulated = simulation.ranks[static_cast<std::size_t>(at.pp)];
    std::vector<TraceSpan> spans;
    for (const TracedAction& action : traced) {
      const SimulatedAction& as = simulated[action.index];
      TraceSpan& span = spans.emplace_back(*action.span);
      // A lane's span begins where the lane is free, before what it waits for.
      span.begin = static_cast<double>(span.step) + as.start - as.waited;
      span.end = static_cast<double>(span.step) + as.end;
    }
    trace.spans = std::move(spans);
    for (StepMetrics& step : run.steps) step.seconds = simulation.seconds;
  }
  return simulations;
}

Diagnosed diagnosed(RunOutputs run, const HardwareConfig& hardware) {
  run.config.hardware = hardware;
  const Diagnosis diagnosis = diagnose(gather_evidence(run));
  return {names_of(diagnosis), diagnosis, text_of(diagnosis)};
}

Diagnosed diagnosed(const Overrides& overrides, const HardwareConfig& hardware, const RunFaults& faults) {
  const TemporaryFolder folder;
  leave_run(folder, overrides, faults);
  return diagnosed(read_run(folder.path()), hardware);
}

Overrides changes_of(const DiagnosedFault& finding) {
  Overrides overrides;
  for (const SettingChange& change : finding.changes) {
    for (std::string_view setting : parts_between(change.setting, ',')) {
      setting.remove_prefix(setting.find_first_not_of(' '));
      overrides.push_back(fmt::format("{}={}", setting, change.value));
    }
  }
  return overrides;
}

}  // namespace weft
