// The lane of a rank that waits for another, and how long, where a list says so: WAIT_REDUCE and the gathers of a
// solved step. On a device whose streams only remember what they come after.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "parallel/comm/local.h"
#include "parallel/shard/reduce_inputs.h"
#include "parallel/shard/replicated.h"
#include "tests/parallel/forwarding_device.h"
#include "tests/parallel/unit_fixture.h"

namespace weft {
namespace {

using Reached = std::map<const Stream*, int>;  // so many records of each stream

class OrderedEvent final : public Event {
 public:
  explicit OrderedEvent(Reached reached) : after(std::move(reached)) {}
  void synchronize() const override {}
  bool reached() const override { return true; }
  double seconds_since(const Event&) const override { return 0.0; }

  const Reached after;
};

class OrderedStream final : public Stream {
 public:
  explicit OrderedStream(Device& device) : device_(device) {}
  Device& device() override { return device_; }
  Fence record() override {
    ++after_[this];
    return std::make_shared<OrderedEvent>(after_);
  }
  Fence record_time() override { return record(); }
  void wait(const Fence& fence) override {
    if (fence == nullptr) return;
    for (const auto& [stream, records] : dynamic_cast<const OrderedEvent&>(*fence).after) {
      after_[stream] = std::max(after_[stream], records);
    }
  }
  void synchronize() override {}

  // A place in its queue: the work queued so far lies before it.
  int place() {
    record();
    return after_[this];
  }
  // Whether what is queued here from now on comes after the work that lies before a place of `other`.
  bool comes_after(const Stream& other, int place) const {
    const auto found = after_.find(&other);
    return found != after_.end() && found->second >= place;
  }

 private:
  Device& device_;
  Reached after_;
};

// Gives a released block to a stream that comes after the release, as a stream-ordered pool does with a host that runs
// far ahead.
class OrderedDevice final : public ForwardingDevice {
 public:
  std::unique_ptr<Stream> create_stream(std::string_view) override { return std::make_unique<OrderedStream>(*this); }
  void* allocate(std::int64_t bytes, Stream& stream) override {
    auto& on = static_cast<OrderedStream&>(stream);
    const auto found = std::ranges::find_if(free_, [&](const Block& block) {
      return block.bytes == bytes && (block.stream == &on || on.comes_after(*block.stream, block.place));
    });
    if (found == free_.end()) {
      ++blocks_[bytes];
      return ForwardingDevice::allocate(bytes, stream);
    }
    void* const data = found->data;
    free_.erase(found);
    return data;
  }
  void release(void* data, std::int64_t bytes, Stream& stream) override {
    auto& on = static_cast<OrderedStream&>(stream);
    free_.push_back({data, bytes, &on, on.place()});
  }
  int blocks_of(std::int64_t bytes) { return blocks_[bytes]; }

 private:
  struct Block {
    void* data;
    std::int64_t bytes;
    const OrderedStream* stream;
    int place;
  };
  std::vector<Block> free_;
  std::map<std::int64_t, int> blocks_;  // by size
};

struct OrderedRank {
  OrderedStream& lane(Lane lane) { return static_cast<OrderedStream&>(lanes[lane]); }

