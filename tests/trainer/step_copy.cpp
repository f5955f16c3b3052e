#include "tests/trainer/step_copy.h"

#include <cmath>
#include <iterator>
#include <mutex>

#include "parallel/comm/local.h"
#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/rank/backend.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

class Rank {
 public:
  Rank(const Config& config, const Mesh& mesh, const TokenDataset& data, Communicator& world, const StepCopy& copy)
      : config_(config),
        mesh_(mesh),
        data_(data),
        world_(world),
        copy_(copy),
        backend_(make_cpu_backend()),
        lanes_(*backend_->device),
        ledger_(*backend_->device, stream_),
        host_ledger_(*backend_->device, stream_, MemoryPlace::host),
        products_(backend_->make_products(stream_, ledger_)),
        kernels_{ledger_, world.clock(), stream_, *products_, backend_->layer_kernels},
        at_(mesh.coordinates(world.rank())),
        program_(step_program(ResolvedRun(config), at_)),
        groups_(world.rank(), mesh, islands_of(config), transfers_of(program_), lanes_, tied_ranks_of(program_),
                groups_split_from(world)),
        stages_(plan_inputs(config, at_), plan_stages(config, mesh, at_), program_, Initialization{config.run.seed},
                lanes_, groups_, kernels_, host_ledger_),
        optimizer_(config, backend_->optimizer_kernels,
                   {groups_.on(Lane::compute, Group::world), groups_.on(Lane::compute, Group::tokens)}, *products_,
                   {lanes_, ledger_, host_ledger_}, world.clock()),
        text_(ledger_.allocate(Bucket::workspace, DType::int32, 2 * config.microbatches() * config.microbatch_tokens(),
                               1)),
        report_(ledger_.allocate(Bucket::workspace, DType::float64,
                                 StepReport::size(std::ssize(config.model.blocks), config.model.moe.num_experts), 1)),
        sum_(ledger_.allocate(Bucket::workspace, DType::float64, 1, 1)),
        gradient_scale_(ledger_.allocate(Bucket::workspace, DType::float32, 1, 1)) {
    const auto units = stages_.planned_units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      optimizer_.add(*units[u], stages_.owned_rows(u), mesh, world.rank());
    }
  }

  // The mean loss of the step and the norm of its gradient.
  std::pair<double, double> step(std::int64_t step) {
    step_ = step;
    fill(stream_, report_, 0.0f);
    const StepReport report(report_, config_.model.moe.num_experts);
    const auto sequences = static_cast<double>(config_.training.global_batch_size);
    const double tokens = sequences * static_cast<double>(config_.training.sequence_length);
    stages_.begin_step(read_batch(), {1.0 / tokens, 1.0 / tokens, 1.0 / sequences}, 1.0, report);
    const auto& actions = program_.ranks[static_cast<std::size_t>(at_.pp)];
    execute(program_, actions, [this](const Action& action) {
      if (action.op == Op::gradient_norm) return gradient_norm();
      if (action.op == Op::optimizer_step) return optimizer_step();
      stages_.perform(program_, action);
    });
    stages_.end_step();
    copy_.report(stream_, report);
    return {sum_over_ranks(report.loss()) / tokens, norm_};
  }
  Stream& stream() { return stream_; }
  RankStages& stages() { return stages_; }

 private:
  void gradient_norm() {
    stream_.wait_for(lanes_[Lane::reduce]);
    stages_.finish_reductions();
    copy_.after_reduction(stream_, stages_);
    fill(stream_, sum_, 0.0f);
    const auto units = stages_.planned_units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      copy_.add_squares(stream_, *units[u], stages_.owned_rows(u), mesh_, world_.rank(), sum_);
    }
    norm_ = std::sqrt(sum_over_ranks(sum_));
  }
  void optimizer_step() {
    const auto scale = static_cast<float>(copy_.clip(norm_, config_.training.max_grad_norm));
    write<float>(stream_, {&scale, 1}, gradient_scale_);
    optimizer_.step(step_, gradient_scale_);
  }

  // Of [1, 1] float64, in place.
  double sum_over_ranks(TensorView own) {
    groups_.on(Lane::compute, Group::world).all_reduce(own);
    return read<double>(stream_, own).front();
  }

  StepBatch read_batch() {
    const auto length = static_cast<std::size_t>(config_.training.sequence_length);
    const BatchPlan plan{config_.microbatches(), config_.parallelism.data(), config_.training.microbatch_size};
    const int data_rank = copy_.data_rank(mesh_.data_index(world_.rank()));
    std::vector<std::int32_t> tokens, targets;
    for (std::int64_t m = 0; m < plan.microbatches; ++m) {
      for (std::int64_t s = 0; s < config_.training.microbatch_size; ++s) {
        tokens.resize(tokens.size() + length);
        targets.resize(tokens.size());
        data_.read(plan.sample((step_ - 1) * plan.sequences(), m, data_rank, s),
                   {std::span(tokens).last(length), std::span(targets).last(length), {}});
      }
    }
    const TensorView text = text_;
    const std::int64_t half = text.rows() / 2;
    write<std::int32_t>(stream_, tokens, text.rows_from(0, half));
    write<std::int32_t>(stream_, targets, text.rows_from(half, half));
    return {text.rows_from(0, half), text.rows_from(half, half)};
  }

  const Config& config_;
  const Mesh& mesh_;
  const TokenDataset& data_;
  Communicator& world_;
  const StepCopy& copy_;
  std::unique_ptr<Backend> backend_;
  Lanes lanes_;
  Stream& stream_ = lanes_[Lane::compute];
  MemoryLedger ledger_, host_ledger_;
  std::unique_ptr<MatrixProducts> products_;
  KernelContext kernels_;
  Coordinates at_;
  Program program_;
  RankGroups groups_;
  RankStages stages_;
  Optimizer optimizer_;
  Tensor text_, report_, sum_, gradient_scale_;
  std::int64_t step_ = 0;
  double norm_ = 0.0;
};

}  // namespace

LearnedRun learn_by_copy(const Config& config, const StepCopy& copy) {
  const Mesh mesh(config.parallelism);
  const TokenDataset data = training_data(config);
  LearnedRun learned;
  WeightCollector collector;
  std::mutex mutex;
  run_local_ranks(mesh.world(), [&](Communicator& world) {
    FaultyLink link(world, copy.link_faults());
    Rank rank(config, mesh, data, link, copy);
    for (std::int64_t step = 1; step <= config.run.steps; ++step) {
      const auto [loss, norm] = rank.step(step);
      if (world.rank() != 0) continue;
      learned.losses.push_back(loss);
      learned.gradient_norms.push_back(norm);
    }
    const std::lock_guard lock(mutex);
    collector.add(rank.stream(), rank.stages());
  });
  collector.finish(learned);
  return learned;
}

}  // namespace weft
