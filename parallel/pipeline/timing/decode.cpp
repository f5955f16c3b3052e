#include "parallel/pipeline/timing/decode.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace weft {
namespace {
constexpr int most_looked_at = 12;  // waiting gathers examined at a time
}

TimingDecoder::TimingDecoder(const TimingRank& rank, const TimingTable& table) : rank_(rank), table_(table) {}

std::int64_t TimingDecoder::parameter_bytes(int interval) const {
  return rank_.units[intervals_[interval].unit].parameter_bytes;
}

std::int64_t TimingDecoder::gradient_bytes(int gradient) const {
  return rank_.units[gradients_[gradient].unit].gradient_bytes;
}

void TimingDecoder::reserve(int first, int last, std::int64_t bytes) {
  for (int q = first; q <= last; ++q) load_[q] += bytes;
}

int TimingDecoder::find_full(int first, int last, std::int64_t bytes) const {
  const std::int64_t most = rank_.budget - bytes;
  for (int q = first; q <= last; ++q) {
    if (load_[q] > most) return q;
  }
  return -1;
}

void TimingDecoder::begin(const TimingChoice& choice, std::span<const double> ends, const TimingView& view) {
  view_ = &view;
  ends_ = ends;
  load_.resize(rank_.ops.size());
  for (std::size_t q = 0; q < load_.size(); ++q) load_[q] = rank_.ops[q].activation_bytes;
  channel_.clear();
  held_.clear();
  issued_ = next_last_ = 0;
  next_need_ = first_waiting_ = 0;
  last_end_ = channel_free_ = shift_ = 0;
  make_intervals(choice);
  make_gradients(choice);
  double latest = std::numeric_limits<double>::max();
  for (auto interval = intervals_.rbegin(); interval != intervals_.rend(); ++interval) {
    interval->seconds = rank_.units[interval->unit].gather_seconds;
    latest = std::min(latest, ends_[interval->need] - rank_.ops[interval->need].seconds) - interval->seconds;
    interval->latest = latest - interval->urgency;
  }
}

void TimingDecoder::make_intervals(const TimingChoice& choice) {
  intervals_.clear();
  std::vector<int> current(rank_.units.size(), -1);
  for (std::size_t i = 0; i < table_.reads.size(); ++i) {
    const TimingUse& use = table_.reads[i];
    const TimingUnit& unit = rank_.units[use.unit];
    int& interval = current[use.unit];
    const int previous_op = use.previous < 0 ? -2 : table_.reads[use.previous].op;
    const Stay stay = use.previous < 0 ? Stay::dropped : choice.reads[use.previous];
    if (use.previous >= 0 && (stay == Stay::kept || previous_op + 1 == use.op)) {
      reserve(intervals_[interval].until + 1, use.op, unit.parameter_bytes);
      intervals_[interval].until = use.op;
      continue;
    }
    const int index = static_cast<int>(intervals_.size());
    intervals_.push_back({.unit = use.unit,
                          .need = use.op,
                          .until = use.op,
                          .previous = interval,
                          .root = index,
                          .apart = stay == Stay::apart,
                          .urgency = view_->read_urgency.empty() ? 0 : view_->read_urgency[i]});
    reserve(use.op, use.op, unit.parameter_bytes);
    interval = index;
  }
}

void TimingDecoder::make_gradients(const TimingChoice& choice) {
  gradients_.clear();
  std::vector<int> current(rank_.units.size(), -1);
  for (std::size_t i = 0; i < table_.adds.size(); ++i) {
    const TimingUse& use = table_.adds[i];
    const double urgency = view_->add_urgency.empty() ? 0 : view_->add_urgency[i];
    const int patience = view_->add_patience.empty() ? 0 : static_cast<int>(view_->add_patience[i]);
    const int wait_by = patience == 0 ? 0 : use.op + patience;
    int& gradient = current[use.unit];
    const std::int64_t bytes = rank_.units[use.unit].gradient_bytes;
    if (use.previous >= 0 && (choice.adds[use.previous] == Stay::kept || table_.adds[use.previous].op + 1 == use.op)) {
      reserve(gradients_[gradient].last + 1, use.op, bytes);
      gradients_[gradient].last = use.op;
      gradients_[gradient].urgency = urgency;
      gradients_[gradient].wait_by = wait_by;
      continue;
    }
    if (gradient >= 0) gradients_[gradient].next = static_cast<int>(gradients_.size());
    gradient = static_cast<int>(gradients_.size());
    gradients_.push_back({.unit = use.unit, .first = use.op, .last = use.op, .urgency = urgency, .wait_by = wait_by});
    reserve(use.op, use.op, bytes);
  }
  gradients_by_last_.resize(gradients_.size());
  std::iota(gradients_by_last_.begin(), gradients_by_last_.end(), 0);
  std::ranges::stable_sort(gradients_by_last_, {}, [this](int gradient) { return gradients_[gradient].last; });
}