  OrderedDevice device;
  Lanes lanes{device};
  OrderedStream &compute = lane(Lane::compute), &gather = lane(Lane::gather), &reduce = lane(Lane::reduce);
  MemoryLedger ledger{device, compute};
};

TEST(ReduceInputs, AWaitIsForOneReductionOfItsOwnerAndGivesBackWhatIsBefore) {
  OrderedRank rank;
  ReduceInputs pool(8, rank.compute, rank.reduce);
  const int owners[4] = {};
  std::vector<int> reduced;
  for (const auto& [owner, number] : {std::pair(0, 1u), std::pair(1, 1u), std::pair(0, 2u), std::pair(2, 1u)}) {
    pool.put(rank.ledger.allocate(Bucket::unsharded_gradients, DType::float32, 16, 1), &owners[owner], number);
    reduced.push_back(rank.reduce.place());
  }
  const auto live = [&] { return rank.ledger.live()[Bucket::unsharded_gradients] / (16 * size_of(DType::float32)); };
  EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced[0] - 1));
  pool.wait_for(&owners[1], 1);
  EXPECT_EQ(live(), 2);
  EXPECT_TRUE(rank.compute.comes_after(rank.reduce, reduced[1] - 1));
  EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced[2] - 1));
  pool.wait_for(&owners[0], 1);  // gone already
  EXPECT_EQ(live(), 2);
  pool.wait_for(&owners[0], 2);
  EXPECT_EQ(live(), 1);
  EXPECT_TRUE(rank.compute.comes_after(rank.reduce, reduced[2] - 1));
  EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced[3] - 1));
  pool.wait_for(&owners[3], 1);  // has put nothing
  EXPECT_EQ(live(), 1);
  EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced[3] - 1));
  pool.finish();
}

// The pool gives inputs up without making anybody wait; who asks for them waits.
TEST(ReduceInputs, AWaitForAnInputThatIsGivenUpIsOneStill) {
  OrderedRank rank;
  ReduceInputs pool(0, rank.compute, rank.reduce);
  const int owner = 0;
  pool.put(rank.ledger.allocate(Bucket::unsharded_gradients, DType::float32, 16, 1), &owner, 1);
  const int reduced = rank.reduce.place();
  EXPECT_EQ(rank.ledger.live()[Bucket::unsharded_gradients], 0);
  EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced - 1));
  pool.wait_for(&owner, 1);
  EXPECT_TRUE(rank.compute.comes_after(rank.reduce, reduced - 1));
}

// Units of one rank, kept whole but computed on in bfloat16: a gather converts, a reduction goes through the pool.
struct OrderedUnits {
  OrderedUnits(Communicator& world, bool follows_compute, bool reduced_once = false, int inputs = 8,
               DType reduction = DType::float32)
      : pool{inputs, rank.compute, rank.reduce},
        shard(world.split(0, 0, "shard", rank.lanes[Lane::reduce])),
        replicate(world.split(0, 0, "replicate", rank.lanes[Lane::reduce])) {
    const UnitSetup setup{.layout = lay_out_unit(awkward_parameters(), 1),
                          .precision = {.compute = DType::bfloat16, .reduction = reduction},
                          .reduced_once = reduced_once,
                          .follows_compute = follows_compute};
    for (auto& unit : units) {
      unit = std::make_unique<ShardUnit>(setup, UnitGroups{.shard = shard.get(), .replicate = replicate.get()},
                                         rank.lanes, pool, rank.ledger);
      unit->begin_step();
    }
  }

  OrderedRank rank;
  ReduceInputs pool;
  std::unique_ptr<Communicator> shard, replicate;
  std::array<std::unique_ptr<ShardUnit>, 2> units;
};

TEST(UnitWait, ComputeWaitsForTheReductionOfOneUnitAndNotForTheNext) {
  run_local_ranks(1, [](Communicator& world) {
    OrderedUnits held(world, false);
    OrderedRank& rank = held.rank;
    std::array<int, 2> reduced = {};
    for (std::size_t u = 0; u < 2; ++u) {
      accumulate(*held.units[u], awkward_parameters(), 0, 0);
      held.units[u]->reduce_gradient();
      reduced[u] = rank.reduce.place();
    }
    const std::int64_t both = rank.ledger.live()[Bucket::unsharded_gradients];
    EXPECT_GT(both, 0);
    EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced[0] - 1));
    held.units[0]->wait_reduction();
    EXPECT_TRUE(rank.compute.comes_after(rank.reduce, reduced[0] - 1));
    EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced[1] - 1));
    EXPECT_EQ(rank.ledger.live()[Bucket::unsharded_gradients], both / 2);
    held.pool.finish();
  });
}

