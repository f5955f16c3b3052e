// One rank of a small world, with everything that a segment is handed, and a segment's weights as shard units lay them
// out. All of it is memory of the rank's own device under test; values come and go through staging.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/layers/poison.h"
#include "tests/layers/segment_case.h"
#include "tests/layers/test_backend.h"

namespace weft {

// The weights of one segment on one rank, and as many float32 gradients. Weights of a family lie in one buffer as
// shard units lay them out, in its dtype. The place of a frozen gradient is poisoned and not handed out.
class ParameterMemory {
 public:
  ParameterMemory(KernelContext& kernels, const SegmentSetup& setup, const std::vector<ParameterSpec>& specs,
                  const NamedValues& values);
  Weights weights() const { return weights_; }
  // Fresh, so that memory which nothing writes stays full of NaN, until a weight gradient has `begun`.
  Gradients gradients() const { return gradients_; }
  void begun() {
    for (Gradient& gradient : gradients_) gradient.fresh = false;
  }
  const std::vector<TensorView>& frozen_places() const { return frozen_; }
  void poison_weights(Stream& stream);

 private:
  std::map<Family, Tensor> weight_storage_;
  Tensor gradient_storage_;
  std::vector<ConstTensorView> weights_;
  std::vector<Gradient> gradients_;
  std::vector<TensorView> frozen_;
};

// A microbatch's text in the memory of a rank's device: rows `rows` of the whole, which has two predictors.
class TextMemory {
 public:
  TextMemory(KernelContext& kernels, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
             std::int64_t sequence_length, const std::vector<std::int64_t>& rows);
  // With documents each sequence is one.
  MicrobatchInput input(bool masks_documents = false) const;

 private:
  Tensor tokens_, targets_, noise_keys_, document_begins_;
  Tensor following_tokens_[2], following_targets_[2];
};

// What a step reported, by block of the model.
struct ReportedBlock {
  double auxiliary_loss = 0.0, z_loss = 0.0, prediction_loss = 0.0;
  std::vector<std::int64_t> expert_tokens;
  std::int64_t null_choices = 0;
};
struct Reported {
  double loss_sum = 0.0;
  std::vector<ReportedBlock> blocks;
};

// What a segment is handed on one rank of a world. `drop_expert_row` is a fault: rank 0 loses a row of what the experts
// send back.
class TestRank {
 public:
  TestRank(Communicator& world, const SegmentCase& the_case, bool drop_expert_row = false);

  // This rank's slice of [tokens, hidden] values of a microbatch.
  Tensor slice_of(const Values& values);
  Values values_of(ConstTensorView elements);
  Reported reported();

  // Before all else: the thread's device.
  std::unique_ptr<TestBackend> backend = make_test_backend();
  SegmentSetup setup;
  int data_index;
  std::vector<std::int64_t> rows;  // of a microbatch, those of this rank's tensor group
  std::unique_ptr<Stream> stream = backend->device().create_stream("compute");
  PoisoningDevice device{backend->device()};
  MemoryLedger ledger{device, *stream};
  PhaseClock clock;
  std::unique_ptr<MatrixProducts> products = backend->make_products(*stream, ledger, 1 << 20);  // poisoned per rank
  KernelContext kernels{ledger, clock, *stream, *products, backend->kernels()};
  std::unique_ptr<Communicator> tensor, sequence, expert, expert_relay, expert_tensor, all_tokens;
  Tensor rotary, report;
  LayerContext context;
};

}  // namespace weft
