#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tools/walk/walk_words.h"

namespace weft {
namespace {

std::string_view compute_name(Op op) {
  switch (op) {
    case Op::forward:
      return "forward";
    case Op::backward:
      return "backward";
    case Op::backward_input:
      return "input gradient";
    default:
      return "weight gradient";
  }
}

std::string message_text(const WalkLine& line) {
  const bool activations = line.op == Op::send_forward || line.op == Op::receive_forward;
  return fmt::format("{} {} {} pp {}", is_send(line.op) ? "send" : "receive", activations ? "activations" : "gradients",
                     is_send(line.op) ? "to" : "from", line.peer.value_or(0));
}

class Remarks {
 public:
  explicit Remarks(const WalkedStep& step) : step_(step), gathered_(step.program.units.size(), false) {}

  // The first remark on the line that no earlier line had.
  std::string of(std::size_t i) {
    for (const std::string& text : candidates(i)) {
      if (said_.insert(text).second) return text;
    }
    return {};
  }

 private:
  using Texts = std::vector<std::string>;

  const WalkLine& line(std::size_t i) const { return step_.lines[i]; }
  const ProgramUnit& unit(const WalkLine& of) const {
    return step_.program.units[static_cast<std::size_t>(of.unit.value())];
  }
  std::size_t ranks(Group group) const { return step_.mesh.group_of(group, step_.rank).size(); }
  // Bytes live before the line.
  LiveBytes before(std::size_t i) const { return i == 0 ? LiveBytes{} : line(i - 1).live; }

  Texts candidates(std::size_t i) {
    const WalkLine& here = line(i);
    switch (here.kind) {
      case WalkKind::gather:
        return gather(i);
      case WalkKind::gather_island:
        return {
            fmt::format("from the parts of {} neighbours: nothing leaves the island", unit(here).policy.island_ranks)};
      case WalkKind::copy:
        return {"whole on this rank: only a copy in the dtype of compute is made"};
      case WalkKind::free:
        if (ranks(unit(here).group) == 1 || unit(here).gather_bytes == 0)
          return {"the copy goes, the rank's own stays"};
        return {fmt::format("only this rank's 1/{} of the rows stays", ranks(unit(here).group))};
      case WalkKind::keep_part:
        return {fmt::format("{} neighbours keep it among them, 1/{} each", unit(here).policy.island_ranks,
                            unit(here).policy.island_ranks)};
      case WalkKind::compute:
        return compute(i);
      case WalkKind::reduce_scatter:
        return reduce_scatter(i);
      case WalkKind::scatter:
        return {fmt::format("summed over the {} ranks of the shard group and added to each one's rows",
                            ranks(unit(here).group))};
      case WalkKind::all_reduce:
        return all_reduce(here);
      case WalkKind::add:
        return {"no other rank holds it: the gradient stays here"};
      case WalkKind::tie:
        return {"the other copy of the same weight adds its gradient, so that both are stepped alike"};
      case WalkKind::wait:
        return {"its reduction must be over before more memory is taken"};
      case WalkKind::message:
        return {is_send(here.op) ? "of one microbatch, to the rank that runs the neighbouring stage"
                                 : "waits for the rank that runs the neighbouring stage"};
      case WalkKind::norm:
        return {fmt::format("one number, summed over all {} ranks: the squares of the rows that each owns",
                            step_.mesh.world())};
      case WalkKind::step:
        return {"each rank steps the rows it owns; nobody needs the full parameters for it"};
      case WalkKind::in_place:
        return {};
    }
    return {};
  }

  Texts gather(std::size_t i) {
    const WalkLine& here = line(i);
    const std::size_t group = ranks(unit(here).group);
    Texts texts = {fmt::format("each of {} ranks gives its 1/{} of the rows, all get the whole unit", group, group)};
    const auto index = static_cast<std::size_t>(*here.unit);
    if (gathered_[index]) texts.emplace_back("again: it was freed behind its last use");
    gathered_[index] = true;
    if (!next_reads(i)) texts.emplace_back("ahead of its turn: it travels while the unit before it is computed");
    return texts;
  }

