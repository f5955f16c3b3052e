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
  for (const LayoutItem& block : items.blocks) until_.push_back(until_.back().plus(sums(block)));
  for (int stage = 0; stage < stages(); ++stage) stages_of_[static_cast<std::size_t>(rank_of(stage))].push_back(stage);
}

LayoutLoads::Sums LayoutLoads::Sums::plus(const Sums& other, int sign) const {
  return {cost + sign * other.cost, resident + sign * other.resident, activation + sign * other.activation,
          always + sign * other.always, kept + sign * other.kept};
}

LayoutLoads::Sums LayoutLoads::sums(const LayoutItem& item) const {
  return {std::llround(item.cost * quanta_), std::llround(item.resident_bytes), std::llround(item.activation_bytes),
          std::llround(item.always_bytes), std::llround(item.kept_bytes)};
}

LayoutLoads::Sums LayoutLoads::on_stage(int stage, std::span<const int> bounds) const {
  const auto s = static_cast<std::size_t>(stage);
  const auto before = [&](std::size_t cut) -> const Sums& { return until_[static_cast<std::size_t>(bounds[cut])]; };
  Sums all = before(s + 1).plus(before(s), -1);
  if (stage == 0) all = all.plus(embedding_);
  return stage == stages() - 1 ? all.plus(head_) : all;
}

std::int64_t LayoutLoads::cost(int stage, int begin, int end) const {
  return cost_until(end) - cost_until(begin) + (stage == 0 ? embedding_.cost : 0) +
         (stage == stages() - 1 ? head_.cost : 0);
}

std::int64_t LayoutLoads::passing(int stage, std::span<const int> bounds) const {
  const auto s = static_cast<std::size_t>(stage);
  double most = 0;
  for (int block = bounds[s]; block < bounds[s + 1]; ++block) {
    most = std::max(most, items_.blocks[static_cast<std::size_t>(block)].passing_bytes);
  }
  if (stage == 0) most = std::max(most, items_.embedding.passing_bytes);
  if (stage == stages() - 1) most = std::max(most, items_.head.passing_bytes);
  return std::llround(most);
}

std::int64_t LayoutLoads::rank_cost(int rank, std::span<const int> bounds) const {
  std::int64_t all = 0;
  for (const int stage : stages_of(rank)) all += cost(stage, bounds);
  return all;
}

std::int64_t LayoutLoads::fullest(int rank, std::span<const int> bounds, std::int64_t Sums::*field) const {
  std::int64_t most = 0;
  for (const std::vector<int>& kept : ranks_.kept[static_cast<std::size_t>(rank)]) {
    std::int64_t now = 0;
    for (std::size_t chunk = 0; chunk < kept.size(); ++chunk) {
      now += kept[chunk] * (on_stage(stages_of(rank)[chunk], bounds).*field);
    }
    most = std::max(most, now);
  }
  return most;
}

std::int64_t LayoutLoads::needed_bytes(int rank, std::span<const int> bounds) const {
  std::int64_t always = 0, most = 0;
  for (const int stage : stages_of(rank)) {
    always += on_stage(stage, bounds).always;
    most = std::max(most, passing(stage, bounds));
  }
  return always + fullest(rank, bounds, &Sums::kept) + most;
}

std::int64_t LayoutLoads::bytes(int rank, std::span<const int> bounds) const {
  std::int64_t resident = 0;
  for (const int stage : stages_of(rank)) resident += on_stage(stage, bounds).resident;
  return resident + fullest(rank, bounds, &Sums::activation);
}

LayoutScore LayoutLoads::score(std::span<const int> bounds) const {
  LayoutScore score;
  for (int stage = 0; stage < stages(); ++stage) score.stage_cost = std::max(score.stage_cost, cost(stage, bounds));
  for (int rank = 0; rank < ranks(); ++rank) {
    score.rank_cost = std::max(score.rank_cost, rank_cost(rank, bounds));
    score.needed_bytes = std::max(score.needed_bytes, needed_bytes(rank, bounds));
    score.bytes = std::max(score.bytes, bytes(rank, bounds));
  }
  return score;
}

}  // namespace weft
