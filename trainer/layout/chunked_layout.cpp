#include "trainer/layout/chunked_layout.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft {
namespace {

// Quanta in one unit of cost: as many as doubles count exactly, and a power of two. So whole-number costs stay
// multiples of each other.
double quanta_of(const LayoutItems& items) {
  double total = items.embedding.cost + items.head.cost;
  for (const LayoutItem& block : items.blocks) total += block.cost;
  return total > 0 ? std::exp2(51 - std::ilogb(total)) : 1.0;
}

using Bounds = std::vector<int>;
using Field = std::int64_t LayoutScore::*;

// Cut positions that may be tried, in total and for one question: about a tenth of a second.
constexpr std::int64_t most_work = 600'000, most_work_once = 100'000;
// The most loaded rank may cost 1 / slack more than the least possible. Measured costs differ from block to block, and
// saving the last thousandth of a rank's load can double the cost of a stage.
constexpr std::int64_t slack = 100;
constexpr std::int64_t infinite = std::numeric_limits<std::int64_t>::max();

// The largest of several loads, then their evenness: among equally large ones, the smaller sum of squares is better.
struct Evenness {
  std::int64_t largest = 0;
  double squares = 0;

  void add(std::int64_t load) {
    largest = std::max(largest, load);
    squares += static_cast<double>(load) * static_cast<double>(load);
  }
  bool better_than(const Evenness& other) const {
    return largest != other.largest ? largest < other.largest : squares < other.squares * (1 - 1e-12);
  }
};

Evenness evenness(const LayoutLoads& loads, const Bounds& bounds, Field field) {
  Evenness all;
  for (int stage = 0; field == &LayoutScore::stage_cost && stage < loads.stages(); ++stage) {
    all.add(loads.cost(stage, bounds));
  }
  for (int rank = 0; field != &LayoutScore::stage_cost && rank < loads.ranks(); ++rank) {
    all.add(field == &LayoutScore::rank_cost ? loads.rank_cost(rank, bounds) : loads.needed_bytes(rank, bounds));
  }
  return all;
}

bool keeps(const LayoutLoads& loads, const Bounds& bounds, const LayoutScore& caps) {
  for (int rank = 0; rank < loads.ranks(); ++rank) {
    if (caps.rank_cost != infinite && loads.rank_cost(rank, bounds) > caps.rank_cost) return false;
    if (caps.needed_bytes != infinite && loads.needed_bytes(rank, bounds) > caps.needed_bytes) return false;
  }
  return true;
}

// Moves cuts i to j together by one block, on or back: a block changes its stage, and the stages between pass one on.
Bounds moved(const LayoutLoads& loads, Bounds bounds, const LayoutScore& caps, Field field) {
  const auto stages = static_cast<std::size_t>(loads.stages());
  const bool head_alone = bounds[stages - 1] == bounds[stages];
  const std::size_t cuts = head_alone ? stages - 1 : stages;  // cuts before this one may move
  Evenness best = evenness(loads, bounds, field);
  constexpr int most_rounds = 100;
  bool improved = true;
  for (int round = 0; improved && round < most_rounds; ++round) {
    improved = false;
    for (std::size_t i = 1; i < cuts; ++i) {
      for (const int step : {-1, 1}) {
        Bounds tried = bounds;
        for (std::size_t j = i; j < cuts; ++j) {
          tried[j] += step;
          if (tried[i] <= tried[i - 1]) break;
          if (tried[j] >= tried[j + 1]) continue;  // unless the next cut moves too
          const Evenness now = evenness(loads, tried, field);
          if (!now.better_than(best) || !keeps(loads, tried, caps)) continue;
          best = now;
          bounds = tried;
          improved = true;
        }
      }
    }
  }
  return bounds;
}

class Deal {
 public:
  Deal(const LayoutLoads& loads, Bounds start, std::int64_t& work)
      : loads_(loads), search_(loads, start), bounds_(std::move(start)), work_(work) {}

  // Whether a split was found whose ranks need at most `limit` bytes; otherwise bounds_ has the least need found.
  bool fit(std::int64_t limit) {
    if (limit == infinite) return true;
    if (score().needed_bytes > limit) bounds_ = moved(loads_, bounds_, unlimited, &LayoutScore::needed_bytes);
    if (score().needed_bytes <= limit) return true;
    LayoutScore caps = unlimited;
    caps.needed_bytes = limit;
    if (const auto found = ask(caps, &LayoutScore::needed_bytes).bounds) {
      bounds_ = *found;
      return true;
    }
    minimize(unlimited, &LayoutScore::needed_bytes, limit, 0);
    return false;
  }