  // Whether the next computation reads the unit of this gather.
  bool next_reads(std::size_t i) const {
    const std::vector<Action>& actions =
        step_.program.ranks[static_cast<std::size_t>(step_.mesh.coordinates(step_.rank).pp)];
    const auto next = std::find_if(actions.begin() + static_cast<std::ptrdiff_t>(line(i).first), actions.end(),
                                   [](const Action& action) { return is_compute(action.op); });
    if (next == actions.end() || !next->segment) return false;
    const auto& units = step_.program.segments[static_cast<std::size_t>(*next->segment)].units;
    return std::find(units.begin(), units.end(), *line(i).unit) != units.end();
  }

  Texts compute(std::size_t i) const {
    const WalkLine& here = line(i);
    Texts texts;
    if (here.op == Op::forward && here.live.activations > before(i).activations) {
      texts.emplace_back("keeps what its backward will read (activations)");
    }
    if (here.op == Op::backward_input) texts.emplace_back("only what the stage before waits for; weights come later");
    if (makes_weight_gradient(here.op)) {
      const std::int64_t more = here.live.unsharded_gradients - before(i).unsharded_gradients;
      if (more > 0) texts.emplace_back("a full gradient begins, in float32: rows of all ranks");
      if (more == 0 && here.live.unsharded_gradients > 0 && *here.microbatch > 0) {
        texts.emplace_back("adds to the full gradient of the microbatch before");
      }
      if (here.live.unsharded_gradients == 0) texts.emplace_back("adds straight into the gradient that the rank keeps");
    }
    if (here.sent > 0) texts.emplace_back("exchanges with other ranks inside the layer (tensor, context or expert)");
    return texts;
  }

  Texts reduce_scatter(std::size_t i) const {
    const WalkLine& here = line(i);
    const std::size_t group = ranks(unit(here).group);
    std::string text =
        fmt::format("the {} full gradients are summed, each rank gets its 1/{} of the rows", group, group);
    for (const UnitCollective& part : unit(here).collectives) {
      if (part.during != here.op || part.op != CollectiveOp::all_reduce || part.group == Group::tp) continue;
      if (ranks(part.group) > 1) text += fmt::format("; then {} replicas sum these", ranks(part.group));
    }
    Texts texts = {std::move(text)};
    if (here.live.unsharded_gradients + here.live.communication > 0) {
      texts.emplace_back("what it reads stays until the next reduction, so that neither waits (shard.reduce_inputs)");
    }
    return texts;
  }

  Texts all_reduce(const WalkLine& here) const {
    if (unit(here).replicated) {
      return {fmt::format("routing helpers are whole everywhere: summed over {} ranks that saw other tokens",
                          ranks(Group::tokens))};
    }
    return {"summed, and every rank gets all rows: a reduce-scatter and an all-gather in one"};
  }

  const WalkedStep& step_;
  std::vector<bool> gathered_;  // by unit, so far
  std::set<std::string> said_;
};

}  // namespace

std::string what_of(const WalkLine& line) {
  switch (line.kind) {
    case WalkKind::gather:
      return "gather " + line.subject;
    case WalkKind::gather_island:
      return fmt::format("gather {} in island", line.subject);
    case WalkKind::copy:
      return "copy " + line.subject;
    case WalkKind::free:
      return "free " + line.subject;
    case WalkKind::keep_part:
      return fmt::format("free {}, keep a part", line.subject);
    case WalkKind::in_place:
      return fmt::format("{} {} in place", is_gather(line.op) ? "use" : "leave", line.subject);
    case WalkKind::compute:
      return fmt::format("{} {}", compute_name(line.op), line.subject);
    case WalkKind::reduce_scatter:
      return "reduce-scatter " + line.subject;
    case WalkKind::scatter:
      return "scatter gradient " + line.subject;
    case WalkKind::all_reduce:
      return "all-reduce " + line.subject;
    case WalkKind::add:
      return "add gradient " + line.subject;
    case WalkKind::tie:
      return "tie " + line.subject;
    case WalkKind::wait:
      return "wait for reduction " + line.subject;
    case WalkKind::message:
      return message_text(line);
    case WalkKind::norm:
      return "norm";
    case WalkKind::step:
      return "step";
  }
  return "?";
}

std::vector<std::string> walk_remarks(const WalkedStep& step) {
  Remarks remarks(step);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < step.lines.size(); ++i) texts.push_back(remarks.of(i));
  return texts;
}

}  // namespace weft
