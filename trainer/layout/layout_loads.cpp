#include "trainer/layout/layout_loads.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

// Quanta in one unit of cost: as many as doubles count exactly, and a power of two. So whole-number costs stay
// multiples of each other.
double quanta_of(const LayoutItems& items) {
  double total = items.embedding.cost + items.head.cost;
  for (const LayoutItem& block : items.blocks) total += block.cost;
  return total > 0 ? std::exp2(51 - std::ilogb(total)) : 1.0;
}

}  // namespace

LayoutLoads::LayoutLoads(const LayoutItems& items, const ScheduleResidents& ranks)
    : items_(items),
      ranks_(ranks),
      quanta_(quanta_of(items)),
      embedding_(sums(items.embedding)),
      head_(sums(items.head)),
      until_(1),
      stages_of_(static_cast<std::size_t>(ranks.ranks())) {
  for (const LayoutItem& block : items.blocks) {
    const Sums own = sums(block);
    const Sums& before = until_.back();
    until_.push_back({before.cost + own.cost, before.resident + own.resident, before.activation + own.activation,
                      before.always + own.always, before.kept + own.kept});
  }
  for (int stage = 0; stage < stages(); ++stage) stages_of_[static_cast<std::size_t>(rank_of(stage))].push_back(stage);
}

LayoutLoads::Sums LayoutLoads::sums(const LayoutItem& item) const {
  return {std::llround(item.cost * quanta_), std::llround(item.resident_bytes), std::llround(item.activation_bytes),
          std::llround(item.always_bytes), std::llround(item.kept_bytes)};
}

LayoutLoads::Sums LayoutLoads::on_stage(int stage, int begin, int end) const {
  const Sums &from = until_[static_cast<std::size_t>(begin)], &to = until_[static_cast<std::size_t>(end)];
  Sums all = {to.cost - from.cost, to.resident - from.resident, to.activation - from.activation,
              to.always - from.always, to.kept - from.kept};
  const auto add = [&](const Sums& own) {
    all = {all.cost + own.cost, all.resident + own.resident, all.activation + own.activation, all.always + own.always,
           all.kept + own.kept};
  };
  if (stage == 0) add(embedding_);
  if (stage == stages() - 1) add(head_);
  return all;
}

std::int64_t LayoutLoads::cost(int stage, int begin, int end) const {
  return cost_until(end) - cost_until(begin) + (stage == 0 ? embedding_.cost : 0) +
         (stage == stages() - 1 ? head_.cost : 0);
}

std::int64_t LayoutLoads::passing(int stage, int begin, int end) const {
  double most = 0;
  for (int block = begin; block < end; ++block)
    most = std::max(most, items_.blocks[static_cast<std::size_t>(block)].passing_bytes);
  if (stage == 0) most = std::max(most, items_.embedding.passing_bytes);
  if (stage == stages() - 1) most = std::max(most, items_.head.passing_bytes);
  return std::llround(most);
}

std::int64_t LayoutLoads::rank_cost(int rank, std::span<const int> bounds) const {
  std::int64_t all = 0;
  for (const int stage : stages_of(rank)) {
    const auto s = static_cast<std::size_t>(stage);
    all += cost(stage, bounds[s], bounds[s + 1]);
  }
  return all;
}

std::int64_t LayoutLoads::fullest(int rank, std::span<const int> bounds, std::int64_t Sums::*field) const {
  std::int64_t most = 0;
  for (const std::vector<int>& kept : ranks_.kept[static_cast<std::size_t>(rank)]) {
    std::int64_t now = 0;
    for (std::size_t chunk = 0; chunk < kept.size(); ++chunk) {
      const int stage = stages_of(rank)[chunk];
      const auto s = static_cast<std::size_t>(stage);
      now += kept[chunk] * (on_stage(stage, bounds[s], bounds[s + 1]).*field);
    }
    most = std::max(most, now);
  }
  return most;
}

std::int64_t LayoutLoads::needed_bytes(int rank, std::span<const int> bounds) const {
  std::int64_t always = 0, most = 0;
  for (const int stage : stages_of(rank)) {
    const auto s = static_cast<std::size_t>(stage);
    always += on_stage(stage, bounds[s], bounds[s + 1]).always;
    most = std::max(most, passing(stage, bounds[s], bounds[s + 1]));
  }
  return always + fullest(rank, bounds, &Sums::kept) + most;
}

std::int64_t LayoutLoads::bytes(int rank, std::span<const int> bounds) const {
  std::int64_t resident = 0;
  for (const int stage : stages_of(rank)) {
    const auto s = static_cast<std::size_t>(stage);
    resident += on_stage(stage, bounds[s], bounds[s + 1]).resident;
  }
  return resident + fullest(rank, bounds, &Sums::activation);
}

LayoutScore LayoutLoads::score(std::span<const int> bounds) const {
  LayoutScore score;
  for (int stage = 0; stage < stages(); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    score.stage_cost = std::max(score.stage_cost, cost(stage, bounds[s], bounds[s + 1]));
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    score.rank_cost = std::max(score.rank_cost, rank_cost(rank, bounds));
    score.needed_bytes = std::max(score.needed_bytes, needed_bytes(rank, bounds));
    score.bytes = std::max(score.bytes, bytes(rank, bounds));
  }
  return score;
}

}  // namespace weft
