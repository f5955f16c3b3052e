#include "trainer/run/rank_run.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <ranges>
#include <utility>
#include <vector>

#include "layers/context_parallel.h"
#include "layers/kernels/routing.h"
#include "layers/segments.h"
#include "parallel/pipeline/accounts/accounts.h"
#include "parallel/runtime/phase_clock.h"
#include "trainer/config/config.h"
#include "trainer/costs/hardware.h"
#include "trainer/costs/step_flops.h"
#include "trainer/rank/dry_run.h"
#include "trainer/rank/same_program.h"
#include "trainer/rank/verify_step.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// The program. All ranks have the same one, and the same configuration: ranks with different messages would hang as
// soon as they connect.
Program shared_program(const ResolvedRun& run, Communicator& world) {
  Program program = step_program(run, run.mesh().coordinates(world.rank()));
  require_same_program(program, hashed_configuration(run.config()), world);
  return program;
}

// Later minus earlier counts, without keys that have not changed.
CommunicationCounters difference(const CommunicationCounters& later, const CommunicationCounters& earlier) {
  CommunicationCounters result;
  for (const auto& [key, count] : later) {
    const auto before = earlier.find(key);
    const CommunicationCount base = before == earlier.end() ? CommunicationCount{} : before->second;
    if (count.count != base.count) result[key] = {count.count - base.count, count.bytes - base.bytes};
  }
  return result;
}

// Devices that share the step of a run.
double devices_of(const Config& config) {
  const int sharing = config.run.device == DeviceKind::cuda ? config.run.ranks_per_device : 1;
  return static_cast<double>(config.parallelism.world()) / sharing;
}

// The measurements of the ranks beside the loss.
void add_measurements(const Config& config, const StepTotals& totals, StepMetrics& metrics) {
  const ModelConfig& model = config.model;
  metrics.communication = totals.communication;
  metrics.system_allocations = totals.system_allocations;
  metrics.memory = totals.at_peak;
  metrics.peak_bytes = totals.at_peak.total();
  for (std::size_t b = 0; b < totals.moe.size(); ++b) {
    if (model.blocks[b] != BlockKind::moe) continue;
    const MoeTotals& moe = totals.moe[b];
    MoeMetrics& balance =
        metrics.moe.emplace_back(expert_balance(static_cast<int>(b), moe.expert_tokens, config.parallelism.expert));
    balance.auxiliary_loss = moe.auxiliary_loss;
    balance.z_loss = moe.z_loss;
    const std::int64_t taken = std::reduce(moe.expert_tokens.begin(), moe.expert_tokens.end());
    const auto real = static_cast<double>(taken + moe.dropped), null = static_cast<double>(moe.null_choices);
    balance.dropped = static_cast<double>(moe.dropped) / std::max(real, 1.0);
    if (model.moe.null_copies() > 0) balance.null_share = null / (real + null);
    if (model.moe.selection_bias) balance.bias_norm = moe.bias_norm;
  }
  for (int block = model.layers(); block < std::ssize(model.blocks); ++block) {
    const double sum = totals.prediction_loss_sums[block];
    metrics.prediction_losses.push_back(sum / static_cast<double>(metrics.targets));
  }
  metrics.data_seconds = totals.data_seconds;
}

}  // namespace

