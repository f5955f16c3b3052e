// Every gather and reduction of a step has the dtype that the policy of its unit names. Messages between stages have
// the one that dense parts compute in.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/trainer/forwarding_communicator.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

struct SeenDtypes {
  std::vector<DType> gathers, reductions;  // in the order of calls, over the groups that share units
  std::set<DType> messages, rows;          // between stages; between experts, without counts
};

class NotingCommunicator final : public ForwardingCommunicator {
 public:
  NotingCommunicator(Communicator& inner, SeenDtypes& seen) : ForwardingCommunicator(inner), seen_(seen) {}
  NotingCommunicator(std::unique_ptr<Communicator> inner, SeenDtypes& seen)
      : ForwardingCommunicator(std::move(inner)), seen_(seen) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    if (shares_units()) seen_.gathers.push_back(output.dtype());
    ForwardingCommunicator::do_all_gather(input, output, counts);
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    if (shares_units()) seen_.reductions.push_back(input.dtype());
    ForwardingCommunicator::do_reduce_scatter(input, output, counts);
  }
  void do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                     std::span<const std::int64_t> receive_counts) override {
    if (input.dtype() != DType::int32) seen_.rows.insert(input.dtype());
    ForwardingCommunicator::do_all_to_all(input, send_counts, output, receive_counts);
  }
  void do_send(ConstTensorView data, int peer) override {
    seen_.messages.insert(data.dtype());
    ForwardingCommunicator::do_send(data, peer);
  }
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) override {
    return std::make_unique<NotingCommunicator>(inner().split(color, key, name, stream), seen_);
  }

 private:
  bool shares_units() const { return group() == "dp_shard" || group() == "edp_shard"; }
  SeenDtypes& seen_;
};

// What one rank's list asks for, by the keys of its units' families.
SeenDtypes asked_of(const Config& config, const Program& program, int pipeline_rank) {
  SeenDtypes asked;
  for (const Action& action : program.ranks[static_cast<std::size_t>(pipeline_rank)]) {
    if (!action.unit) continue;
    const ProgramUnit& unit = program.units[static_cast<std::size_t>(*action.unit)];
    if (unit.replicated) continue;
    const PrecisionConfig& precision = config.precision_of(unit.family);
    if (is_gather(action.op)) asked.gathers.push_back(precision.compute);
    if (is_reduction(action.op)) asked.reductions.push_back(precision.reduction);
  }
  return asked;
}

TEST(CollectiveDtypes, AreThoseOfTheKeysOfEachFamily) {
  const DType wide = DType::float32, narrow = DType::bfloat16, half = DType::float16;
  const std::vector<std::map<Family, PrecisionConfig>> policies = {
      {},
      {{Family::dense, {wide, narrow, wide}}, {Family::experts, {wide, wide, narrow}}},
      {{Family::dense, {wide, wide, narrow}}, {Family::experts, {wide, narrow, wide}}},
      {{Family::embedding, {wide, narrow, narrow}}, {Family::head, {wide, narrow, wide}}},
      {{Family::dense, {wide, half, wide}}, {Family::experts, {wide, half, half}}, {Family::head, {wide, wide, half}}}};
  for (const auto& own : policies) {
    Config config = config_of(
        {.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 4, .expert = 2}, .reduction = "every 2"});
    config.precision_by_family = own;
    const ResolvedRun resolved(config);
    const TokenDataset data = training_data(config);
    NvtxDomain domain;
    run_ranks(config, backend_of(config), [&](const RankContext& context) {
      SeenDtypes seen;
      NotingCommunicator world(context.world, seen);
      RankRun run(resolved, data, domain, {context.backend, world, context.begins, context.host_threads});
      seen = {};
      run.step(1);
      const SeenDtypes asked = asked_of(config, run.program(), resolved.mesh().coordinates(world.rank()).pp);
      EXPECT_EQ(seen.gathers, asked.gathers) << "rank " << world.rank();
      EXPECT_EQ(seen.reductions, asked.reductions) << "rank " << world.rank();
      EXPECT_GT(asked.gathers.size(), 4u);
      const DType dense = config.precision_of(Family::dense).compute,
                  experts = config.precision_of(Family::experts).compute;
      EXPECT_EQ(seen.messages, std::set<DType>{dense});
      EXPECT_EQ(seen.rows, std::set<DType>{size_of(experts) < size_of(dense) ? experts : dense});
    });
  }
}

}  // namespace
}  // namespace weft
