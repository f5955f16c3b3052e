#include "trainer/step_totals.h"

#include <cmath>

#include "parallel/mesh/mesh.h"

namespace weft {
namespace {

constexpr std::size_t operations = static_cast<std::size_t>(CollectiveOp::barrier) + 1;
// Groups by name: those of the mesh, in a fixed order, so that the same key has the same place on every rank.
constexpr std::size_t group_count = all_groups.size();

// Where each measurement lies in the vector.
struct Places {
  std::size_t blocks, experts, ranks;

  std::size_t loss() const { return 0; }
  std::size_t allocations() const { return 1; }
  std::size_t block(std::size_t b) const { return 2 + b * (2 + experts); }  // auxiliary, z, then tokens by expert
  std::size_t communication(std::size_t group, std::size_t op) const {
    return block(blocks) + 2 * (group * operations + op);  // count, bytes
  }
  std::size_t memory(std::size_t rank) const { return communication(group_count, 0) + rank * bucket_count; }
  std::size_t size() const { return memory(ranks); }
};

std::size_t group_index(const std::string& name) {
  for (std::size_t g = 0; g < group_count; ++g) {
    if (name_of(all_groups[g]) == name) return g;
  }
  fail("group {} is not one of the mesh", name);
}

}  // namespace

StepTotals total_over_ranks(Communicator& world, MemoryLedger& ledger, const RankMeasurements& own,
                            std::size_t num_experts) {
  const Places at{own.report.moe.size(), num_experts, static_cast<std::size_t>(world.size())};
  Tensor buffer = ledger.allocate(Bucket::workspace, DType::float64, static_cast<std::int64_t>(at.size()), 1);
  const std::span<double> values = buffer.as<double>();
  std::fill(values.begin(), values.end(), 0.0);

  values[at.loss()] = own.report.loss_sum;
  values[at.allocations()] = static_cast<double>(own.system_allocations);
  for (std::size_t b = 0; b < at.blocks; ++b) {
    const MoeReport& moe = own.report.moe[b];
    values[at.block(b)] = moe.auxiliary_loss;
    values[at.block(b) + 1] = moe.z_loss;
    for (std::size_t e = 0; e < moe.expert_tokens.size(); ++e) {
      values[at.block(b) + 2 + e] = static_cast<double>(moe.expert_tokens[e]);
    }
  }
  for (const auto& [key, count] : own.communication) {
    const std::size_t place = at.communication(group_index(key.group), static_cast<std::size_t>(key.op));
    values[place] = static_cast<double>(count.count);
    values[place + 1] = static_cast<double>(count.bytes);
  }
  for (std::size_t b = 0; b < bucket_count; ++b) {
    values[at.memory(static_cast<std::size_t>(world.rank())) + b] = static_cast<double>(own.at_peak.bytes[b]);
  }
  world.all_reduce(buffer);

  StepTotals totals;
  totals.loss_sum = values[at.loss()];
  totals.system_allocations = std::llround(values[at.allocations()]);
  for (std::size_t b = 0; b < at.blocks; ++b) {
    MoeReport moe{values[at.block(b)], values[at.block(b) + 1], {}};
    for (std::size_t e = 0; e < at.experts; ++e) {
      moe.expert_tokens.push_back(std::llround(values[at.block(b) + 2 + e]));
    }
    totals.moe.push_back(std::move(moe));
  }
  for (std::size_t g = 0; g < group_count; ++g) {
    for (std::size_t op = 0; op < operations; ++op) {
      const std::size_t place = at.communication(g, op);
      if (values[place] == 0.0) continue;
      totals.communication[{std::string(name_of(all_groups[g])), static_cast<CollectiveOp>(op)}] = {
          std::llround(values[place]), std::llround(values[place + 1])};
    }
  }
  for (std::size_t r = 0; r < at.ranks; ++r) {
    BucketBytes bytes;
    for (std::size_t b = 0; b < bucket_count; ++b) bytes.bytes[b] = std::llround(values[at.memory(r) + b]);
    totals.at_peak_of_rank.push_back(bytes);
  }
  return totals;
}

}  // namespace weft
