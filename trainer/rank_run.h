// Everything one rank needs to train, put together: memory, groups, the compiled step, its stage and its optimizer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layers/kernels/matrix_products.h"
#include "parallel/pipeline/execute.h"
#include "trainer/data.h"
#include "trainer/metrics.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/stage_runtime.h"
#include "trainer/step_totals.h"

namespace weft {

class RankRun final : private ActionHandler {
 public:
  // Collective over `world`. The arguments outlive the run.
  RankRun(const Config& config, const Mesh& mesh, const TokenDataset& data, Communicator& world);

  // One training step, collective over the world; `step` counts from 1. Every rank gets the same metrics.
  StepMetrics step(std::int64_t step);

  int rank() const { return world_.rank(); }
  StageRuntime& stage() { return *stage_; }
  MemoryLedger& ledger() { return ledger_; }
  PhaseClock& clock() { return clock_; }
  const Program& program() const { return program_; }
  const PredictedMemory& predicted() const { return predicted_; }
  // Buckets at the peak of the last step, of every rank.
  const std::vector<BucketBytes>& measured() const { return measured_; }

 private:
  void forward(int segment, int microbatch) override { stage_->forward(segment, microbatch); }
  void backward_input(int segment, int microbatch) override { stage_->backward_input(segment, microbatch); }
  void backward_weight(int segment, int microbatch) override { stage_->backward_weight(segment, microbatch); }
  void unshard(int unit) override { stage_->unshard(unit); }
  void reshard(int unit) override { stage_->reshard(unit); }
  void reduce_gradient(int unit) override { stage_->reduce_gradient(unit); }
  void send(Op, int, int microbatch, int peer) override { stage_->send(microbatch, peer); }
  void receive(Op, int, int microbatch, int peer) override { stage_->receive(microbatch, peer); }
  void gradient_norm() override;
  void optimizer_step() override;

  void read_batch();

  const Config& config_;
  const Mesh& mesh_;
  const TokenDataset& data_;
  Communicator& world_;
  PhaseClock& clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  MemoryLedger ledger_;
  std::unique_ptr<MatrixProducts> products_;
  KernelContext kernels_;
  RankGroups groups_;
  Program program_;
  std::span<const Action> actions_;  // this rank's list in program_
  std::vector<std::string> range_names_;
  PredictedMemory predicted_;
  std::unique_ptr<StageRuntime> stage_;
  Optimizer optimizer_;
  std::vector<BucketBytes> measured_;

  // The step in progress.
  std::int64_t step_ = 0;
  StepBatch batch_;
  double gradient_norm_ = 0.0, learning_rate_ = 0.0;
};

}  // namespace weft
