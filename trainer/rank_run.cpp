#include "trainer/rank_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "layers/context_parallel.h"
#include "trainer/gradient_norm.h"
#include "trainer/learning_rate.h"
#include "trainer/same_program.h"
#include "trainer/unit_policy.h"
#include "trainer/update_plan.h"
#include "trainer/verify_step.h"

namespace weft {
namespace {

std::int64_t step_tokens(const Config& config) {
  return config.microbatches() * config.microbatch_tokens() / config.parallelism.context;
}

// Looked over before anything is built on it: ranks that disagree about the messages of a step would already hang when
// they connect.
Program shared_program(const Config& config, const Mesh& mesh, Communicator& world) {
  Program program = step_program(config, mesh, mesh.coordinates(world.rank()));
  require_same_program(program, world);
  return program;
}

// Later minus earlier counts; keys that did not move are left out.
CommunicationCounters difference(const CommunicationCounters& later, const CommunicationCounters& earlier) {
  CommunicationCounters result;
  for (const auto& [key, count] : later) {
    const auto before = earlier.find(key);
    const CommunicationCount base = before == earlier.end() ? CommunicationCount{} : before->second;
    if (count.count != base.count) result[key] = {count.count - base.count, count.bytes - base.bytes};
  }
  return result;
}

}  // namespace

RankRun::RankRun(const Config& config, const Mesh& mesh, const TokenDataset& data, NvtxDomain& domain,
                 const RankSeat& seat)
    : config_(config),
      mesh_(mesh),
      data_(data),
      world_(seat.world),
      clock_(seat.world.clock()),
      lanes_(seat.backend.device()),
      ledger_(seat.backend.device(), lanes_[Lane::compute]),
      products_(seat.backend.make_products(lanes_[Lane::compute], ledger_)),
      kernels_{ledger_, clock_, lanes_[Lane::compute], *products_, seat.backend.layer_kernels()},
      program_(shared_program(config, mesh, seat.world)),
      actions_(program_.ranks[static_cast<std::size_t>(mesh.coordinates(seat.world.rank()).pp)]),
      groups_(seat.world, mesh, islands_of(config), transfers_of(program_), lanes_),
      optimizer_kernels_(seat.backend.optimizer_kernels()),
      optimizer_(config, optimizer_kernels_,
                 {groups_.on(Lane::compute, Group::world), groups_.on(Lane::compute, Group::tokens)}, *products_,
                 ledger_, clock_),
      scaler_(config),
      text_(seat.backend.device(), DType::int32, 2 * step_tokens(config)),
      text_on_device_(ledger_.allocate(Bucket::workspace, DType::int32, 2 * step_tokens(config), 1)),
      sums_(lanes_[Lane::compute], ledger_, config.model.blocks.size(),
            static_cast<std::size_t>(config.model.moe.num_experts), static_cast<std::size_t>(mesh.world())),
      gradient_scale_(ledger_.allocate(Bucket::workspace, DType::float32, 1, 1)) {
  const Coordinates at = mesh.coordinates(world_.rank());
  profiler_ = std::make_unique<StepProfiler>(config.profiling, domain, program_, actions_, lanes_, world_);
  if (seat.begins) announced_.emplace(seat.begins, range_names(program_, actions_));
  if (config.run.device != DeviceKind::cpu) clock_.set_mode(PhaseClock::Mode::off);
  std::vector<PlannedStage> planned = plan_stages(config, mesh, at);
  predicted_ = predict_memory(planned, program_, at.pp, update_bytes(config, mesh, at));
  stages_ = std::make_unique<RankStages>(plan_inputs(config, at), std::move(planned), program_, config.run.seed, lanes_,
                                         groups_, kernels_);
  const auto units = stages_->planned_units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (!units[u]->frozen) optimizer_.add(*units[u], stages_->owned_rows(u), mesh, world_.rank());
  }
  verify_step(config, mesh, world_.rank(), *stages_);
}

std::string RankRun::attention() const {
  const PlannedInputs& inputs = stages_->inputs();
  HeadShape heads = inputs.rotary.heads;
  heads.query_heads = config_.model.num_attention_heads / config_.parallelism.tensor;
  heads.key_value_heads = config_.model.num_key_value_heads / config_.parallelism.tensor;
  heads.sequence_length = config_.training.sequence_length;
  return kernels_.kernels.attention.description(heads, inputs.positions, config_.precision.compute);
}

void RankRun::read_batch() {
  const auto length = static_cast<std::size_t>(config_.training.sequence_length);
  const BatchPlan plan{config_.microbatches(), config_.parallelism.data(), config_.training.microbatch_size};
  const auto runs =
      context_runs(config_.training.sequence_length, config_.parallelism.context, mesh_.coordinates(world_.rank()).cp);
  std::vector<std::int32_t> tokens(length), targets(length);
  // The device took the last step's text before that step ended.
  const std::span<std::int32_t> text = text_.as<std::int32_t>();
  auto next_token = text.begin(), next_target = text.begin() + std::ssize(text) / 2;
  for (std::int64_t m = 0; m < config_.microbatches(); ++m) {
    for (std::int64_t s = 0; s < config_.training.microbatch_size; ++s) {
      data_.read(plan.sample(progress_.samples, m, mesh_.data_index(world_.rank()), s), tokens, targets);
      for (const Range& run : runs) {
        next_token = std::copy_n(tokens.begin() + run.begin, run.count, next_token);
        next_target = std::copy_n(targets.begin() + run.begin, run.count, next_target);
      }
    }
  }
  text_.upload(kernels_.stream, text_on_device_);
}

