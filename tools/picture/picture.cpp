#include "tools/picture/picture.h"

#include <algorithm>
#include <functional>
#include <map>
#include <type_traits>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

BoxKind kind_of(Op op) {
  if (is_gather(op)) return BoxKind::gather;
  if (is_reshard(op)) return BoxKind::reshard;
  if (takes_unit(op)) return BoxKind::reduction;
  if (op == Op::send_forward || op == Op::receive_forward) return BoxKind::activations;
  if (is_send(op) || is_receive(op)) return BoxKind::gradients;
  if (is_row_exchange(op)) return BoxKind::rows;
  if (takes_kept(op)) return BoxKind::host;
  if (!is_compute(op)) return BoxKind::update;
  // Both enumerations begin with the computations.
  static_assert(static_cast<int>(BoxKind::recompute) == static_cast<int>(Op::recompute));
  return static_cast<BoxKind>(op);
}

// The largest value of the elements; 0 if there are none.
template <typename Element, typename Value>
auto most(const std::vector<Element>& elements, Value value) {
  std::remove_cvref_t<std::invoke_result_t<Value, const Element&>> largest = {};
  for (const Element& element : elements) largest = std::max(largest, std::invoke(value, element));
  return largest;
}

// A box with the list positions of its actions, which are all of one kind.
struct Placed {
  PictureBox box;
  Op op = Op::forward;
  std::vector<std::size_t> actions = {};
};

class RankPainter {
 public:
  RankPainter(const Program& program, const SimulatedStep& step, int rank)
      : program_(program),
        step_(step),
        rank_(static_cast<std::size_t>(rank)),
        actions_(program.ranks[rank_]),
        times_(step.simulation.ranks[rank_]) {
    require(actions_.size() == times_.size(), "a simulation has a time for every action");
    int chunks = 0;
    for (const ProgramStage& stage : program.stages) chunk_of_.push_back(stage.rank == rank ? chunks++ : 0);
  }

