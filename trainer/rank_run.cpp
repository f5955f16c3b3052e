#include "trainer/rank_run.h"

#include <chrono>
#include <cmath>

#include "layers/context_parallel.h"
#include "trainer/gradient_norm.h"
#include "trainer/learning_rate.h"

namespace weft {
namespace {

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

RankRun::RankRun(const Config& config, const Mesh& mesh, const TokenDataset& data, Communicator& world)
    : config_(config),
      mesh_(mesh),
      data_(data),
      world_(world),
      clock_(world.clock()),
      device_(make_cpu_device()),
      stream_(device_->create_stream("compute")),
      ledger_(*device_),
      products_(make_cpu_matrix_products()),
      kernels_{ledger_, clock_, *stream_, *products_},
      groups_(world, mesh),
      optimizer_(config.optimizer, ledger_, clock_) {
  use_one_library_thread();
  const Coordinates at = mesh.coordinates(world.rank());
  program_ = step_program(config, mesh, at);
  actions_ = program_.ranks[static_cast<std::size_t>(at.pp)];
  range_names_ = range_names(program_, actions_);
  PlannedStage planned = plan_stage(config, mesh, at, at.pp);
  predicted_ = predict_memory(planned, program_, at.pp);
  stage_ = std::make_unique<StageRuntime>(std::move(planned), program_, config.run.seed, groups_, kernels_);
  const auto units = stage_->planned_units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    const bool replicated = units[u].plan.replicated();
    optimizer_.add(stage_->owned_rows(u),
                   replicated ? ReplicatedParameters::bytes(units[u].plan.parameters) / size_of(DType::float32)
                              : units[u].layout.shard_size);
  }
}

void RankRun::read_batch() {
  const auto microbatches = static_cast<std::size_t>(config_.microbatches());
  const auto length = static_cast<std::size_t>(config_.training.sequence_length);
  const BatchPlan plan{config_.microbatches(), config_.parallelism.data(), config_.training.microbatch_size};
  const auto runs =
      context_runs(config_.training.sequence_length, config_.parallelism.context, mesh_.coordinates(world_.rank()).cp);
  std::vector<std::int32_t> tokens(length), targets(length);
  batch_.tokens.assign(microbatches, {});
  batch_.targets.assign(microbatches, {});
  for (std::size_t m = 0; m < microbatches; ++m) {
    for (std::int64_t s = 0; s < config_.training.microbatch_size; ++s) {
      data_.read(plan.sample(step_ - 1, static_cast<std::int64_t>(m), mesh_.data_index(world_.rank()), s), tokens,
                 targets);
      for (const Range& run : runs) {
        const auto append = [&](const std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
          to.insert(to.end(), from.begin() + run.begin, from.begin() + run.begin + run.count);
        };
        append(tokens, batch_.tokens[m]);
        append(targets, batch_.targets[m]);
      }
    }
  }
}

StepMetrics RankRun::step(std::int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  step_ = step;
  const std::int64_t allocations_before = ledger_.system_allocations();
  const CommunicationCounters counted_before = world_.counters();
  ledger_.reset_peak();
  read_batch();

  StepReport report;
  report.moe.resize(config_.model.blocks.size());
  const double tokens = static_cast<double>(config_.training.global_batch_size * config_.training.sequence_length);
  stage_->begin_step(batch_, 1.0 / tokens, report);
  execute(program_, actions_, range_names_, *this);
  stage_->end_step();

  const RankMeasurements own{report, difference(world_.counters(), counted_before), ledger_.at_peak(),
                             ledger_.system_allocations() - allocations_before};
  const StepTotals totals =
      total_over_ranks(world_, ledger_, own, static_cast<std::size_t>(config_.model.moe.num_experts));
  measured_ = totals.at_peak_of_rank;

  StepMetrics metrics;
  metrics.step = step;
  metrics.tokens = static_cast<std::int64_t>(tokens);
  metrics.loss = totals.loss_sum / tokens;
  metrics.gradient_norm = gradient_norm_;
  metrics.learning_rate = learning_rate_;
  metrics.communication = totals.communication;
  metrics.system_allocations = totals.system_allocations;
  for (const BucketBytes& bytes : measured_) {
    if (bytes.total() <= metrics.peak_bytes) continue;
    metrics.peak_bytes = bytes.total();
    metrics.memory = bytes;
  }
  for (std::size_t b = 0; b < totals.moe.size(); ++b) {
    if (config_.model.blocks[b] == BlockKind::dense) continue;
    const MoeReport& moe = totals.moe[b];
    std::int64_t largest = 0, sum = 0;
    for (std::int64_t count : moe.expert_tokens) {
      largest = std::max(largest, count);
      sum += count;
    }
    const double mean = static_cast<double>(sum) / static_cast<double>(moe.expert_tokens.size());
    metrics.moe.push_back({static_cast<int>(b), moe.auxiliary_loss, moe.z_loss, static_cast<double>(largest) / mean});
  }
  metrics.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return metrics;
}

void RankRun::gradient_norm() {
  double sum = 0.0;
  const auto units = stage_->planned_units();
  for (std::size_t u = 0; u < units.size(); ++u) {
    sum += counted_square_sum(units[u], stage_->owned_rows(u), mesh_, world_.rank());
  }
  Tensor total = ledger_.allocate(Bucket::workspace, DType::float64, 1, 1);
  total.as<double>()[0] = sum;
  world_.all_reduce(total);
  gradient_norm_ = std::sqrt(total.as<double>()[0]);
  if (!std::isfinite(gradient_norm_)) fail("the gradient norm of step {} is {}", step_, gradient_norm_);
}

void RankRun::optimizer_step() {
  learning_rate_ = learning_rate(config_.lr_scheduler, config_.optimizer.learning_rate, step_, config_.run.steps);
  optimizer_.step(learning_rate_, step_, clip_factor(gradient_norm_, config_.training.max_grad_norm));
}

}  // namespace weft
