// Measurements of a run beside the figures of its program, for the rules to judge.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/diagnosis/diagnosed_fault.h"
#include "trainer/diagnosis/program_figures.h"
#include "trainer/diagnosis/run_hardware.h"
#include "trainer/diagnosis/run_outputs.h"
#include "trainer/diagnosis/traced_steps.h"

namespace weft {

// Counts of the communicators in the run's last step, summed over ranks.
struct MeasuredExchange {
  std::int64_t gathers = 0, gather_bytes = 0;
  CommunicationCounters exchange;  // the groups and operations of ProgramFigures::exchange
};

struct RunEvidence {
  const RunOutputs& run;
  Mesh mesh;
  std::string hardware_name;  // as given by the user
  RunHardware hardware;
  ProgramFigures program;
  MeasuredExchange measured;
  // The last consecutive steps with the last step's exchange, without the first two of them: caches, pools and threads
  // are warm after two steps. The last step alone if there are no more than two.
  std::span<const StepMetrics> steady;
  double step_seconds = 0.0;            // median of `steady`
  std::vector<TracedRank> traced = {};  // empty without traces

  const Config& config() const { return run.config; }
  // Tokens per data-parallel rank and step.
  double tokens_a_rank() const;
  // Modelled: products of the step at this rate, spread evenly over ranks.
  double compute_seconds(double flops_per_second) const;
  // Free bytes of a rank at the measured peak; absent if the rank's memory is unknown.
  std::optional<std::int64_t> headroom_bytes() const;
  std::int64_t peak_bytes() const;  // measured, of the fullest rank in any steady step
};

// Seconds of one rank per step, averaged over the traced steps.
struct TracedWait {
  int rank = 0;
  double seconds = 0.0;
};

// The longest time that a rank's computation waited for exchanges that `counts` selects; absent without traces.
std::optional<TracedWait> most_waiting(const RunEvidence& evidence,
                                       const std::function<bool(const TracedExchange&)>& counts);

// Seconds from a model of the hardware, used without traces.
struct ModelledSeconds {
  double seconds = 0.0;
  std::string by;  // the modelled quantity and the figures used
};

// The traced wait for the selected exchanges, described by `what`; absent if the traces show none. Without traces:
// `modelled`, if positive.
std::optional<StepCost> waiting_cost(const RunEvidence& evidence,
                                     const std::function<bool(const TracedExchange&)>& counts, const std::string& what,
                                     const ModelledSeconds& modelled = {});

bool is_traced_gather(const TracedExchange& exchange);

// `hardware` as in run_hardware(). `run` must outlive the evidence. Throws Error (request) if the counters or traces do
// not belong to the configuration's program.
RunEvidence gather_evidence(const RunOutputs& run, const std::string& hardware = {});

}  // namespace weft
