// A run's measurements, put beside what its program says, for the rules to judge.
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

// Counted by the communicators in the run's last step, summed over ranks.
struct MeasuredExchange {
  std::int64_t gathers = 0, gather_bytes = 0;
  CommunicationCounters exchange;  // the groups and operations that ProgramFigures::exchange has
};

struct RunEvidence {
  const RunOutputs& run;
  Mesh mesh;
  std::string hardware_name;  // as asked for
  RunHardware hardware;
  ProgramFigures program;
  MeasuredExchange measured;
  // Steps of the same program as the last one, without the first two of the run where it has more: caches, pools and
  // threads are warm by then.
  std::span<const StepMetrics> steady;
  double step_seconds = 0.0;            // their median
  std::vector<TracedRank> traced = {};  // nothing without traces

  const Config& config() const { return run.config; }
  // Of a data-parallel rank in a step.
  double tokens_a_rank() const;
  // Modelled: products of the step at the rate of the hardware, all ranks alike.
  double compute_seconds(double flops_per_second) const;
  // Bytes of a rank that nobody uses at the measured peak; nothing where the rank's memory is not known.
  std::optional<std::int64_t> headroom_bytes() const;
  std::int64_t peak_bytes() const;  // measured, of the fullest rank in any steady step
};

// Of one rank in a step, on average over the traced ones.
struct TracedWait {
  int rank = 0;
  double seconds = 0.0;
};

// How long computation of the rank that waits most stood still for such exchanges; nothing without traces.
std::optional<TracedWait> most_waiting(const RunEvidence& evidence,
                                       const std::function<bool(const TracedExchange&)>& counts);

// What a model of the hardware says in place of traces.
struct ModelledSeconds {
  double seconds = 0.0;
  std::string by;  // of what, and by which figures
};

// The wait that the traces show for such exchanges, `what` in words; absent where they show none. Without traces
// `modelled`, if it is more than nothing.
std::optional<StepCost> waiting_cost(const RunEvidence& evidence,
                                     const std::function<bool(const TracedExchange&)>& counts, const std::string& what,
                                     const ModelledSeconds& modelled = {});

bool is_traced_gather(const TracedExchange& exchange);

// `hardware` as in run_hardware(). `run` outlives the evidence. Throws Error (request) when the counters or traces are
// not those of the configuration's program.
RunEvidence gather_evidence(const RunOutputs& run, const std::string& hardware = {});

}  // namespace weft
