// States of AdamW in host memory: the bits of states on the device, whatever the chunks and however late the lanes run.
#include "trainer/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <random>

#include "tests/parallel/forwarding_device.h"
#include "tests/trainer/update_arrays.h"

namespace weft {
namespace {

// Streams whose work runs when the test says so, in any order that their fences allow.
class LateEvent final : public Event {
 public:
  void synchronize() const override { fail("the host waits for nothing here"); }
  bool reached() const override { return *done; }
  double seconds_since(const Event&) const override { return 0.0; }
  std::shared_ptr<bool> done = std::make_shared<bool>(false);
};

class LateStream final : public Stream {
 public:
  explicit LateStream(Device& device) : device_(device) {}
  Device& device() override { return device_; }
  Fence record() override {
    const auto event = std::make_shared<LateEvent>();
    queue([done = event->done] { *done = true; });
    return event;
  }
  Fence record_time() override { return record(); }
  void wait(const Fence& fence) override {
    if (fence != nullptr) work_.push_back({fence, [] {}});
  }
  void synchronize() override {}
  void queue(std::function<void()> work) { work_.push_back({nullptr, std::move(work)}); }

  bool empty() const { return work_.empty(); }
  // Runs the first piece of work if nothing holds it up.
  bool advance() {
    if (work_.empty() || (work_.front().fence != nullptr && !work_.front().fence->reached())) return false;
    work_.front().run();
    work_.pop_front();
    return true;
  }

