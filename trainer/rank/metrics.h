// The measurements of one step, summed over the ranks, and their JSON line.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/runtime/ledger.h"
#include "trainer/optimizer/learning_rate.h"
#include "trainer/rank/run_hashes.h"
#include "trainer/rank/spikes.h"

namespace weft {

// In a run's directory. One line a step, and the end of a run that was not stopped.
inline constexpr const char *metrics_file = "metrics.jsonl", *summary_file = "summary.json";

inline constexpr std::size_t most_named_experts = 16;  // a line of metrics.jsonl names so many of a block

struct MoeMetrics {
  int block = 0;
  double auxiliary_loss = 0.0, z_loss = 0.0;
  double max_over_mean = 0.0;  // of tokens by expert
  double entropy = 1.0;        // of the shares of tokens by expert, over that of equal shares; 1 if they are equal
  std::int64_t unused = 0;     // experts without a token
  std::vector<std::int64_t> unused_experts = {};  // the first of them, at most most_named_experts
  double dropped = 0.0;                           // part of the choices that no expert took
  // Of tokens by rank of an expert group, which holds a run of experts, over their mean; 1 if experts stand on one
  // rank.
  double busiest_rank = 1.0, idlest_rank = 1.0;
  std::optional<int> idlest_place = {};   // place of that rank in its expert group, if there are several
  std::optional<double> null_share = {};  // part of the choices that are null slots, if there are any
  std::optional<double> bias_norm = {};   // Euclidean, of the selection bias that the step used, if there is one
};
// `tokens`: choices of a step, by expert; `ranks` of an expert group. Losses and bias are left as they are.
MoeMetrics expert_balance(int block, std::span<const std::int64_t> tokens, int ranks = 1);

// The loss of held-out text.
struct HeldOutLoss {
  double loss = 0.0;  // mean over the tokens, nats
  std::int64_t tokens = 0, windows = 0;
  // Of the text of the predicted tokens, without the tokens around a text, as its end; 0 for ids without a text.
  std::int64_t bytes = 0;
  double seconds = 0.0;

  double perplexity() const { return std::exp(loss); }
  double bits_per_byte() const {
    return loss * static_cast<double>(tokens) / static_cast<double>(bytes) / std::numbers::ln2;
  }
};

struct StepMetrics {
  std::int64_t step = 0;                       // from 1
  double loss = 0.0;                           // mean over the step's targets, nats; NaN without one
  std::vector<double> prediction_losses = {};  // of each predictor: of its targets in nats, over the step's targets
  double gradient_norm = 0.0;
  std::vector<GroupRate> learning_rates = {};  // as applied
  std::optional<double> loss_scale = {};       // if anything is computed in float16
  bool forced_balance = false;                 // experts were dealt in turn
  // Gradients overflowed, or at a spike, or without a target: parameters and states are unchanged.
  bool skipped = false;
  std::optional<Spike> spike = {};
  std::optional<Spike> warning = {};  // a norm far above the mean that is no spike
  // Of `steps` steps together: this one, and those before it that are reported with it.
  std::int64_t steps = 1;
  std::int64_t tokens = 0, targets = 0;  // read, and those of the step whose loss counts
  double seconds = 0.0;
  double data_seconds = 0.0;  // of the host for reading text; of the rank that took longest in each step
  double data_wait = 0.0;     // of it, the time that the ranks stood still; not in JSON
  double model_flops = 0.0;   // of the model on one device, without recomputation
  std::optional<double> peak_flops_per_second = {};  // of a device; nothing if unknown
  std::int64_t peak_bytes = 0;                       // of the rank with the most
  BucketBytes memory = {};                           // at that rank's peak
  CommunicationCounters communication = {};          // summed over ranks
  std::vector<MoeMetrics> moe = {};
  std::int64_t system_allocations = 0;         // of all ranks during the step
  std::optional<HeldOutLoss> validation = {};  // of the parameters after the step
  std::optional<RunHashes> hashes = {};        // in the first step of a run, or of one that goes on

  // False of a step whose spike ended the run: it has a line of metrics, and no part in totals and checkpoints.
  bool taken() const { return !spike || spike->action != SpikeAction::stop; }
  bool has_no_target() const { return skipped && targets == 0; }
  double tokens_per_second() const { return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0; }
  double flops_per_second() const { return seconds > 0.0 ? model_flops / seconds : 0.0; }  // of a device
  double tflops() const { return flops_per_second() / 1e12; }
  // Model FLOP utilisation, a fraction of the peak.
  std::optional<double> mfu() const {
    return peak_flops_per_second ? std::optional(flops_per_second() / *peak_flops_per_second) : std::nullopt;
  }
};

// Chooses the steps that are reported, and joins to them those before. Reported are the first step, those at multiples
// of `interval`, and the last one. So is each step with a validation, a spike, a warning or a skipped update.
class ReportedSteps {
 public:
  ReportedSteps(std::int64_t interval, std::int64_t last_step) : interval_(interval), last_step_(last_step) {}
  // Called after every step. Nothing if the step is not reported by itself.
  std::optional<StepMetrics> add(const StepMetrics& step);
  // The last step of a run that is stopped, unless it is reported already.
  std::optional<StepMetrics> rest();

 private:
  std::int64_t interval_, last_step_;
  bool begun_ = false;
  StepMetrics waiting_ = {.steps = 0};  // the last step, with the sums over those since the last report
};

// Totals of all steps that a process has taken. The metrics of single steps are not kept.
struct RunTotals {
  std::int64_t steps = 0, tokens = 0;
  double seconds = 0.0;
  std::int64_t without_target = 0;  // steps of which no target counts, and that have no loss
  // Of steps that have one; NaN without.
  double first_loss = std::numeric_limits<double>::quiet_NaN(), last_loss = first_loss;

  void add(const StepMetrics& step);
};

// One line of metrics.jsonl, without the line break (docs/metrics.md). A loss or norm that is not finite becomes null.
// "lr" is the common rate of all parameter groups, or an object with the rate of each group if they differ. It is null
// if nothing is trained.
std::string to_json(const StepMetrics& metrics);

}  // namespace weft
