// A save exchanges nothing between ranks: the counters of every rank, while it saves what it owns.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <thread>

#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

class SaveTraffic : public ::testing::TestWithParam<TinyLayout> {};

// The votes that a step's totals would carry are given instead: each rank has written its part, so the sums are known.
// All communicators of a rank share its counters.
TEST_P(SaveTraffic, IsNone) {
  const TemporaryFolder folder;
  Config config = saving_config(GetParam(), folder / "a", 2, 1);
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  const KeyValues identity = data_keys(config, data);
  NvtxDomain domain;
  const CheckpointSetup setup;
  std::barrier all_have_written(resolved.mesh().world());
  run_ranks(config, backend_of(config), [&](const RankContext& context) {
    RankRun run(resolved, data, domain, context);
    RankCheckpoints checkpoints(config, identity, run.checkpoint_rows(), run.world(), run.stream(), setup);
    run.resume(checkpoints.load());
    run.step(1);
    const CommunicationCounters before = run.world().counters();
    EXPECT_FALSE(before.empty());
    checkpoints.end_step(run.progress(), {});
    while (checkpoints.votes().saves_written == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    all_have_written.arrive_and_wait();
    checkpoints.end_step(run.progress(), {.saves_written = run.world().size()});
    EXPECT_EQ(run.world().counters(), before) << "rank " << run.rank();

    // At the end of a run no step carries the votes: two numbers do, once.
    run.step(2);
    CommunicationCounters expected = run.world().counters();
    checkpoints.end_step(run.progress(), {});
    checkpoints.finish();
    CommunicationCount& sums = expected[{run.world().group(), CollectiveOp::all_reduce}];
    ++sums.count;
    sums.bytes += 2 * size_of(DType::float64);
    EXPECT_EQ(run.world().counters(), expected) << "rank " << run.rank();
  });
  // They were saves, of every tensor.
  for (const char* name : {"step-00000001", "step-00000002"}) {
    const CheckpointReader saved(folder / "a" / name);
    EXPECT_EQ(saved.find_faults(), std::vector<std::string>{});
    EXPECT_EQ(saved.manifest().tensors.size(), 3 * model_parameters(config.model).size());
  }
}

// A rank alone exchanges nothing anyway.
std::vector<TinyLayout> layouts_of_several_ranks() {
  std::vector<TinyLayout> layouts = saved_layouts();
  std::erase_if(layouts, [](const TinyLayout& layout) { return layout.degrees.world() == 1; });
  return layouts;
}

INSTANTIATE_TEST_SUITE_P(Layouts, SaveTraffic, ::testing::ValuesIn(layouts_of_several_ranks()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
