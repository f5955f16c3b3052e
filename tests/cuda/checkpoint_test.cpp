// Checkpoints of a GPU. The weights saved behind a step are those of that step, although streams run on while they are
// copied. A CPU goes on from them.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

class CudaCheckpoint : public ::testing::TestWithParam<TinyLayout> {
 protected:
  static void save_and_go_on(std::int64_t host_memory);
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  }
  static std::vector<float> read_floats(const CheckpointReader& reader, const SavedTensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.rows * tensor.columns));
    const auto bytes = std::as_writable_bytes(std::span(values));
    reader.read_rows(tensor, 0, tensor.rows, {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
    return values;
  }
};

void CudaCheckpoint::save_and_go_on(std::int64_t host_memory) {
  const TemporaryFolder folder;
  constexpr std::int64_t steps = 4;
  Config config = saving_config(GetParam(), folder / "gpu", steps, 1);
  config.checkpoint.host_memory = host_memory;
  config.run.device = DeviceKind::cuda;
  config.run.ranks_per_device = config.parallelism.world();
  config.checkpoint.keep_latest = 0;
  std::mutex mutex;
  std::map<std::int64_t, WeightCollector> weights;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const std::scoped_lock lock(mutex);
    weights[metrics.step].add(run.stream(), run.stages());
  };
  run_steps(config, observer);
  for (std::int64_t step = 1; step <= steps; ++step) {
    LearnedRun expected;
    weights.at(step).finish(expected);
    const CheckpointReader reader(folder / "gpu" / checkpoint_name(step));
    EXPECT_EQ(reader.find_faults(), std::vector<std::string>{});
    for (const auto& [name, values] : expected.weights) {
      const SavedTensor* saved = reader.manifest().find(name);
      ASSERT_NE(saved, nullptr) << name;
      EXPECT_TRUE(read_floats(reader, *saved) == values) << name << " of step " << step;
    }
  }
  // To the CPU and back.
  resave(config_of({.layers = GetParam().layers}), folder / "gpu", folder / "cpu");
  config.checkpoint = {};
  resave(config, folder / "cpu", folder / "back");
  const CheckpointReader gpu(folder / "gpu" / checkpoint_name(steps)), back(folder / "back" / checkpoint_name(steps));
  EXPECT_EQ(differing_tensors(gpu, back), std::vector<std::string>{});
}

TEST_P(CudaCheckpoint, HasTheWeightsOfItsStep) {
  // In pieces as well, of which a rank saves many.
  for (const std::int64_t host_memory : {CheckpointConfig().host_memory, std::int64_t{5000}}) {
    save_and_go_on(host_memory);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaCheckpoint,
                         ::testing::Values(TinyLayout{.name = "alone", .layers = "d e"},
                                           TinyLayout{.name = "pp2_shard2_ep2",
                                                      .layers = "d e d e",
                                                      .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
