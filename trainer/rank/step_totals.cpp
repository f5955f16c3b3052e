#include "trainer/rank/step_totals.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "parallel/mesh/mesh.h"

namespace weft {
namespace {

// In a fixed order, so that a key of the counters has the same place on every rank.
constexpr std::size_t operations = all_values<CollectiveOp>.size(), group_count = all_values<Group>.size();

constexpr std::array vote_fields = {&RunVotes::save_requests, &RunVotes::stop_requests, &RunVotes::saves_written,
                                    &RunVotes::saves_failed, &RunVotes::saves_unpublished};

// Places of the measurements in the vector: first what the update depends on, then the rest of kernels, then those of
// the host.
struct Places {
  std::size_t blocks, experts, ranks;

  static constexpr std::size_t gradient_square_sum = 0, loss = 1;
  std::size_t block(std::size_t b) const { return 2 + b * (6 + experts); }  // as StepReport
  std::size_t allocations() const { return block(blocks); }                 // the first measurement of the host
  std::size_t next_targets() const { return allocations() + 1; }
  std::size_t next_tokens() const { return next_targets() + 1; }
  std::size_t votes() const { return next_tokens() + 1; }
  std::size_t communication(std::size_t group, std::size_t op) const {
    return votes() + vote_fields.size() + 2 * (group * operations + op);  // count, bytes
  }
  std::size_t peaks_that_changed() const { return communication(group_count, 0); }
  std::size_t peak(std::size_t rank) const { return peaks_that_changed() + 1 + rank; }
  std::size_t data_seconds(std::size_t rank) const { return peak(ranks) + rank; }
  std::size_t size() const { return data_seconds(ranks); }
};

std::size_t group_index(const std::string& name) {
  const auto group = value_named<Group>(name);
  if (!group) fail("group {} is not one of the mesh", name);
  return static_cast<std::size_t>(*group);
}

}  // namespace

StepSums::StepSums(Stream& stream, MemoryLedger& ledger, std::size_t blocks, std::size_t num_experts, std::size_t ranks)
    : blocks_(blocks),
      experts_(num_experts),
      ranks_(ranks),
      stream_(stream),
      sums_(ledger.allocate(Bucket::workspace, DType::float64, Places{blocks, num_experts, ranks}.size(), 1)),
      own_(stream.device(), DType::float64,
           Places{blocks, num_experts, ranks}.size() - Places{blocks, num_experts, ranks}.allocations()),
      totals_(stream.device(), DType::float64, sums_.rows()),
      peak_on_device_(ledger.allocate(Bucket::workspace, DType::float64, bucket_count, 1)),
      peak_(stream.device(), DType::float64, bucket_count) {}

void StepSums::begin_step() {
  fill(stream_, sums_, 0.0f);
  loss_is_summed_ = false;
}

StepReport StepSums::report() {
  const std::int64_t size = StepReport::size(blocks_, experts_);
  return StepReport(sums_.view().rows_from(Places::loss, size), experts_);
}

TensorView StepSums::gradient_square_sum() {
  return sums_.view().rows_from(Places::gradient_square_sum, 1);
}

ConstTensorView StepSums::sum_for_update(Communicator& world) {
  const TensorView sums = sums_.view().rows_from(0, 2);
  world.all_reduce(sums);
  loss_is_summed_ = true;
  return sums;
}

StepTotals StepSums::total(Communicator& world, const RankMeasurements& own) {
  const Places at{blocks_, experts_, ranks_};
  const std::span<double> brought = own_.as<double>();
  const auto bring = [&](std::size_t place, auto value) {
    brought[place - at.allocations()] = static_cast<double>(value);
  };
  std::ranges::fill(brought, 0.0);
  bring(at.allocations(), own.system_allocations);
  bring(at.next_targets(), own.next.targets);
  bring(at.next_tokens(), own.next.tokens);
  for (std::size_t v = 0; v < vote_fields.size(); ++v) bring(at.votes() + v, own.votes.*vote_fields[v]);
  for (const auto& [key, count] : own.communication) {
    const std::size_t place = at.communication(group_index(key.group), static_cast<std::size_t>(key.op));
    bring(place, count.count);
    bring(place + 1, count.bytes);
  }
  bring(at.peaks_that_changed(), own_before_ == own.at_peak ? 0 : 1);
  bring(at.peak(world.rank()), own.at_peak.total());
  bring(at.data_seconds(world.rank()), own.data_seconds);
  own_.upload(stream_, sums_.view().rows_from(at.allocations(), std::ssize(brought)));
  const std::size_t first = loss_is_summed_ ? at.block(0) : Places::loss;
  world.all_reduce(sums_.view().rows_from(first, at.size() - first));
  totals_.download(stream_, sums_);
  totals_.finish();

  const std::span<const double> values = totals_.as<double>();
  StepTotals totals;
  totals.loss_sum = values[Places::loss];
  totals.gradient_square_sum = values[Places::gradient_square_sum];
  totals.system_allocations = std::llround(values[at.allocations()]);
  totals.next = {std::llround(values[at.next_targets()]), std::llround(values[at.next_tokens()])};
  for (std::size_t v = 0; v < vote_fields.size(); ++v) {
    totals.votes.*vote_fields[v] = std::llround(values[at.votes() + v]);
  }
  for (std::size_t b = 0; b < blocks_; ++b) {
    MoeTotals moe{values[at.block(b)],
                  values[at.block(b) + 1],
                  std::sqrt(values[at.block(b) + 2]),
                  std::llround(values[at.block(b) + 3]),
                  std::llround(values[at.block(b) + 5 + experts_]),
                  {}};
    for (std::size_t e = 0; e < experts_; ++e) {
      moe.expert_tokens.push_back(std::llround(values[at.block(b) + 5 + e]));
    }
    totals.moe.push_back(std::move(moe));
    totals.prediction_loss_sums.push_back(values[at.block(b) + 4]);
  }
  for (std::size_t g = 0; g < group_count; ++g) {
    for (std::size_t op = 0; op < operations; ++op) {
      const std::size_t place = at.communication(g, op);
      if (values[place] == 0.0) continue;
      totals.communication[{std::string(name_of(all_values<Group>[g])), static_cast<CollectiveOp>(op)}] = {
          std::llround(values[place]), std::llround(values[place + 1])};
    }
  }
  const auto peaks = values.subspan(at.peak(0), ranks_);
  totals.data_seconds = std::ranges::max(values.subspan(at.data_seconds(0), ranks_));
  const auto fullest = static_cast<std::size_t>(std::ranges::max_element(peaks) - peaks.begin());
  if (values[at.peaks_that_changed()] > 0.0 || fullest != fullest_) exchange_peak(world, own.at_peak, fullest);
  own_before_ = own.at_peak;
  totals.at_peak = at_peak_;
  return totals;
}

void StepSums::exchange_peak(Communicator& world, const BucketBytes& own, std::size_t fullest) {
  const std::span<double> buckets = peak_.as<double>();
  const bool brings = static_cast<std::size_t>(world.rank()) == fullest;
  std::ranges::transform(own.bytes, buckets.begin(),
                         [&](std::int64_t bytes) { return brings ? static_cast<double>(bytes) : 0.0; });
  peak_.upload(stream_, peak_on_device_);
  world.all_reduce(peak_on_device_);
  peak_.download(stream_, peak_on_device_);
  peak_.finish();
  std::ranges::transform(peak_.as<double>(), at_peak_.bytes.begin(), [](double bytes) { return std::llround(bytes); });
  fullest_ = fullest;
}

std::vector<double> sum_numbers(Communicator& world, std::span<const double> own) {
  // In memory of the communicator's stream, which may be on another device than the rank's. It is not in the run's
  // ledger, so that the reported peaks do not change.
  Stream& stream = world.stream();
  MemoryLedger ledger(stream.device(), stream);
  Tensor sums = ledger.allocate(Bucket::workspace, DType::float64, std::ssize(own), 1);
  write<double>(stream, own, sums);
  world.all_reduce(sums);
  return read<double>(stream, sums);
}

std::vector<double> gather_numbers(Communicator& world, std::span<const double> own) {
  // In memory as in sum_numbers().
  Stream& stream = world.stream();
  MemoryLedger ledger(stream.device(), stream);
  Tensor mine = ledger.allocate(Bucket::workspace, DType::float64, std::ssize(own), 1);
  Tensor all = ledger.allocate(Bucket::workspace, DType::float64, std::ssize(own) * world.size(), 1);
  write<double>(stream, own, mine);
  world.all_gather(mine, all);
  return read<double>(stream, all);
}

std::vector<BucketBytes> gather_buckets(Communicator& world, const BucketBytes& own) {
  const std::vector<double> numbers(own.bytes.begin(), own.bytes.end());
  const std::vector<double> values = gather_numbers(world, numbers);
  std::vector<BucketBytes> result(world.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i / bucket_count].bytes[i % bucket_count] = std::llround(values[i]);
  }
  return result;
}

}  // namespace weft