RankRun::RankRun(const ResolvedRun& run, const TokenDataset& data, NvtxDomain& domain, const RankContext& context)
    : config_(run.config()),
      mesh_(run.mesh()),
      data_(data),
      world_(context.world),
      clock_(context.world.clock()),
      rank_step_(config_, mesh_, shared_program(run, context.world), context.world.rank(), context.backend,
                 context.world.clock(), groups_split_from(context.world),
                 Initialization{config_.run.seed, context.host_threads}),
      compute_times_(rank_step_.program(), rank_step_.actions(), rank_step_.stream()),
      begins_(context.begins),
      announced_(begins_, rank_step_.program(), rank_step_.actions()),
      scaler_(config_),
      spikes_(config_.spikes),
      helpers_(config_, rank_step_.stages(), rank_step_.stream()),
      model_flops_(published_step_flops(config_) / devices_of(config_)),
      peak_flops_per_second_(known_peak(config_, config_.run.device == DeviceKind::cuda ? cuda_card() : std::nullopt)),
      ahead_(static_cast<std::size_t>(rank_step_.text().rows())),
      text_(*context.backend.device, DType::int32, rank_step_.text().rows()) {
  const Program& program = rank_step_.program();
  profiler_ = std::make_unique<StepProfiler>(config_.profiling, domain, program, rank_step_.actions(),
                                             rank_step_.lanes(), world_);
  if (config_.run.device != DeviceKind::cpu) clock_.set_mode(PhaseClock::Mode::off);
  verify_step(config_, mesh_, world_.rank(), stages());
  // Rank 0 checks most in verify_step(). The barrier ends the run with its error before other ranks fail elsewhere.
  world_.barrier();
  predicted_ = dry_peak(config_, mesh_, program, world_.rank());
  if (config_.run.device == DeviceKind::cpu) return;
  make_ready(*context.backend.device);
  world_.barrier();
}

void RankRun::make_ready(Device& device) {
  const StepCalls calls = dry_calls(config_, mesh_, program(), world_.rank());
  const auto keys = std::views::keys(calls.products);
  const std::vector<ProductCall> products(keys.begin(), keys.end());
  products_ = rank_step_.kernels().products.measure(products);
  // A rank that is alone waits for nobody.
  if (world_.size() == 1) return;
  rank_step_.kernels().products.load(products);
  for (const AttentionCall& call : calls.attention) run_once(rank_step_.kernels(), call);
  stream().synchronize();
  std::vector<std::pair<void*, std::int64_t>> blocks;
  for (const auto& [bytes, count] : calls.host_blocks) {
    for (std::int64_t i = 0; i < count; ++i) blocks.emplace_back(device.allocate_staging(bytes), bytes);
  }
  for (const auto& [block, bytes] : blocks) device.release_staging(block, bytes);
}

HostBytes RankRun::host_bytes() {
  return {host_state_bytes(stages().planned()) + host_activation_bytes(program(), mesh_.coordinates(rank()).pp),
          rank_step_.host_ledger().live().total()};
}

std::string RankRun::attention() {
  if (!config_.model.has(Mixer::attention)) return "none";
  const HeadShape heads = head_shape(config_.model, config_.parallelism.tensor, config_.training.sequence_length);
  return rank_step_.kernels().kernels.attention.description(heads, stages().inputs().positions,
                                                            config_.precision_of(Family::dense).compute,
                                                            config_.data.documents != Documents::join);
}

void RankRun::read_ahead(std::int64_t first) {
  const BatchPlan plan{config_.microbatches(), config_.parallelism.data(), config_.training.microbatch_size};
  const std::int64_t length = config_.training.sequence_length;
  const auto runs = context_runs(length, config_.parallelism.context, mesh_.coordinates(world_.rank()).cp);
  first_ahead_ = first;
  fault_ahead_.reset();
  try {
    plan.read(data_, first, mesh_.data_index(world_.rank()), length, runs, config_.text_parts(), ahead_);
  } catch (const Error& error) {
    fault_ahead_ = error.what();
  }
}

TextCounts RankRun::counted_ahead() const {
  const Coordinates at = mesh_.coordinates(world_.rank());
  // The ranks of a pipeline and of a tensor group read the same text.
  if (at.pp != 0 || at.tp != 0 || fault_ahead_) return {};
  const std::size_t part = ahead_.size() / static_cast<std::size_t>(config_.text_parts().count());
  const auto targets = std::span(ahead_).subspan(part, part);
  return {std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; }),
          std::ssize(targets) - std::ranges::count(targets, padding_target)};
}

void RankRun::next_batch() {
  if (first_ahead_ != progress_.samples) {
    read_ahead(progress_.samples);
    const TextCounts own = counted_ahead();
    const std::vector<double> sums =
        sum_numbers(world_, std::array{static_cast<double>(own.targets), static_cast<double>(own.tokens)});
    counts_ = {std::llround(sums[0]), std::llround(sums[1])};
  }
  // A fault of data that is found during a step is a failure of the run.
  if (fault_ahead_) fail("{}", *fault_ahead_);
  // The staging memory is free: the device copied the last step's text before that step ended.
  std::ranges::copy(ahead_, text_.as<std::int32_t>().begin());
  text_.upload(stream(), rank_step_.text());
}