// A release on the reduce lane would stand behind the next reduction, which nobody waits for: two blocks each.
TEST(UnitWait, FullGradientsTakeNoMoreBlocksThanTheLedgerSays) {
  for (const DType reduction : {DType::float32, DType::bfloat16}) {
    for (int inputs = 0; inputs < 4; ++inputs) {
      SCOPED_TRACE(fmt::format("{}, {} inputs", name_of(reduction), inputs));
      run_local_ranks(1, [&](Communicator& world) {
        OrderedUnits held(world, false, false, inputs, reduction);
        const std::int64_t bytes = lay_out_unit(awkward_parameters(), 1).unsharded_size() * size_of(reduction);
        const int kept = held.rank.device.blocks_of(bytes);
        for (int step = 0; step < 3; ++step) {
          for (int microbatch = 0; microbatch < 10; ++microbatch) {
            for (const auto& unit : held.units) {
              accumulate(*unit, awkward_parameters(), 0, microbatch);
              unit->reduce_gradient();
            }
          }
          held.rank.compute.wait_for(held.rank.reduce);
          held.pool.finish();
        }
        // Of a reduction in 16 bits the copies are in flight, and the accumulator that is read to make one.
        const bool copies = reduction != DType::float32;
        EXPECT_EQ(held.rank.device.blocks_of(bytes) - kept, copies ? std::max(1, inputs) : inputs + 1);
      });
    }
  }
}

// A gradient that adds up in its shard is reduced where it stands: there is nothing to give back, but to wait for.
TEST(UnitWait, ComputeWaitsForAReductionWithoutAnInput) {
  run_local_ranks(1, [](Communicator& world) {
    OrderedUnits held(world, false, true);
    OrderedRank& rank = held.rank;
    accumulate(*held.units[0], awkward_parameters(), 0, 0);
    held.units[0]->reduce_gradient();
    const int reduced = rank.reduce.place();
    EXPECT_EQ(rank.ledger.live()[Bucket::unsharded_gradients], 0);
    EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced - 1));
    held.units[0]->wait_reduction();
    EXPECT_TRUE(rank.compute.comes_after(rank.reduce, reduced - 1));
  });
}

TEST(UnitWait, ComputeWaitsForTheReductionOfReplicatedParameters) {
  run_local_ranks(1, [](Communicator& world) {
    OrderedRank rank;
    const auto tokens = world.split(0, 0, "tokens", rank.lanes[Lane::reduce]);
    ReplicatedParameters routing(awkward_parameters(), false, *tokens, rank.lanes, rank.ledger);
    routing.begin_step();
    accumulate(routing, awkward_parameters(), 0, 0);
    routing.reduce_gradient();
    const int reduced = rank.reduce.place();
    EXPECT_FALSE(rank.compute.comes_after(rank.reduce, reduced - 1));
    routing.wait_reduction();
    EXPECT_TRUE(rank.compute.comes_after(rank.reduce, reduced - 1));
  });
}

// Elsewhere only what a RESHARD gave back is waited for.
TEST(UnitWait, AGatherThatFollowsComputeWaitsForAllThatIsQueued) {
  for (const bool follows_compute : {false, true}) {
    run_local_ranks(1, [&](Communicator& world) {
      OrderedUnits held(world, follows_compute);
      OrderedRank& rank = held.rank;
      held.units[0]->unshard();
      held.units[0]->wait_until_unsharded();
      const int before_reshard = rank.compute.place();
      held.units[0]->reshard();
      const int behind_reshard = rank.compute.place();
      held.units[1]->unshard();
      EXPECT_TRUE(rank.gather.comes_after(rank.compute, before_reshard));
      EXPECT_EQ(rank.gather.comes_after(rank.compute, behind_reshard), follows_compute);
      held.units[1]->reshard();
    });
  }
}

}  // namespace
}  // namespace weft