bool TimingDecoder::has_room(Interval& interval, int first, int last, std::int64_t bytes) {
  // Loads seldom fall, so the op that had no room last time is examined first.
  const int blocked = interval.blocked_at;
  if (blocked >= first && blocked <= last && load_[blocked] + bytes > rank_.budget) return false;
  const int full = find_full(first, last, bytes);
  if (full >= 0) interval.blocked_at = full;
  return full < 0;
}

void TimingDecoder::merge(int index) {
  Interval& interval = intervals_[index];
  interval.state = State::merged;
  interval.root = intervals_[interval.previous].root;
  intervals_[interval.root].until = interval.until;
}

bool TimingDecoder::try_merge(int index) {
  Interval& interval = intervals_[index];
  // The previous interval must have been gathered; one that waits for its own gather has no end yet.
  if (!view_->bridge || interval.apart || interval.previous < 0) return false;
  if (intervals_[interval.previous].state == State::waiting) return false;
  const int first = intervals_[interval.previous].until + 1;
  const std::int64_t bytes = parameter_bytes(index);
  if (!has_room(interval, first, interval.need - 1, bytes)) return false;
  reserve(first, interval.need - 1, bytes);
  merge(index);
  return true;
}

void TimingDecoder::issue_gather(int index, int op) {
  Interval& interval = intervals_[index];
  reserve(op, interval.need - 1, parameter_bytes(index));
  interval.state = State::issued;
  interval.after = op - 1;
  channel_free_ = std::max(channel_free_, last_end_) + interval.seconds;
  interval.arrives = channel_free_;
  channel_.push_back({.reduction = false, .index = index});
}

void TimingDecoder::issue_reduction(Held& held, int op) {
  const Gradient& gradient = gradients_[held.gradient];
  held.issued = true;
  ++issued_;
  channel_free_ = std::max(channel_free_, last_end_) + rank_.units[gradient.unit].reduce_seconds;
  held.end = channel_free_;
  channel_.push_back({.reduction = true, .index = held.gradient});
  // Reserve room in the ops that are likely to begin before the reduction ends, so that no gather takes it.
  const std::int64_t bytes = gradient_bytes(held.gradient);
  for (int q = std::max(op, held.reserved_to) + 1; q < static_cast<int>(load_.size()); ++q) {
    if (ends_[q] - rank_.ops[q].seconds + shift_ >= held.end || load_[q] + bytes > rank_.budget) break;
    load_[q] += bytes;
    held.reserved_to = q;
  }
}

void TimingDecoder::release(int op) {
  const Held& held = held_.front();
  gradients_[held.gradient].wait = op;
  reserve(op, held.reserved_to, -gradient_bytes(held.gradient));
  held_.pop_front();
  --issued_;
}

// Before an op: reductions that have ended give their room back. The others stay if there is room; else the op waits.
// Returns the end of the last reduction waited for, in seconds.
double TimingDecoder::settle_gradients(int op) {
  while (issued_ > 0 && held_.front().end <= last_end_) release(op);
  for (Held& held : held_) {
    if (held.reserved_to >= op) continue;
    load_[op] += gradient_bytes(held.gradient);
    held.reserved_to = op;
  }
  int forced = 0;  // number of reductions of held_ to wait for
  if (!view_->add_patience.empty()) {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const int wait_by = gradients_[held_[i].gradient].wait_by;
      if (wait_by > 0 && wait_by <= op) forced = static_cast<int>(i) + 1;
    }
  }
  double ended = 0;
  for (; forced > 0 || load_[op] > rank_.budget; --forced) {
    Held& held = held_.front();
    if (!held.issued) issue_reduction(held, op);
    ended = std::max(ended, held.end);
    release(op);
  }
  return ended;
}