Progress RankRun::progress() const {
  Progress progress = progress_;
  progress.good_steps = scaler_.good_steps();
  progress.good_in_a_row = scaler_.good_in_a_row();
  if (scaler_.active()) progress.loss_scale = scaler_.scale();
  return progress;
}

void RankRun::resume(const Progress& progress) {
  progress_ = progress;
  scaler_.resume(progress.good_steps, progress.good_in_a_row, progress.loss_scale);
}

std::vector<CheckpointRows> RankRun::checkpoint_rows() {
  return weft::checkpoint_rows(*stages_, optimizer_, mesh_, world_.rank());
}

StepMetrics RankRun::step(std::int64_t step, const RunVotes& votes) {
  require(step == progress_.step + 1, "steps follow each other");
  profiler_->begin_step(step);
  const auto begin = std::chrono::steady_clock::now();
  step_ = step;
  Device& device = kernels_.stream.device();
  const std::int64_t allocations_before = device.system_allocations();
  const CommunicationCounters counted_before = world_.counters();
  ledger_.reset_peak();
  {
    const auto span = profiler_->host("read_batch");
    read_batch();
  }

  const double tokens = static_cast<double>(config_.training.global_batch_size * config_.training.sequence_length);
  const std::int64_t half = text_on_device_.rows() / 2;
  sums_.begin_step();
  stages_->begin_step({text_on_device_.view().rows_from(0, half), text_on_device_.view().rows_from(half, half)},
                      1.0 / tokens, scaler_.scale(), sums_.report());
  {
    const auto span = profiler_->host("actions");
    const auto profiling = profiler_->observers();
    std::vector<ActionObserver*> observers(profiling.begin(), profiling.end());
    if (announced_) observers.push_back(&*announced_);
    observers.insert(observers.end(), watching_.begin(), watching_.end());
    execute(program_, actions_, *this, observers);
  }
  {
    const auto span = profiler_->host("wait for peers");
    stages_->end_step();
  }

  const StepTotals totals = [&] {
    const auto span = profiler_->host("wait for totals");
    return sums_.total(groups_.on(Lane::compute, Group::world),
                       {difference(world_.counters(), counted_before), ledger_.at_peak(), predicted_.bytes,
                        device.system_allocations() - allocations_before, votes});
  }();
  const double norm = std::sqrt(totals.gradient_square_sum) / scaler_.scale();
  if (!scaler_.active()) require_finite(norm);
  measured_ = totals.at_peak_of_rank;
  predicted_of_all_ = totals.predicted_of_rank;
  votes_ = totals.votes;
  progress_.step = step;
  progress_.samples += config_.training.global_batch_size;
  progress_.tokens += config_.training.global_batch_size * config_.training.sequence_length;

  StepMetrics metrics;
  metrics.step = step;
  metrics.tokens = static_cast<std::int64_t>(tokens);
  metrics.loss = totals.loss_sum / tokens;
  metrics.gradient_norm = norm;
  metrics.learning_rate = learning_rate_;
  if (scaler_.active()) metrics.loss_scale = scaler_.scale();
  metrics.skipped = !std::isfinite(norm);
  scaler_.end_step(!metrics.skipped);
  metrics.communication = totals.communication;
  metrics.system_allocations = totals.system_allocations;
  for (const BucketBytes& bytes : measured_) {
    if (bytes.total() <= metrics.peak_bytes) continue;
    metrics.peak_bytes = bytes.total();
    metrics.memory = bytes;
  }
  for (std::size_t b = 0; b < totals.moe.size(); ++b) {
    if (config_.model.blocks[b] == BlockKind::dense) continue;
    const MoeTotals& moe = totals.moe[b];
    std::int64_t largest = 0, sum = 0;
    for (std::int64_t count : moe.expert_tokens) {
      largest = std::max(largest, count);
      sum += count;
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(moe.expert_tokens.size());
    metrics.moe.push_back({static_cast<int>(b), moe.auxiliary_loss, moe.z_loss, static_cast<double>(largest) / mean});
  }
  metrics.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  profiler_->end_step();
  clock_.collect();
  return metrics;
}

void RankRun::gradient_norm() {
  Stream& compute = kernels_.stream;
  compute.wait_for(lanes_[Lane::reduce]);
  stages_->finish_reductions();
  const TensorView sum = sums_.gradient_square_sum();
  const auto units = stages_->planned_units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    add_counted_squares(compute, *units[u], stages_->owned_rows(u), mesh_, world_.rank(), sum);
  }
  groups_.on(Lane::compute, Group::world).all_reduce(sum);
  optimizer_kernels_.clip_scale(compute, sum, config_.training.max_grad_norm, 1.0 / scaler_.scale(), gradient_scale_);
}

void RankRun::optimizer_step() {
  const std::int64_t update = scaler_.good_steps() + 1;
  learning_rate_ = learning_rate(config_.lr_scheduler, config_.optimizer.learning_rate, update, config_.run.steps);
  if (change_after_) kernels_.stream.wait(change_after_);
  optimizer_.step(update, gradient_scale_);
}

void RankRun::require_finite(double norm) {
  if (std::isfinite(norm)) return;
  if (const auto parameter = stages_->nonfinite_parameter()) {
    fail("in step {} the gradient of {} holds a NaN or an infinity on this rank, before its reduction", step_,
         *parameter);
  }
  // It began elsewhere: that rank's words come first, and end this wait. If it began nowhere, a sum overflowed.
  world_.barrier();
  fail("the gradient norm of step {} is {}", step_, norm);
}

}  // namespace weft
