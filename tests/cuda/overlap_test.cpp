// Gathers and reductions behind computation, measured on a GPU over a link that is slow on purpose. Behind each gather
// its lane does nothing for a while. lane_overlap_test.cpp (tests/trainer) proves from the order of the queues what
// may run side by side; here the GPU does it. Two ranks share the GPU as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "parallel/comm/local.h"
#include "tests/cuda/delay.h"
#include "tests/trainer/slow_link.h"
#include "tests/trainer/tiny_run.h"

namespace weft {
namespace {

// Streams beyond the GPU's queues, 8 unless the driver is told otherwise, wait for each other without a reason; two
// ranks have 12. The driver reads this when a process first uses it.
const int queues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

constexpr int ranks = 2;
constexpr std::int64_t overlap_steps = 8, first_measured = 4;

// About 0.4 TFLOP in the forward of a dense part: a millisecond or two, of which a gather of its 100 MB takes a tenth.
Config large_config(int lookahead) {
  Config config = tiny_config("d*8");
  config.model.vocab_size = 256;
  config.model.hidden_size = 2048;
  config.model.intermediate_size = 8192;
  config.model.num_attention_heads = config.model.num_key_value_heads = 16;
  config.model.head_dim = 128;
  config.model.initializer_range = 0.02;
  config.training.sequence_length = 1024;
  config.training.microbatch_size = 4;
  config.training.global_batch_size = 4 * ranks;
  config.precision.compute = DType::bfloat16;
  config.parallelism = {.data_shard = ranks};
  config.shard = {.residency = {Residency::reshard_after_use},
                  .lookahead = lookahead,
                  .reduction = {ReductionKind::last_microbatch}};
  for (auto& [family, policy] : config.shard_by_family) policy = config.shard;
  config.run.steps = overlap_steps;
  config.run.device = DeviceKind::cuda;
  config.run.ranks_per_device = ranks;
  config.profiling = {.first_step = first_measured, .last_step = overlap_steps};
  return config;
}

// Of one step of rank 0, on its lanes' clocks, in microseconds.
struct Timed {
  double compute_lane = 0.0;               // from the begin of the first forward to the end of the last backward
  double whole = 0.0;                      // to the end of the optimizer's work
  double shortest_segment = 0.0;           // forward of a part of a block
  double gathers = 0.0, reductions = 0.0;  // how many
};

Timed timed(const std::vector<TraceSpan>& spans, std::int64_t step) {
  Timed result{.shortest_segment = 1e30};
  double begin = 1e30, end = 0.0, last = 0.0;
  for (const TraceSpan& span : spans) {
    if (span.step != step || !span.lane) continue;
    result.gathers += span.name.starts_with("unshard ");
    result.reductions += span.name.starts_with("reduce_grad ");
    if (span.lane == Lane::compute) last = std::max(last, span.end);
    if (!span.name.starts_with("PP:")) continue;
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
    if (span.name.starts_with("PP:0F blocks.")) {
      result.shortest_segment = std::min(result.shortest_segment, 1e6 * (span.end - span.begin));
    }
  }
  result.compute_lane = 1e6 * (end - begin);
  result.whole = 1e6 * (last - begin);
  return result;
}

// The fastest of the measured steps: what else the machine does only adds.
Timed measured(int lookahead, double gather_delay, double reduce_delay) {
  const Config config = large_config(lookahead);
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  NvtxDomain domain;
  const auto link_of = [](double microseconds) {
    return [=](Stream& stream) {
      if (microseconds > 0) delay(stream, microseconds);
    };
  };
  std::vector<TraceSpan> spans;
  run_local_ranks(ranks, [&](Communicator& world) {
    const auto backend = make_cuda_backend(0);
    SlowLinkCommunicator slow(world, {link_of(gather_delay), link_of(reduce_delay)});
    RankRun run(resolved, data, domain, {*backend, slow});
    for (std::int64_t step = 1; step <= overlap_steps; ++step) run.step(step);
    if (world.rank() == 0) spans = run.profiler().trace()->spans();
  });
  Timed best{.compute_lane = 1e30};
  for (std::int64_t step = first_measured; step <= overlap_steps; ++step) {
    const Timed one = timed(spans, step);
    if (one.compute_lane < best.compute_lane) best = one;
  }
  fmt::print(
      "lookahead {}, gathers +{:.0f} us, reductions +{:.0f} us: compute lane {:.0f} us, with optimizer {:.0f} us, "
      "shortest segment {:.0f} us, {} gathers, {} reductions\n",
      lookahead, gather_delay, reduce_delay, best.compute_lane, best.whole, best.shortest_segment, best.gathers,
      best.reductions);
  return best;
}

class CudaOverlap : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
    // Segments wait for gathers inside their spans, so their length is taken where gathers are early.
    const Timed plain = measured(1, 0, 0);
    delay_ = 0.5 * plain.shortest_segment;
    plain_ = plain;
  }

  Timed plain_;
  double delay_ = 0.0;  // shorter than any segment of a block computes
};

TEST_F(CudaOverlap, GathersHideBehindTheSegmentBefore) {
  const Timed without = measured(0, 0, 0), without_slow = measured(0, delay_, 0), with_slow = measured(1, delay_, 0);
  const double added = plain_.gathers * delay_;
  const double exposed = (without_slow.compute_lane - without.compute_lane) / added;
  const double hidden = 1.0 - (with_slow.compute_lane - plain_.compute_lane) / added;
  fmt::print("{:.0f} gathers x {:.0f} us = {:.0f} us: exposed {:.0f} % with lookahead 0, hidden {:.0f} % with 1\n",
             plain_.gathers, delay_, added, 100 * exposed, 100 * hidden);
  // Without lookahead a gather starts when the segment before it has been computed, on both ranks. A fifth is left to
  // the noise of a difference, and to the gathers' own work, which the ranks' delays may let run alone.
  EXPECT_GT(exposed, 0.8);
  EXPECT_LT(exposed, 1.5);
  // Embedding and head compute next to nothing. The embedding's gather, the first block's behind it and, on the way
  // back, the last block's behind the head cannot hide. That is 3 of 19 gathers.
  EXPECT_GT(hidden, 0.7);
}

TEST_F(CudaOverlap, ReductionsDelayOnlyTheEnd) {
  const Timed slow = measured(1, 0, delay_);
  const double added = plain_.reductions * delay_;
  fmt::print("{:.0f} reductions x {:.0f} us = {:.0f} us: compute lane +{:.0f} us, to the optimizer's end +{:.0f} us\n",
             plain_.reductions, delay_, added, slow.compute_lane - plain_.compute_lane, slow.whole - plain_.whole);
  // Of the computation nothing waits for a reduction. The norm waits for the last ones (those of the first block and
  // the embedding, which follow one another closely).
  EXPECT_LT(slow.compute_lane - plain_.compute_lane, 0.2 * added);
  EXPECT_LT(slow.whole - plain_.whole, 2 * delay_ + 0.2 * added);
}

}  // namespace
}  // namespace weft
