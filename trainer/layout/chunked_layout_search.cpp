#include "trainer/layout/chunked_layout.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace weft {
namespace {

std::int64_t share_of(std::int64_t cost, int parts) {
  return cost / parts + (cost % parts > 0 ? 1 : 0);
}

}  // namespace

ChunkedLayoutSearch::ChunkedLayoutSearch(const LayoutLoads& loads, const std::vector<int>& start)
    : loads_(loads), bounds_(start) {
  const int stages = loads.stages();
  std::vector<char> fixed(bounds_.size(), 0);
  fixed.front() = fixed.back() = 1;
  if (start[stages - 1] == start.back()) fixed[stages - 1] = 1;
  const auto is_fixed = [&](int bound) { return fixed[bound] != 0; };
  const auto is_cut_out = [&](int stage) { return is_fixed(stage) && is_fixed(stage + 1); };
  for (int stage = 0; stage < stages; ++stage) {
    if (is_cut_out(stage)) cut_out_at_once_.push_back(stage);
  }
  for (int rank = 0; rank < loads.ranks(); ++rank) {
    for (const int stage : loads.stages_of(rank)) {
      for (const int bound : {stage, stage + 1}) {
        if (is_fixed(bound)) continue;
        Cut cut{
            .bound = bound, .before = bound - 1, .behind = bound + 1, .completed = {}, .frontier = {}, .cut_out = {}};
        while (!is_fixed(cut.before)) --cut.before;
        while (!is_fixed(cut.behind)) ++cut.behind;
        fixed[bound] = 1;
        for (const int beside : {bound - 1, bound}) {
          std::vector<int> stages_cut_out;
          for (const int other : loads.stages_of(loads.rank_of(beside))) {
            if (is_cut_out(other)) stages_cut_out.push_back(other);
          }
          cut.cut_out.push_back(std::move(stages_cut_out));
        }
        cuts_.push_back(std::move(cut));
      }
    }
    (cuts_.empty() ? complete_at_once_.completed : cuts_.back().completed).push_back(rank);
    if (cuts_.empty()) continue;
    std::vector<int>& frontier = cuts_.back().frontier;
    frontier.clear();
    for (int bound = 0; bound <= stages; ++bound) {
      const bool beside_rest =
          (bound > 0 && loads.rank_of(bound - 1) > rank) || (bound < stages && loads.rank_of(bound) > rank);
      if (is_fixed(bound) && beside_rest) frontier.push_back(bound);
    }
  }
}

ChunkedLayoutSearch::Answer ChunkedLayoutSearch::find(const LayoutScore& caps, std::int64_t LayoutScore::*minimized,
                                                      std::int64_t& work) {
  caps_ = caps;
  minimized_ = minimized;
  exceeded_ = std::numeric_limits<std::int64_t>::max();
  work_ = work;
  dead_ends_.clear();
  std::int64_t cost = 0;
  int ranks = 0;
  const bool begins = std::ranges::all_of(
      cut_out_at_once_, [&](int stage) { return within(cost_between(stage, stage + 1), &LayoutScore::stage_cost); });
  const bool found = begins && complete(complete_at_once_, cost, ranks) && place(0, cost, ranks);
  Answer answer{.bounds = {}, .exceeded = exceeded_, .finished = found || work_ > 0};
  work = work_;
  if (found) answer.bounds = bounds_;
  return answer;
}

bool ChunkedLayoutSearch::within(std::int64_t value, std::int64_t LayoutScore::*field) {
  if (value <= caps_.*field) return true;
  if (field == minimized_) exceeded_ = std::min(exceeded_, value);
  return false;
}

std::int64_t ChunkedLayoutSearch::cost_between(int before, int behind) const {
  const int begin = bounds_[before], end = bounds_[behind];
  return loads_.cost_until(end) - loads_.cost_until(begin) + (before == 0 ? loads_.embedding_cost() : 0) +
         (behind == loads_.stages() ? loads_.head_cost() : 0);
}

ChunkedLayoutSearch::Verdict ChunkedLayoutSearch::judge(const Cut& cut) {
  // A later cut leaves more before it and less behind it.
  if (!within(share_of(cost_between(cut.before, cut.bound), cut.bound - cut.before), &LayoutScore::stage_cost))
    return Verdict::too_much_before;
  if (!within(share_of(cost_between(cut.bound, cut.behind), cut.behind - cut.bound), &LayoutScore::stage_cost))
    return Verdict::too_much_behind;
  const auto cost_of = [&](const std::vector<int>& stages) {
    std::int64_t cost = 0;
    for (const int stage : stages) cost += cost_between(stage, stage + 1);
    return cost;
  };
  const bool one_rank = loads_.rank_of(cut.bound - 1) == loads_.rank_of(cut.bound);
  if (!within(cost_of(cut.cut_out[0]), &LayoutScore::rank_cost))
    return one_rank ? Verdict::no : Verdict::too_much_before;
  if (!within(cost_of(cut.cut_out[1]), &LayoutScore::rank_cost)) return Verdict::too_much_behind;
  return Verdict::fits;
}