  // Returns the caps within which bytes may still be spared.
  LayoutScore improve_costs(std::int64_t limit) {
    LayoutScore caps = unlimited;
    caps.needed_bytes = limit;
    const std::int64_t total = loads_.total_cost();
    bounds_ = moved(loads_, bounds_, caps, &LayoutScore::rank_cost);
    minimize(caps, &LayoutScore::rank_cost, total / loads_.ranks(), 0);
    const std::int64_t least = score().rank_cost;
    caps.rank_cost = least + least / slack;
    bounds_ = moved(loads_, bounds_, caps, &LayoutScore::stage_cost);
    minimize(caps, &LayoutScore::stage_cost, total / loads_.stages(), 0);
    caps.stage_cost = score().stage_cost;
    minimize(caps, &LayoutScore::rank_cost, least, 0);
    caps.rank_cost = score().rank_cost;
    return caps;
  }
  void improve_bytes(const LayoutScore& caps) { minimize(caps, &LayoutScore::bytes, 0, 10); }

  LayoutScore score() const { return loads_.score(bounds_); }
  const Bounds& bounds() const { return bounds_; }

 private:
  ChunkedLayoutSearch::Answer ask(const LayoutScore& caps, Field field) {
    std::int64_t once = std::min(work_, most_work_once);
    const std::int64_t before = once;
    ChunkedLayoutSearch::Answer answer = search_.find(caps, field, once);
    work_ -= before - once;
    return answer;
  }

  // Minimizes `field` within `caps` by bisection between the lower bound `least` and the current split. Stops within 1
  // / 2^`precision` of the value, or at the exact minimum for 0.
  void minimize(LayoutScore caps, Field field, std::int64_t least, int precision) {
    std::int64_t most = score().*field;
    for (bool first = true; work_ > 0 && least < most && (precision == 0 || least < most - (most >> precision));
         first = false) {
      caps.*field = first ? least : least + (most - least) / 2;
      const ChunkedLayoutSearch::Answer answer = ask(caps, field);
      if (answer.bounds) {
        bounds_ = *answer.bounds;
        most = score().*field;
      } else {
        // A question that used up its work counts as answered by no.
        least = answer.finished ? std::min(answer.exceeded, most) : caps.*field + 1;
      }
    }
  }

  const LayoutLoads& loads_;
  ChunkedLayoutSearch search_;
  Bounds bounds_;
  std::int64_t& work_;
};

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
  for (int stage = 0; stage < stages(); ++stage) stages_of_[rank_of(stage)].push_back(stage);
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
  Sums all = until_[bounds[stage + 1]].plus(until_[bounds[stage]], -1);
  if (stage == 0) all = all.plus(embedding_);
  return stage == stages() - 1 ? all.plus(head_) : all;
}

std::int64_t LayoutLoads::cost(int stage, int begin, int end) const {
  return cost_until(end) - cost_until(begin) + (stage == 0 ? embedding_.cost : 0) +
         (stage == stages() - 1 ? head_.cost : 0);
}

std::int64_t LayoutLoads::passing(int stage, std::span<const int> bounds) const {
  double most = 0;
  for (int block = bounds[stage]; block < bounds[stage + 1]; ++block) {
    most = std::max(most, items_.blocks[block].passing_bytes);
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
  for (const std::vector<int>& kept : ranks_.kept[rank]) {
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

CheapestSplit cheapest_split(const LayoutLoads& loads, std::int64_t limit, const std::vector<Bounds>& starts) {
  std::vector<Deal> deals;
  std::vector<char> fits;
  std::int64_t least = infinite;
  CheapestSplit best{.work = most_work};
  std::int64_t& work = best.work;
  for (const Bounds& start : starts) {
    deals.emplace_back(loads, start, work);
    fits.push_back(deals.back().fit(limit));
    if (!fits.back()) least = std::min(least, deals.back().score().needed_bytes);
  }
  if (std::ranges::count(fits, 1) == 0) {
    limit = least;
    for (std::size_t i = 0; i < deals.size(); ++i) fits[i] = deals[i].score().needed_bytes <= limit;
  }
  for (std::size_t i = 0; i < deals.size(); ++i) {
    if (!fits[i]) continue;
    const LayoutScore caps = deals[i].improve_costs(limit);
    if (std::pair(caps.rank_cost, caps.stage_cost) >= std::pair(best.caps.rank_cost, best.caps.stage_cost)) continue;
    best.caps = caps;
    best.bounds = deals[i].bounds();
  }
  return best;
}

CheapestSplit KnownSplits::find_or(const LayoutLoads& loads, const std::function<CheapestSplit()>& find) {
  std::vector<std::int64_t> key = {loads.embedding_cost(), loads.head_cost()};
  for (int stage = 0; stage < loads.stages(); ++stage) key.push_back(loads.rank_of(stage));
  for (int block = 1; block <= loads.blocks(); ++block) key.push_back(loads.cost_until(block));
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = splits_.find(key); found != splits_.end()) return found->second;
  }
  // Two threads may deal the same costs at once; their results are equal.
  CheapestSplit split = find();
  const std::lock_guard lock(mutex_);
  return splits_.emplace(std::move(key), std::move(split)).first->second;
}

Bounds with_fewest_bytes(const LayoutLoads& loads, CheapestSplit split) {
  Deal deal(loads, std::move(split.bounds), split.work);
  deal.improve_bytes(split.caps);
  return deal.bounds();
}

}  // namespace weft