  // Boxes by lane, then time.
  std::vector<Placed> boxes(Detail detail) const {
    std::vector<Placed> boxes;
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const bool mark = is_reshard(actions_[i].op);
      if (times_[i].end <= times_[i].start && !mark) continue;
      if (detail == Detail::compute_only && !is_compute(actions_[i].op)) continue;
      boxes.push_back({box_of(i), actions_[i].op, {i}});
    }
    std::ranges::stable_sort(boxes, {},
                             [](const Placed& placed) { return std::pair(placed.box.lane, placed.box.start); });
    return detail == Detail::everything ? boxes : merged(boxes);
  }

  std::vector<PictureIdle> idle() const {
    std::vector<PictureIdle> idle;
    double free_since = 0.0;
    const auto until = [&](double end, IdleReason reason, std::size_t i) {
      if (end > free_since) idle.push_back({free_since, end, reason, i < actions_.size() ? waited_for(i) : ""});
      free_since = std::max(free_since, end);
    };
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const Op op = actions_[i].op;
      if (is_reshard(op) || !step_.channels.with_compute(lane_of(program_, actions_[i]))) continue;
      const SimulatedAction& time = times_[i];
      const IdleReason collective = time.wait == Wait::gather ? IdleReason::gather
                                    : time.wait == Wait::rows ? IdleReason::rows
                                    : time.wait == Wait::host ? IdleReason::host
                                                              : IdleReason::reduction;
      // A norm waits for its own reductions, then for the other ranks; a computation for messages, then for
      // collectives.
      const bool norm = op == Op::gradient_norm;
      if (time.for_collectives > 0.0 && norm) until(free_since + time.for_collectives, collective, i);
      if (time.for_collectives > 0.0 && !norm) {
        if (time.for_collectives < time.waited) until(time.start - time.for_collectives, IdleReason::bubble, i);
        until(time.start, collective, i);
      }
      until(time.start, IdleReason::bubble, i);
      if (lane_of(program_, actions_[i]) != Lane::compute) {
        until(time.end,
              is_gather(op)                                ? IdleReason::gather
              : is_reduction(op) || op == Op::tie_gradient ? IdleReason::reduction
              : is_row_exchange(op)                        ? IdleReason::rows
              : is_host_copy(op)                           ? IdleReason::host
                                                           : IdleReason::bubble,
              i);
      }
      free_since = std::max(free_since, time.end);
    }
    until(step_.simulation.seconds, IdleReason::bubble, actions_.size());
    return idle;
  }

 private:
  PictureBox box_of(std::size_t i) const {
    const Action& action = actions_[i];
    PictureBox box{.lane = lane_of(program_, action),
                   .kind = kind_of(action.op),
                   .start = times_[i].start,
                   .end = times_[i].end,
                   .stage = action.stage,
                   .microbatch = action.microbatch,
                   .action = format_action(program_, action),
                   .bytes = action.bytes,
                   .waited = times_[i].waited,
                   .waited_for = waited_for(i)};
    if (action.stage) box.chunk = chunk_of_[static_cast<std::size_t>(*action.stage)];
    if (action.segment) box.subject = program_.segments[static_cast<std::size_t>(*action.segment)].name;
    if (action.unit) box.subject = program_.units[static_cast<std::size_t>(*action.unit)].name;
    return box;
  }

  std::string waited_for(std::size_t i) const {
    const SimulatedAction& time = times_[i];
    if (time.wait == Wait::nothing || time.waited <= 0.0) return "";
    std::string text(name_of(time.wait));
    if (!time.after) return text;
    const auto other = static_cast<std::size_t>(time.after->rank);
    text += other == rank_ ? ": " : fmt::format(": rank {}, ", other);
    return text + format_action(program_, program_.ranks.at(other).at(time.after->index));
  }

  std::vector<Placed> merged(const std::vector<Placed>& boxes) const {
    std::vector<Placed> result;
    std::array<std::size_t, 2> last = {};  // index + 1 of the last box, and of the last mark
    for (const Placed& next : boxes) {
      std::size_t& before = last[next.box.kind == BoxKind::reshard];
      if (before > 0 && joins(result[before - 1], next)) {
        append(result[before - 1], next);
      } else {
        result.push_back(next);
        before = result.size();
      }
    }
    return result;
  }

  void append(Placed& placed, const Placed& next) const {
    PictureBox& box = placed.box;
    placed.actions.push_back(next.actions.front());
    box.end = next.box.end;
    box.bytes += next.box.bytes;
    ++box.actions;
    box.subject.clear();
    box.action = format_action(program_, {.op = next.op, .stage = box.stage, .microbatch = box.microbatch});
  }

  // Touching actions have exactly equal times: the simulator starts one at the end of the other.
  static bool joins(const Placed& one, const Placed& next) {
    return one.op == next.op && one.box.lane == next.box.lane && one.box.stage == next.box.stage && one.box.stage &&
           one.box.microbatch == next.box.microbatch && one.box.end == next.box.start;
  }

  const Program& program_;
  const SimulatedStep& step_;
  std::size_t rank_;
  const std::vector<Action>& actions_;
  const std::vector<SimulatedAction>& times_;
  std::vector<int> chunk_of_;  // by stage; 0 for those of other ranks
};

// Marks the boxes of the critical path, and adds a hop wherever the path changes its lane or rank.
void trace_critical_path(Picture& picture, const std::vector<ActionAt>& path,
                         const std::vector<std::map<std::size_t, std::size_t>>& box_of_action) {
  bool follows = false;  // the previous action of the path is shown
  std::size_t rank_before = 0, box_before = 0;
  for (const ActionAt& at : path) {
    const auto row = std::ranges::find(picture.ranks, at.rank, &PictureRank::rank);
    if (row == picture.ranks.end()) {
      follows = false;
      continue;
    }
    const auto rank = static_cast<std::size_t>(row - picture.ranks.begin());
    const auto found = box_of_action[rank].find(at.index);
    if (found == box_of_action[rank].end()) continue;
    PictureBox& box = row->boxes[found->second];
    box.critical = true;
    const bool moves = follows && (rank_before != rank || row->boxes[box_before].lane != box.lane);
    if (moves) picture.hops.push_back({rank_before, box_before, rank, found->second});
    follows = true;
    rank_before = rank;
    box_before = found->second;
  }
}

}  // namespace