Progress RankRun::progress() const {
  Progress progress = progress_;
  progress.good_steps = scaler_.good_steps();
  progress.good_in_a_row = scaler_.good_in_a_row();
  if (scaler_.active()) progress.loss_scale = scaler_.scale();
  progress.loss_trend = spikes_.trend();
  progress.norm_trend = spikes_.norm_trend();
  return progress;
}

void RankRun::resume(const Progress& progress) {
  progress_ = progress;
  scaler_.resume(progress.good_steps, progress.good_in_a_row, progress.loss_scale);
  spikes_.resume(progress.loss_trend, progress.norm_trend);
}

std::vector<CheckpointRows> RankRun::checkpoint_rows() {
  return weft::checkpoint_rows(stages(), rank_step_.optimizer(), mesh_, world_.rank());
}

SumLimits RankRun::sum_limits() const {
  // Every sum exceeds -1: nothing is to be learned from a step without a target.
  if (counts_.targets == 0) return {.square_sum = -1.0};
  return spikes_.voids() ? spikes_.limits(static_cast<double>(counts_.targets), scaler_.scale()) : SumLimits{};
}

void RankRun::walk() {
  const auto span = profiler_->host("actions");
  const auto profiling = profiler_->observers();
  std::vector<ActionObserver*> observers(profiling.begin(), profiling.end());
  observers.insert(observers.end(), {&compute_times_, &announced_});
  observers.insert(observers.end(), watching_.begin(), watching_.end());
  rank_step_.walk(observers);
}

StepMetrics RankRun::step(std::int64_t step, const RunVotes& votes) {
  require(step == progress_.step + 1, "steps follow each other");
  profiler_->begin_step(step);
  const auto begin = std::chrono::steady_clock::now();
  step_ = step;
  {
    const auto span = profiler_->host("read_batch");
    next_batch();
  }
  // On a GPU the text of the next step is read while it computes.
  const double waited = seconds_since(begin);
  double data_seconds = waited;
  Device& device = stream().device();
  const std::int64_t allocations_before = device.system_allocations();
  const CommunicationCounters counted_before = world_.counters();
  ledger().reset_peak();
  rank_step_.begin({counts_, scaler_.scale(), scaler_.good_steps() + 1, sum_limits(), change_after_});
  helpers_.report(stage_ranks(), rank_step_.sums().report());
  compute_times_.begin_step();
  walk();
  const bool goes_on = step < config_.run.steps;
  if (goes_on) {
    const auto span = profiler_->host("read_ahead");
    const auto reading = std::chrono::steady_clock::now();
    read_ahead(progress_.samples + config_.training.global_batch_size);
    data_seconds += seconds_since(reading);
  }
  {
    const auto span = profiler_->host("wait for peers");
    rank_step_.end();
  }

  const BucketBytes at_peak = ledger().at_peak();
  if (at_peak.total() > measured_.total()) measured_ = at_peak;
  const StepTotals totals = [&] {
    const auto span = profiler_->host("wait for totals");
    return rank_step_.total({difference(world_.counters(), counted_before), at_peak,
                             device.system_allocations() - allocations_before, goes_on ? counted_ahead() : TextCounts(),
                             data_seconds, votes});
  }();
  StepMetrics metrics = end_update(totals);
  votes_ = totals.votes;
  counts_ = totals.next;
  add_measurements(config_, totals, metrics);
  metrics.data_wait = config_.run.device == DeviceKind::cpu ? metrics.data_seconds : waited;
  metrics.model_flops = model_flops_;
  metrics.peak_flops_per_second = peak_flops_per_second_;
  metrics.seconds = seconds_since(begin);
  profiler_->end_step();
  compute_times_.end_step();
  clock_.collect();
  return metrics;
}