bool TimingDecoder::is_due(const Interval& interval, double end) const {
  return view_->eager || interval.latest + shift_ < end;
}

bool TimingDecoder::may_start(Interval& interval, int index, int op) {
  const bool gone = interval.previous < 0 || intervals_[interval.previous].until < op;
  return gone && has_room(interval, op, interval.need - 1, parameter_bytes(index));
}

// The gather that should start before `end` of the running op, or -1.
int TimingDecoder::find_gather(int op, double end) {
  const int count = static_cast<int>(intervals_.size());
  for (int i = first_waiting_, looked_at = 0; i < count && looked_at < most_looked_at; ++i) {
    Interval& interval = intervals_[i];
    if (interval.state != State::waiting) continue;
    ++looked_at;
    if (is_due(interval, end)) {
      if (try_merge(i)) continue;
      if (may_start(interval, i, op)) return i;
    } else if (view_->read_urgency.empty()) {
      break;  // later ones are not due either: without urgencies, latest starts rise along the list
    }
    if (!view_->overtake) break;
  }
  return -1;
}

// Starts one collective that no op waits for yet, if one should start before `end` of the running op.
bool TimingDecoder::issue_optional(int op, double end) {
  const int count = static_cast<int>(intervals_.size());
  while (first_waiting_ < count && intervals_[first_waiting_].state != State::waiting) ++first_waiting_;
  const int gather = find_gather(op, end);
  while (first_waiting_ < count && intervals_[first_waiting_].state != State::waiting) ++first_waiting_;
  const bool reduction = issued_ < held_.size();
  if (!reduction && gather < 0) return false;
  int first = reduction ? -1 : gather;  // next in the channel; -1: the reduction
  if (reduction && view_->reductions != TimingView::Reductions::first && first_waiting_ < count) {
    Interval& next = intervals_[first_waiting_];
    const Gradient& gradient = gradients_[held_[issued_].gradient];
    const double begin = std::max(channel_free_, last_end_);
    const double reduce_seconds = rank_.units[gradient.unit].reduce_seconds;
    const bool in_time = begin + reduce_seconds - gradient.urgency <= next.latest + shift_;
    if (gather >= 0) {
      if (view_->reductions == TimingView::Reductions::last || !in_time) first = gather;
    } else if (!in_time && may_start(next, first_waiting_, op)) {
      first = first_waiting_;  // early rather than late
    } else if (!in_time && gradient.urgency < 0) {
      return false;  // the channel stays free for that gather
    }
  }
  if (first < 0) {
    issue_reduction(held_[issued_], op);
  } else {
    issue_gather(first, op);
  }
  return true;
}

double TimingDecoder::run_op(int op, double ready) {
  if (op > 0) shift_ = last_end_ - ends_[op - 1];
  double begin = std::max({last_end_, ready, settle_gradients(op)});
  for (; next_need_ < static_cast<int>(intervals_.size()) && intervals_[next_need_].need == op; ++next_need_) {
    Interval& interval = intervals_[next_need_];
    if (interval.state == State::waiting && !try_merge(next_need_)) issue_gather(next_need_, op);
    if (interval.state == State::issued) begin = std::max(begin, interval.arrives);
  }
  const double end = begin + rank_.ops[op].seconds;
  while (channel_free_ < end && issue_optional(op, end)) {
  }
  last_end_ = end;
  for (; next_last_ < gradients_by_last_.size(); ++next_last_) {
    const int gradient = gradients_by_last_[next_last_];
    if (gradients_[gradient].last != op) break;
    const auto place = std::find_if(held_.begin() + static_cast<std::ptrdiff_t>(issued_), held_.end(),
                                    [this, gradient](const Held& other) {
                                      return gradients_[gradient].urgency > gradients_[other.gradient].urgency;
                                    });
    held_.insert(place, {.gradient = gradient, .issued = false, .end = 0, .reserved_to = op});
  }
  return end;
}

}  // namespace weft