std::int64_t PictureRank::highest_bytes() const {
  return most(memory, [](const MemorySample& sample) { return sample.bytes.total(); });
}

std::int64_t Picture::peak_bytes() const {
  return most(ranks, &PictureRank::peak_bytes);
}

std::int64_t Picture::highest_bytes() const {
  return most(ranks, &PictureRank::highest_bytes);
}

double Picture::bubble() const {
  if (ranks.empty() || seconds <= 0.0) return 0.0;
  double bubble = 0.0;
  for (const PictureRank& rank : ranks) bubble += rank.times.bubble;
  return bubble / (seconds * static_cast<double>(ranks.size()));
}

StepWaits Picture::waits() const {
  StepWaits waits;
  for (const PictureRank& rank : ranks) waits.raise_to(rank.times);
  return waits;
}

std::vector<int> Picture::chunks_of_kind() const {
  std::vector<int> chunks(all_values<BoxKind>.size(), 0);
  for (const PictureRank& rank : ranks) {
    for (const PictureBox& box : rank.boxes) {
      int& most = chunks[static_cast<std::size_t>(box.kind)];
      most = std::max(most, box.chunk + 1);
    }
  }
  return chunks;
}

std::size_t Picture::box_count() const {
  std::size_t count = 0;
  for (const PictureRank& rank : ranks) count += rank.boxes.size();
  return count;
}

std::size_t least_boxes(const Program& program, const ProgramCosts& costs, const PictureOptions& options) {
  std::size_t boxes = 0;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    if (options.rank && *options.rank != static_cast<int>(rank)) continue;
    // At a merged detail every computation has a box; the other lanes have at least one, if any.
    const bool merged = options.detail != Detail::everything;
    const std::vector<Action> least =
        merged ? at_detail(program.ranks[rank], Detail::compute_only) : std::vector<Action>();
    for (const Action& action : merged ? least : program.ranks[rank]) {
      // A send only posts if its channel is that of compute.
      const bool takes_time = !is_send(action.op) && cost_of(program, costs, action) > 0.0;
      boxes += takes_time || is_reshard(action.op) ? 1 : 0;
    }
  }
  return boxes;
}

Picture picture_of(const Program& program, const SimulatedStep& step, const PictureOptions& options) {
  const std::size_t ranks = program.ranks.size();
  require(step.simulation.ranks.size() == ranks && step.times.size() == ranks && step.memory.size() == ranks &&
              step.peak_bytes.size() == ranks,
          "a simulated step has times and memory of every rank");
  Picture picture{.title = options.title,
                  .unit_time = options.unit_time,
                  .seconds = step.simulation.seconds,
                  .lanes = {},
                  .ranks = {},
                  .hops = {}};
  std::vector<std::map<std::size_t, std::size_t>> box_of_action;  // by row, then position in the list
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (options.rank && *options.rank != static_cast<int>(rank)) continue;
    const RankPainter painter(program, step, static_cast<int>(rank));
    PictureRank row{.rank = static_cast<int>(rank),
                    .idle = painter.idle(),
                    .memory = step.memory[rank],
                    .peak_bytes = step.peak_bytes[rank],
                    .times = step.times[rank]};
    if (row.highest_bytes() == 0) row.memory.clear();
    auto& places = box_of_action.emplace_back();
    for (Placed& placed : painter.boxes(options.detail)) {
      for (std::size_t i : placed.actions) places[i] = row.boxes.size();
      row.boxes.push_back(std::move(placed.box));
    }
    picture.ranks.push_back(std::move(row));
  }
  if (picture.ranks.empty()) fail_request("there is no pipeline rank {}: there are {}", *options.rank, ranks);
  for (Lane lane : all_lanes) {
    const auto uses = [lane](const PictureRank& rank) {
      return std::ranges::find(rank.boxes, lane, &PictureBox::lane) != rank.boxes.end();
    };
    if (std::ranges::any_of(picture.ranks, uses)) picture.lanes.push_back(lane);
  }
  trace_critical_path(picture, step.critical_path, box_of_action);
  return picture;
}

}  // namespace weft