 private:
  struct Work {
    Fence fence;
    std::function<void()> run;
  };
  Device& device_;
  std::deque<Work> work_;
};

class LateDevice final : public ForwardingDevice {
 public:
  std::unique_ptr<Stream> create_stream(std::string_view) override {
    auto stream = std::make_unique<LateStream>(*this);
    streams_.push_back(stream.get());
    return stream;
  }
  void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) override {
    static_cast<LateStream&>(stream).queue([=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
  }
  // Runs everything, a random ready stream at a time.
  void run_all(std::mt19937& random) {
    const auto idle = [](const LateStream* stream) { return stream->empty(); };
    while (!std::ranges::all_of(streams_, idle)) {
      std::ranges::shuffle(streams_, random);
      if (std::ranges::none_of(streams_, &LateStream::advance)) fail("no stream can go on");
    }
  }

 private:
  std::vector<LateStream*> streams_;
};

// The update of the CPU, queued.
class LateUpdate final : public RowsUpdate {
 public:
  explicit LateUpdate(std::unique_ptr<RowsUpdate> update) : update_(std::move(update)) {}
  void norms(Stream&, std::span<const GroupStep>, ConstTensorView, TensorView) override { fail("no norms are read"); }
  void run(Stream& stream, std::span<const GroupStep> groups, ConstTensorView gradient_scale,
           ConstTensorView sums) override {
    static_cast<LateStream&>(stream).queue([=, this, &stream, steps = std::vector(groups.begin(), groups.end())] {
      update_->run(stream, steps, gradient_scale, sums);
    });
  }

 private:
  std::unique_ptr<RowsUpdate> update_;
};
OptimizerKernels late_kernels() {
  OptimizerKernels kernels = cpu_optimizer_kernels();
  kernels.make_update = [](Stream& stream, MemoryLedger& ledger, std::vector<UpdateRows> rows,
                           std::vector<UpdateRule> rules) -> std::unique_ptr<RowsUpdate> {
    return std::make_unique<LateUpdate>(cpu_optimizer_kernels().make_update(stream, ledger, rows, rules));
  };
  return kernels;
}

// Three steps, the second one void, on `size` elements in runs of other sizes with gaps between them.
template <typename P, typename S>
void expect_same_bits(std::size_t size, std::int64_t chunk, std::uint32_t seed) {
  SCOPED_TRACE(fmt::format("{} elements in chunks of {}, seed {}", size, chunk, seed));
  std::mt19937 random(seed);
  UpdateArrays<P, S> there(UpdateRule::adamw, 0.0, size), here(UpdateRule::adamw, 0.0, size);
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  for (std::size_t begin = 0; begin < size;) {
    const std::size_t count = std::min<std::size_t>(size - begin, 1 + random() % 40);
    runs.emplace_back(begin, count);
    begin += count + random() % 3;
  }
  const auto rows_of = [&](UpdateArrays<P, S>& arrays) {
    std::vector<UpdateRows> rows;
    for (const auto& [begin, count] : runs) rows.push_back(arrays.run(begin, count));
    return rows;
  };
  LateDevice device;
  Lanes lanes(device);
  MemoryLedger ledger(device, lanes[Lane::compute]);
  HostStates states(lanes, ledger, chunk);
  const auto whole = [](auto& elements) { return view_of(std::span(elements), std::ssize(elements), 1); };
  states.add(whole(there.first), whole(there.second), rows_of(there));
  EXPECT_EQ(ledger.live()[Bucket::optimizer_state],
            2 * host_chunk_bytes(std::min<std::int64_t>(chunk, std::ssize(there.first)), dtype_of<S>));
  CpuStepper stepper;
  const OptimizerKernels kernels = late_kernels();
  for (std::int64_t step = 1; step <= 3; ++step) {
    there.draw_gradients(step);
    here.draw_gradients(step);
    float scale = step == 2 ? std::nanf("") : 0.5f;
    const GroupStep group{.rule = UpdateRule::adamw, .learning_rate = 1e-2, .weight_decay = 0.1, .step = step};
    states.run(kernels, {&group, 1}, {UpdateRule::adamw}, ConstTensorView(&scale, DType::float32, 1, 1));
    device.run_all(random);
    stepper.step(rows_of(here), group, scale);
    ASSERT_TRUE(there.same_bits(here)) << "step " << step;
  }
}

TEST(HostStates, HaveTheBitsOfStatesOnTheDevice) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    for (const std::int64_t chunk : {8, 24, 64, 1000}) {
      expect_same_bits<float, float>(137, chunk, seed);
      expect_same_bits<float, bfloat16>(200, chunk, seed);
      expect_same_bits<bfloat16, float>(64, chunk, seed);
      expect_same_bits<bfloat16, bfloat16>(1, chunk, seed);
    }
  }
}

// Where a step ends in the middle of nothing: the compute lane comes after the last chunk, which a save then reads.
TEST(HostStates, AreBackWhenTheComputeLaneGoesOn) {
  UpdateArrays<float, float> arrays(UpdateRule::adamw, 0.0, 100), expected(UpdateRule::adamw, 0.0, 100);
  arrays.draw_gradients(1);
  expected.draw_gradients(1);
  const GroupStep group{.rule = UpdateRule::adamw, .learning_rate = 1e-2, .step = 1};
  CpuStepper().step({expected.whole()}, group, 1.0f);
  float scale = 1.0f;
  const ConstTensorView one(&scale, DType::float32, 1, 1);
  const auto whole = [](auto& elements) { return view_of(std::span(elements), std::ssize(elements), 1); };
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    UpdateArrays<float, float> there = arrays;
    LateDevice device;
    Lanes lanes(device);
    MemoryLedger ledger(device, lanes[Lane::compute]);
    HostStates states(lanes, ledger, 16);
    const UpdateRows run = there.whole();
    states.add(whole(there.first), whole(there.second), {&run, 1});
    const OptimizerKernels kernels = late_kernels();
    states.run(kernels, {&group, 1}, {UpdateRule::adamw}, one);
    std::vector<float> saved(100);
    device.copy(lanes[Lane::compute], there.second.data(), saved.data(), 400);
    std::mt19937 random(seed);
    device.run_all(random);
    EXPECT_EQ(saved, expected.second);
  }
}

}  // namespace
}  // namespace weft