bool ChunkedLayoutSearch::complete(const Cut& cut, std::int64_t& completed_cost, int& completed_ranks) {
  too_much_left_ = false;
  for (const int rank : cut.completed) {
    const std::int64_t cost = loads_.rank_cost(rank, bounds_);
    if (!within(cost, &LayoutScore::rank_cost)) return false;
    if (caps_.needed_bytes != unlimited.needed_bytes &&
        !within(loads_.needed_bytes(rank, bounds_), &LayoutScore::needed_bytes))
      return false;
    if (caps_.bytes != unlimited.bytes && !within(loads_.bytes(rank, bounds_), &LayoutScore::bytes)) return false;
    completed_cost += cost;
    ++completed_ranks;
  }
  const int left = loads_.ranks() - completed_ranks;
  too_much_left_ = left > 0 && !within(share_of(loads_.total_cost() - completed_cost, left), &LayoutScore::rank_cost);
  return !too_much_left_;
}

// The position at which the stages on both sides, up to the nearest fixed cuts, cost the same each.
int ChunkedLayoutSearch::even_position(const Cut& cut, int least, int most) const {
  const std::int64_t all = cost_between(cut.before, cut.behind);
  const auto part =
      static_cast<std::int64_t>(static_cast<double>(all) * (cut.bound - cut.before) / (cut.behind - cut.before));
  const std::int64_t wanted =
      loads_.cost_until(bounds_[cut.before]) + part - (cut.before == 0 ? loads_.embedding_cost() : 0);
  const auto costs_less = [&](int place) { return loads_.cost_until(place) < wanted; };
  const auto places = std::views::iota(least, most);
  int position = least + static_cast<int>(std::ranges::partition_point(places, costs_less) - places.begin());
  if (position > least && wanted - loads_.cost_until(position - 1) < loads_.cost_until(position) - wanted) --position;
  return position;
}

std::string ChunkedLayoutSearch::key(std::size_t index) const {
  std::string text(reinterpret_cast<const char*>(&index), sizeof index);
  for (const int bound : cuts_[index].frontier) {
    text.append(reinterpret_cast<const char*>(&bounds_[bound]), sizeof(int));
  }
  return text;
}

bool ChunkedLayoutSearch::place(std::size_t index, std::int64_t completed_cost, int completed_ranks) {
  if (index == cuts_.size()) return true;
  const Cut& cut = cuts_[index];
  int& position = bounds_[cut.bound];
  const int least = bounds_[cut.before] + cut.bound - cut.before;
  const int most = bounds_[cut.behind] - (cut.behind - cut.bound);
  if (least > most) return false;
  const int even = even_position(cut, least, most);
  const bool belongs_before = !cut.completed.empty() && loads_.rank_of(cut.bound - 1) == cut.completed.front();
  const bool belongs_behind = !cut.completed.empty() && loads_.rank_of(cut.bound) == cut.completed.front();
  bool down = true, up = true;
  for (int step = 0; down || up; ++step) {
    for (const int side : {-1, 1}) {
      bool& open = side < 0 ? down : up;
      if (!open || (step == 0 && side > 0)) continue;
      position = even + side * step;
      if (position < least || position > most) {
        open = false;
        continue;
      }
      if (--work_ <= 0) return false;
      const Verdict verdict = judge(cut);
      if (verdict == Verdict::too_much_before) up = false;
      if (verdict == Verdict::too_much_behind) down = false;
      if (verdict != Verdict::fits) continue;
      std::int64_t cost = completed_cost;
      int ranks = completed_ranks;
      if (!complete(cut, cost, ranks)) {
        // With less for this rank, even more would be left for the others.
        if (too_much_left_ && cut.completed.size() == 1) {
          if (!belongs_behind) down = false;
          if (!belongs_before) up = false;
        }
        continue;
      }
      if (cut.completed.empty()) {
        if (place(index + 1, cost, ranks)) return true;
        continue;
      }
      std::string place_key = key(index);
      if (dead_ends_.contains(place_key)) continue;
      if (place(index + 1, cost, ranks)) return true;
      if (work_ <= 0) return false;
      dead_ends_.insert(std::move(place_key));
    }
  }
  return false;
}

}  // namespace weft