StepMetrics RankRun::end_update(const StepTotals& totals) {
  const double norm = std::sqrt(totals.gradient_square_sum) / scaler_.scale();
  if (!scaler_.active() && !std::isfinite(norm)) fail_at_norm(norm);
  const std::int64_t update = scaler_.good_steps() + 1, targets = counts_.targets;
  StepMetrics metrics;
  metrics.step = step_;
  metrics.tokens = config_.training.global_batch_size * config_.training.sequence_length;
  metrics.targets = targets;
  metrics.loss = totals.loss_sum / static_cast<double>(targets);
  metrics.gradient_norm = norm;
  metrics.learning_rates = rank_step_.learning_rates();
  metrics.forced_balance = forces_balance(config_.model);
  if (scaler_.active()) metrics.loss_scale = scaler_.scale();
  const bool overflowed = !std::isfinite(norm);
  if (!overflowed && targets > 0) {
    metrics.spike =
        spikes_.find(totals.gradient_square_sum, totals.loss_sum, static_cast<double>(targets), scaler_.scale());
    metrics.warning = spikes_.find_warning(totals.gradient_square_sum, scaler_.scale());
  }
  const bool at_spike = metrics.spike && spikes_.voids();
  metrics.skipped = overflowed || at_spike || targets == 0;
  if (!at_spike && (targets > 0 || overflowed)) scaler_.end_step(!overflowed);
  if (!metrics.skipped) helpers_.move(totals, update);
  if (metrics.taken()) {
    progress_.step = step_;
    progress_.samples += config_.training.global_batch_size;
    progress_.tokens += metrics.tokens;
    if (!overflowed && targets > 0) spikes_.add(metrics.loss);
    if (!metrics.skipped) spikes_.add_norm(norm);
  }
  return metrics;
}

void RankRun::compare_copies() {
  helpers_.require_finite();
  require_same_copies(stages(), ledger(), stage_ranks());
}

HeldOutLoss RankRun::held_out(const HeldOutWindows& text) {
  const auto begin = std::chrono::steady_clock::now();
  if (!held_out_) {
    const Coordinates at = mesh_.coordinates(world_.rank());
    ForwardPlan plan = plan_forward(text.config(), mesh_, at);
    const AnnouncedActions announced(begins_, plan.program, plan.program.ranks[at.pp]);
    held_out_.reset(new HeldOut{std::move(plan), HeldOutReader(text, mesh_, world_.rank(), rank_step_.text(), stream()),
                                announced});
  }
  ActionObserver* observers[] = {&held_out_->announced};
  ledger().reset_peak();
  // A fault of data that is found during a step is a failure of the run.
  const auto read = [&](std::int64_t pass) {
    try {
      return held_out_->reader.read(pass);
    } catch (const Error& error) {
      fail("{}", error.what());
    }
  };
  rank_step_.forwards(held_out_->plan, text.passes(), read, observers);
  return text.loss(rank_step_.total({/*communication=*/{}, measured_}).loss_sum, seconds_since(begin));
}

double RankRun::norm_of_step_done_again() {
  rank_step_.begin({.text = counts_,
                    .update = scaler_.good_steps() + 1,
                    .void_above = {.square_sum = -1.0},  // every sum exceeds it
                    .change_after = change_after_});
  ActionObserver* observers[] = {&announced_};
  rank_step_.walk(observers);
  rank_step_.end();
  return std::sqrt(rank_step_.total({/*communication=*/{}, measured_}).gradient_square_sum);
}

void RankRun::fail_at_norm(double norm) {
  const auto parameter = stages().nonfinite_parameter();
  const double again = norm_of_step_done_again();
  const std::string outcome = std::isfinite(again)
                                  ? fmt::format(
                                        "the step done again has the norm {}: the same text and parameters gave other "
                                        "numbers, as a faulty device would",
                                        again)
                                  : "so it is when the step is done again";
  if (parameter) {
    fail("in step {} the gradient of {} holds a NaN or an infinity on this rank, before its reduction; {}", step_,
         *parameter, outcome);
  }
  // If the gradient of another rank is not finite, that rank's error ends this barrier. If all gradients were finite, a
  // sum has overflowed.
  world_.barrier();
  fail("the gradient norm of step {} is {}; {}", step_, norm, outcome);
}

}  // namespace weft
