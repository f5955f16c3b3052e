#include "trainer/step_totals.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/mesh/mesh.h"

namespace weft {
namespace {

constexpr std::size_t operations = static_cast<std::size_t>(CollectiveOp::barrier) + 1;
// Groups by name: those of the mesh, in a fixed order, so that the same key has the same place on every rank.
constexpr auto groups = [] {
  std::array<Group, all_groups.size() + 2> with_islands{};
  std::copy(all_groups.begin(), all_groups.end(), with_islands.begin());
  with_islands[all_groups.size()] = Group::dp_island;
  with_islands[all_groups.size() + 1] = Group::edp_island;
  return with_islands;
}();
constexpr std::size_t group_count = groups.size();

constexpr std::array vote_fields = {&RunVotes::save_requests, &RunVotes::stop_requests, &RunVotes::saves_written,
                                    &RunVotes::saves_failed};

// Where each measurement lies in the vector: what kernels add up, what the host brings, and last what is already
// summed.
struct Places {
  std::size_t blocks, experts, ranks;

  static constexpr std::size_t loss = 0;
  std::size_t block(std::size_t b) const { return 1 + b * (2 + experts); }  // as StepReport: auxiliary, z, tokens
  std::size_t allocations() const { return block(blocks); }                 // the first that the host brings
  std::size_t votes() const { return allocations() + 1; }
  std::size_t communication(std::size_t group, std::size_t op) const {
    return votes() + vote_fields.size() + 2 * (group * operations + op);  // count, bytes
  }
  std::size_t memory(std::size_t rank) const { return communication(group_count, 0) + rank * bucket_count; }
  std::size_t predicted(std::size_t rank) const { return memory(ranks) + rank * bucket_count; }
  std::size_t summed() const { return predicted(ranks); }
  std::size_t gradient_square_sum() const { return summed(); }
  std::size_t size() const { return summed() + 1; }
};

std::int64_t as_size(std::size_t n) {
  return static_cast<std::int64_t>(n);
}

std::size_t group_index(const std::string& name) {
  for (std::size_t g = 0; g < group_count; ++g) {
    if (name_of(groups[g]) == name) return g;
  }
  fail("group {} is not one of the mesh", name);
}

}  // namespace

StepSums::StepSums(Stream& stream, MemoryLedger& ledger, std::size_t blocks, std::size_t num_experts, std::size_t ranks)
    : blocks_(blocks),
      experts_(num_experts),
      ranks_(ranks),
      stream_(stream),
      sums_(ledger.allocate(Bucket::workspace, DType::float64, as_size(Places{blocks, num_experts, ranks}.size()), 1)),
      own_(stream.device(), DType::float64,
           as_size(Places{blocks, num_experts, ranks}.summed() - Places{blocks, num_experts, ranks}.allocations())),
      totals_(stream.device(), DType::float64, sums_.rows()) {}

void StepSums::begin_step() {
  fill(stream_, sums_, 0.0f);
}

StepReport StepSums::report() {
  const std::int64_t size = StepReport::size(as_size(blocks_), as_size(experts_));
  return StepReport(sums_.view().rows_from(0, size), as_size(experts_));
}

TensorView StepSums::gradient_square_sum() {
  return sums_.view().rows_from(as_size(Places{blocks_, experts_, ranks_}.gradient_square_sum()), 1);
}

StepTotals StepSums::total(Communicator& world, const RankMeasurements& own) {
  const Places at{blocks_, experts_, ranks_};
  const std::span<double> brought = own_.as<double>();
  const auto bring = [&](std::size_t place, std::int64_t value) {
    brought[place - at.allocations()] = static_cast<double>(value);
  };
  std::ranges::fill(brought, 0.0);
  bring(at.allocations(), own.system_allocations);
  for (std::size_t v = 0; v < vote_fields.size(); ++v) bring(at.votes() + v, own.votes.*vote_fields[v]);
  for (const auto& [key, count] : own.communication) {
    const std::size_t place = at.communication(group_index(key.group), static_cast<std::size_t>(key.op));
    bring(place, count.count);
    bring(place + 1, count.bytes);
  }
  for (std::size_t b = 0; b < bucket_count; ++b) {
    bring(at.memory(static_cast<std::size_t>(world.rank())) + b, own.at_peak.bytes[b]);
    bring(at.predicted(static_cast<std::size_t>(world.rank())) + b, own.predicted.bytes[b]);
  }
  own_.upload(stream_, sums_.view().rows_from(as_size(at.allocations()), std::ssize(brought)));
  world.all_reduce(sums_.view().rows_from(0, as_size(at.summed())));
  totals_.download(stream_, sums_);
  totals_.finish();

  const std::span<const double> values = totals_.as<double>();
  StepTotals totals;
  totals.loss_sum = values[Places::loss];
  totals.gradient_square_sum = values[at.gradient_square_sum()];
  totals.system_allocations = std::llround(values[at.allocations()]);
  for (std::size_t v = 0; v < vote_fields.size(); ++v) {
    totals.votes.*vote_fields[v] = std::llround(values[at.votes() + v]);
  }
  for (std::size_t b = 0; b < blocks_; ++b) {
    MoeTotals moe{values[at.block(b)], values[at.block(b) + 1], {}};
    for (std::size_t e = 0; e < experts_; ++e) {
      moe.expert_tokens.push_back(std::llround(values[at.block(b) + 2 + e]));
    }
    totals.moe.push_back(std::move(moe));
  }
  for (std::size_t g = 0; g < group_count; ++g) {
    for (std::size_t op = 0; op < operations; ++op) {
      const std::size_t place = at.communication(g, op);
      if (values[place] == 0.0) continue;
      totals.communication[{std::string(name_of(groups[g])), static_cast<CollectiveOp>(op)}] = {
          std::llround(values[place]), std::llround(values[place + 1])};
    }
  }
  const auto buckets_at = [&](std::size_t place) {
    BucketBytes bytes;
    for (std::size_t b = 0; b < bucket_count; ++b) bytes.bytes[b] = std::llround(values[place + b]);
    return bytes;
  };
  for (std::size_t r = 0; r < ranks_; ++r) {
    totals.at_peak_of_rank.push_back(buckets_at(at.memory(r)));
    totals.predicted_of_rank.push_back(buckets_at(at.predicted(r)));
  }
  return totals;
}

}  // namespace weft
