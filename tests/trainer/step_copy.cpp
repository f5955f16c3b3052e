#include "tests/trainer/step_copy.h"

#include <cmath>
#include <mutex>

#include "parallel/comm/local.h"
#include "parallel/shard/replicated.h"
#include "trainer/learning_rate.h"

namespace weft {
namespace {

class Rank final : ActionHandler {
 public:
  Rank(const Config& config, const Mesh& mesh, const TokenDataset& data, Communicator& world, const StepCopy& copy)
      : config_(config),
        mesh_(mesh),
        data_(data),
        world_(world),
        copy_(copy),
        device_(make_cpu_device()),
        stream_(device_->create_stream("compute")),
        ledger_(*device_),
        products_(make_cpu_matrix_products()),
        kernels_{ledger_, world.clock(), *stream_, *products_},
        groups_(world, mesh),
        at_(mesh.coordinates(world.rank())),
        program_(step_program(config, mesh, at_)),
        stage_(plan_stage(config, mesh, at_, at_.pp), program_, config.run.seed, groups_, kernels_),
        optimizer_(config.optimizer, ledger_, world.clock()) {
    use_one_library_thread();
    const auto units = stage_.planned_units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      optimizer_.add(stage_.owned_rows(u), units[u].plan.replicated()
                                               ? ReplicatedParameters::bytes(units[u].plan.parameters) / 4
                                               : units[u].layout.shard_size);
    }
  }

  // The mean loss of the step and the norm of its gradient.
  std::pair<double, double> step(std::int64_t step) {
    step_ = step;
    read_batch();
    StepReport report;
    report.moe.resize(config_.model.blocks.size());
    const auto tokens = static_cast<double>(config_.training.global_batch_size * config_.training.sequence_length);
    stage_.begin_step(batch_, 1.0 / tokens, report);
    const auto& actions = program_.ranks[static_cast<std::size_t>(at_.pp)];
    execute(program_, actions, *this);
    stage_.end_step();
    copy_.report(world_.rank(), report);
    return {sum_over_ranks(report.loss_sum) / tokens, norm_};
  }
  StageRuntime& stage() { return stage_; }

 private:
  void forward(int segment, int microbatch) override { stage_.forward(segment, microbatch); }
  void backward_input(int segment, int microbatch) override { stage_.backward_input(segment, microbatch); }
  void backward_weight(int segment, int microbatch) override { stage_.backward_weight(segment, microbatch); }
  void unshard(int unit) override { stage_.unshard(unit); }
  void reshard(int unit) override { stage_.reshard(unit); }
  void reduce_gradient(int unit) override { stage_.reduce_gradient(unit); }
  void send(Op, int, int microbatch, int peer) override { stage_.send(microbatch, peer); }
  void receive(Op, int, int microbatch, int peer) override { stage_.receive(microbatch, peer); }
  void gradient_norm() override {
    copy_.after_reduction(stage_);
    double sum = 0.0;
    const auto units = stage_.planned_units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      sum += copy_.square_sum(units[u], stage_.owned_rows(u), mesh_, world_.rank());
    }
    norm_ = std::sqrt(sum_over_ranks(sum));
  }
  void optimizer_step() override {
    optimizer_.step(learning_rate(config_.lr_scheduler, config_.optimizer.learning_rate, step_, config_.run.steps),
                    step_, copy_.clip(norm_, config_.training.max_grad_norm));
  }

  double sum_over_ranks(double own) {
    Tensor total = ledger_.allocate(Bucket::workspace, DType::float64, 1, 1);
    total.as<double>()[0] = own;
    world_.all_reduce(total);
    return total.as<double>()[0];
  }

  void read_batch() {
    const auto length = static_cast<std::size_t>(config_.training.sequence_length);
    const auto sequences = static_cast<std::size_t>(config_.training.microbatch_size);
    const BatchPlan plan{config_.microbatches(), config_.parallelism.data(), config_.training.microbatch_size};
    const int data_rank = copy_.data_rank(mesh_.data_index(world_.rank()));
    batch_ = {};
    for (std::int64_t m = 0; m < plan.microbatches; ++m) {
      auto& tokens = batch_.tokens.emplace_back(sequences * length);
      auto& targets = batch_.targets.emplace_back(sequences * length);
      for (std::size_t s = 0; s < sequences; ++s) {
        data_.read(plan.sample(step_ - 1, m, data_rank, static_cast<std::int64_t>(s)),
                   std::span(tokens).subspan(s * length, length), std::span(targets).subspan(s * length, length));
      }
    }
  }

  const Config& config_;
  const Mesh& mesh_;
  const TokenDataset& data_;
  Communicator& world_;
  const StepCopy& copy_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  MemoryLedger ledger_;
  std::unique_ptr<MatrixProducts> products_;
  KernelContext kernels_;
  RankGroups groups_;
  Coordinates at_;
  Program program_;
  StageRuntime stage_;
  Optimizer optimizer_;
  std::int64_t step_ = 0;
  StepBatch batch_;
  double norm_ = 0.0;
};

}  // namespace

LearnedRun learn_by_copy(const Config& config, const StepCopy& copy) {
  const Mesh mesh(config.parallelism);
  const TokenDataset data(config.data.train, config.training.sequence_length, config.model.vocab_size, config.run.seed);
  LearnedRun learned;
  WeightCollector collector;
  std::mutex mutex;
  run_local_ranks(mesh.world(), [&](Communicator& world) {
    Rank rank(config, mesh, data, world, copy);
    for (std::int64_t step = 1; step <= config.run.steps; ++step) {
      const auto [loss, norm] = rank.step(step);
      if (world.rank() != 0) continue;
      learned.losses.push_back(loss);
      learned.gradient_norms.push_back(norm);
    }
    const std::lock_guard lock(mutex);
    collector.add(rank.stage());
  });
  collector.finish(learned);
  return learned;
}

}  // namespace weft
