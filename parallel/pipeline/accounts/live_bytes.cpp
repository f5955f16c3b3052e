#include "parallel/pipeline/accounts/live_bytes.h"

#include <algorithm>

namespace weft {
namespace {

using When = LiveChange::When;

}  // namespace

LiveWalk::LiveWalk(const Program& program, int pipeline_rank)
    : program_(program),
      actions_(program.ranks.at(pipeline_rank)),
      pieces_(program),
      gathered_(program.units.size(), false),
      secondary_(program.units.size(), false),
      accumulating_(program.units.size(), false),
      reductions_(program.units.size(), 0),
      waits_(program.units.size(), 0),
      kept_(pieces_.size() * program.microbatches, Kept::nothing),
      away_(kept_.size(), false) {}

std::span<const LiveChange> LiveWalk::next() {
  const Action& action = actions_.at(at_);
  changes_.clear();
  if (!malformed(program_, pieces_, action)) {
    if (is_compute(action.op)) compute(action);
    if (const auto unit = action.unit) {
      if (is_gather(action.op)) gather(*unit, action.op);
      if (is_reshard(action.op)) reshard(*unit, action.op);
      if (is_reduction(action.op)) reduce(*unit);
      if (action.op == Op::wait_reduction) give_up_through(*unit);
    }
    if (takes_kept(action.op)) move_kept(action);
    if (action.op == Op::gradient_norm) give_up_until(0);
  }
  ++at_;
  return changes_;
}

void LiveWalk::compute(const Action& action) {
  const auto [begin, end] = pieces_.of(action);
  const int microbatch = *action.microbatch;
  for (std::size_t piece = begin; piece < end; ++piece) {
    const bool keeps = action.op == Op::forward || (action.op == Op::recompute && in_region(piece));
    if (keeps && action.part.first()) {
      keep(piece, microbatch, Kept::activations, When::start);
    }
    if (!makes_weight_gradient(action.op) || !action.part.last() || !pieces_[piece].segment) continue;
    for (const int unit : program_.segments[*pieces_[piece].segment].units) {
      if (accumulating_[unit]) continue;
      accumulating_[unit] = true;
      change(Bucket::unsharded_gradients, program_.units[unit].gradient_bytes, When::start, unit);
    }
  }
  if (!action.part.last()) return;
  // The forward of a region has made all its activations and now drops them. For a whole stage this happens segment by
  // segment.
  for (std::size_t piece = begin; piece < end && action.op == Op::forward; ++piece) {
    if (program_.forward_only) keep(piece, microbatch, Kept::nothing, When::end);
    if (!program_.forward_only && in_region(piece)) keep(piece, microbatch, Kept::checkpoint, When::end);
  }
  // An input gradient replaces activations by the bytes that the weight gradient will read, piece by piece: a B counts
  // the larger of both. It is never their sum: most of what a layer leaves is a part of what it had (counted in both)
  // or takes its place. The rest is a temporary of this one piece, until the layer drops what it had.
  for (std::size_t piece = end; piece-- > begin;) {
    if (makes_input_gradient(action.op) && kept(piece, microbatch) == Kept::activations) {
      keep(piece, microbatch, Kept::pending, When::end);
    }
    if (makes_weight_gradient(action.op)) keep(piece, microbatch, Kept::nothing, When::end);
  }
}

// The bytes leave at WAIT_OFFLOAD, when they are in host memory, and come back at RELOAD.
void LiveWalk::move_kept(const Action& action) {
  const std::size_t piece = pieces_.of(action).begin;
  const bool leaves = action.op == Op::wait_offload;
  const std::size_t place = piece * program_.microbatches + *action.microbatch;
  if (action.op == Op::offload || away_[place] == leaves) return;
  away_[place] = leaves;
  const std::int64_t bytes = program_.segments[*action.segment].offload_bytes;
  change(Bucket::activations, leaves ? -bytes : bytes, leaves ? When::end : When::start);
}

void LiveWalk::gather(std::size_t unit, Op op) {
  const ProgramUnit& entry = program_.units[unit];
  if (entry.replicated) return;
  if (!gathered_[unit]) change(Bucket::unsharded_parameters, entry.unsharded_bytes, When::start, unit);
  gathered_[unit] = true;
  if (op != Op::unshard_secondary || !secondary_[unit]) return;
  secondary_[unit] = false;
  change(Bucket::unsharded_parameters, -entry.island_bytes, When::start, unit);
}

void LiveWalk::reshard(std::size_t unit, Op op) {
  const ProgramUnit& entry = program_.units[unit];
  if (entry.replicated) return;
  if (op == Op::reshard_secondary && !secondary_[unit]) {
    secondary_[unit] = true;
    change(Bucket::unsharded_parameters, entry.island_bytes, When::computed, unit);
  }
  if (!gathered_[unit]) return;
  gathered_[unit] = false;
  change(Bucket::unsharded_parameters, -entry.unsharded_bytes, When::computed, unit);
}

// The input of a reduction is the accumulator, or its copy in the reduction dtype. It stays until later reductions have
// filled the pool, or until the norm has waited for all.
void LiveWalk::reduce(std::size_t unit) {
  const ProgramUnit& entry = program_.units[unit];
  ++reductions_[unit];
  const bool copies = entry.reduce_input_bytes > 0;
  const std::int64_t accumulated = accumulating_[unit] ? entry.gradient_bytes : 0;
  accumulating_[unit] = false;
  if (copies) {
    give_up_until(program_.reduce_inputs - 1);
    change(Bucket::communication, entry.reduce_input_bytes, When::start, unit);
    change(Bucket::unsharded_gradients, -accumulated, When::start, unit);
  } else if (entry.replicated) {
    change(Bucket::unsharded_gradients, -accumulated, When::end, unit);
  }
  change(Bucket::communication, entry.reduce_part_bytes, When::start, unit);
  change(Bucket::communication, -entry.reduce_part_bytes, When::end, unit);
  if (copies) {
    in_flight_.push_back({unit, reductions_[unit], at_, Bucket::communication, entry.reduce_input_bytes});
  } else if (!entry.replicated && accumulated > 0) {
    in_flight_.push_back({unit, reductions_[unit], at_, Bucket::unsharded_gradients, accumulated});
  } else {
    return;
  }
  give_up_until(program_.reduce_inputs);
}

void LiveWalk::give_up_until(int inputs) {
  while (!in_flight_.empty() && static_cast<int>(in_flight_.size()) > inputs) {
    const Input& oldest = in_flight_.front();
    change(oldest.bucket, -oldest.bytes, When::reduced, oldest.unit, oldest.reduction);
    in_flight_.pop_front();
  }
}

// Reductions end in order, so those before the awaited one have ended, too.
void LiveWalk::give_up_through(std::size_t unit) {
  const int waited_for = ++waits_[unit];
  for (std::size_t left = in_flight_.size(); left > 0; --left) {
    const Input& input = in_flight_[left - 1];
    if (input.unit != unit || input.number != waited_for) continue;
    return give_up_until(static_cast<int>(in_flight_.size() - left));
  }
}

LiveWalk::Kept& LiveWalk::kept(std::size_t piece, int microbatch) {
  return kept_[piece * program_.microbatches + microbatch];
}

void LiveWalk::keep(std::size_t piece, int microbatch, Kept now, When when) {
  Kept& before = kept(piece, microbatch);
  change(Bucket::activations, bytes_of(piece, now) - bytes_of(piece, before), when);
  before = now;
}

std::int64_t LiveWalk::bytes_of(std::size_t piece, Kept kept) const {
  const auto segment = pieces_[piece].segment;
  if (!segment || kept == Kept::nothing) return 0;
  const ProgramSegment& entry = program_.segments[*segment];
  if (kept == Kept::checkpoint) return entry.checkpoint_bytes;
  return kept == Kept::activations ? entry.activation_bytes : entry.pending_bytes;
}

bool LiveWalk::in_region(std::size_t piece) const {
  const auto segment = pieces_[piece].segment;
  return segment && program_.segments[*segment].region;
}

void LiveWalk::change(Bucket bucket, std::int64_t bytes, When when, std::optional<std::size_t> unit,
                      std::size_t reduction) {
  if (bytes != 0) changes_.push_back({bucket, bytes, when, reduction, unit});
}

TransientPeak transient_peak(const Program& program, int pipeline_rank) {
  LiveWalk walk(program, pipeline_rank);
  const std::size_t actions = program.ranks[pipeline_rank].size();
  BucketBytes now;
  TransientPeak peak;
  for (std::size_t i = 0; i < actions; ++i) {
    for (const LiveChange& change : walk.next()) {
      now[change.bucket] += change.bytes;
      if (const std::int64_t bytes = now.total(); bytes > peak.bytes) peak = {now, bytes, i};
    }
  }
  return peak;
}

std::vector<LiveAction> live_bytes(const Program& program, int pipeline_rank) {
  LiveWalk walk(program, pipeline_rank);
  std::vector<LiveAction> live(program.ranks[pipeline_rank].size());
  BucketBytes now;
  for (LiveAction& action : live) {
    action = {.most = now, .most_total = now.total()};
    for (const LiveChange& change : walk.next()) {
      now[change.bucket] += change.bytes;
      action.most[change.bucket] = std::max(action.most[change.bucket], now[change.bucket]);
      action.most_total = std::max(action.most_total, now.total());
    }
    action.after = now;
  }
  return live;
}

// An allocation counts until the end of the list, and its release takes back the ticks behind it.
LiveIntegral live_integral(const Program& program, int pipeline_rank) {
  LiveWalk walk(program, pipeline_rank);
  const std::vector<Action>& actions = program.ranks[pipeline_rank];
  std::int64_t ticks = std::ranges::count_if(actions, is_compute, &Action::op);  // to come, with that of the action
  LiveIntegral integral{.unit_byte_steps = std::vector<BucketBytes>(program.units.size())};
  BucketBytes now;
  for (const Action& action : actions) {
    const std::int64_t behind = ticks - (is_compute(action.op) ? 1 : 0);
    for (const LiveChange& change : walk.next()) {
      const std::int64_t byte_steps = change.bytes * (change.when == When::start ? ticks : behind);
      now[change.bucket] += change.bytes;
      integral.peak[change.bucket] = std::max(integral.peak[change.bucket], now[change.bucket]);
      integral.byte_steps[change.bucket] += byte_steps;
      if (change.unit) integral.unit_byte_steps[*change.unit][change.bucket] += byte_steps;
    }
    ticks = behind;
  }
  return integral;
}

}  // namespace weft
