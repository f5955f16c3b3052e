#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tools/walk/walk_words.h"

namespace weft {
namespace {

const WalkedStrategy* find(std::span<const WalkedStrategy> strategies, std::string_view name) {
  const auto found = std::find_if(strategies.begin(), strategies.end(),
                                  [&](const WalkedStrategy& strategy) { return strategy.name.starts_with(name); });
  return found == strategies.end() ? nullptr : &*found;
}

const std::vector<Action>& list_of(const WalkedStep& step) {
  return step.program.ranks[static_cast<std::size_t>(step.mesh.coordinates(step.rank).pp)];
}

// `one` relative to `other`: "25.0 % less", "2.0 times as much".
std::string beside(std::int64_t one, std::int64_t other) {
  if (one == other) return "the same";
  const double ratio = static_cast<double>(one) / static_cast<double>(other);
  if (ratio >= 2.0) return fmt::format("{:.1f} times as much", ratio);
  return fmt::format("{:.1f} % {}", 100.0 * std::abs(ratio - 1.0), ratio > 1.0 ? "more" : "less");
}

std::string times(int count) {
  return count == 1 ? "once" : fmt::format("{} times", count);
}

// How often parameters of sharded units are used, and how many uses need no gather of their own. A use is a run of
// reads in one forward or one backward; consecutive uses share a gather.
struct Uses {
  int units = 0, unread = 0, shared = 0;
};

Uses uses_of(const WalkedStrategy& walked) {
  const WalkedStep& step = walked.step;
  std::set<int> used, read_backward;
  for (const Action& action : list_of(step)) {
    if (!reads_parameters(action.op) || !action.segment) continue;
    const ProgramSegment& segment = step.program.segments[static_cast<std::size_t>(*action.segment)];
    for (const int unit : segment.units) {
      if (step.program.units[static_cast<std::size_t>(unit)].gather_bytes == 0) continue;
      used.insert(unit);
      if (action.op != Op::forward && segment.reads_weights_backward) read_backward.insert(unit);
    }
  }
  const auto microbatches = static_cast<int>(walked.microbatches);
  Uses uses{.units = static_cast<int>(used.size())};
  uses.unread = (uses.units - static_cast<int>(read_backward.size())) * microbatches;
  uses.shared = 2 * uses.units * microbatches - uses.unread - step.summary.gathers;
  return uses;
}

std::string gathers_lesson(const WalkedStrategy& full) {
  const Uses uses = uses_of(full);
  const int gathers = full.step.summary.gathers;
  if (gathers == 0 || uses.shared < 0) return {};
  std::string text =
      fmt::format("{} gathers {}: {} units, forward and backward, {} microbatch{} would be {}", full.name,
                  times(gathers), uses.units, full.microbatches, full.microbatches == 1 ? "" : "es",
                  2 * uses.units * static_cast<int>(full.microbatches));
  if (uses.unread > 0)
    text += fmt::format("; {} backward{} no parameters", uses.unread, uses.unread == 1 ? " reads" : "s read");
  if (uses.shared > 0)
    text +=
        fmt::format("; {} use{} a gather with the use before", uses.shared, uses.shared == 1 ? " shares" : "s share");
  return text + ".";
}

std::string once_lesson(const WalkedStrategy& full, const WalkedStrategy& once) {
  const WalkSummary &a = full.step.summary, &b = once.step.summary;
  return fmt::format(
      "{} gathers each unit once: {} instead of {}, {} sent by gathers instead of {}; for that up to {} of full "
      "parameters are live, where {} has {}.",
      once.name, times(b.gathers), times(a.gathers), bytes_text(b.sent_by_gathers), bytes_text(a.sent_by_gathers),
      bytes_text(b.parameters_peak), full.name, bytes_text(a.parameters_peak));
}

std::string reduction_lesson(const WalkedStrategy& each, const WalkedStrategy& last) {
  const WalkSummary &a = each.step.summary, &b = last.step.summary;
  if (list_of(each.step) == list_of(last.step)) {
    return fmt::format("{} and {} are the same list here: they differ between microbatches, and there is {}.",
                       each.name, last.name, last.microbatches);
  }
  return fmt::format(
      "{} reduces {} and {} {}: full gradients add up to {} in the one and stay until the last microbatch, {}, in the "
      "other; the reductions send {} and {}.",
      each.name, times(a.reductions), last.name, times(b.reductions), bytes_text(a.gradients_peak),
      bytes_text(b.gradients_peak), bytes_text(a.sent_by_reductions), bytes_text(b.sent_by_reductions));
}

// Whether every unit is gathered and reduced with equal bytes.
bool moves_equal_bytes(const Program& program) {
  return std::ranges::all_of(program.units, [](const ProgramUnit& unit) {
    return unit.replicated || unit.frozen || unit.gather_bytes == unit.reduce_bytes;
  });
}

std::string whole_lesson(const WalkedStrategy& whole, const WalkedStrategy& once) {
  const WalkSummary &a = whole.step.summary, &b = once.step.summary;
  const std::int64_t moved = b.sent_by_gathers + b.sent_by_reductions, difference = moved - a.sent_by_reductions;
  std::string text = fmt::format(
      "{} gathers nothing and sends {} in all-reduces; {} sends {} in gathers and {} in reductions, {} in all",
      whole.name, bytes_text(a.sent_by_reductions), once.name, bytes_text(b.sent_by_gathers),
      bytes_text(b.sent_by_reductions), bytes_text(moved));
  if (moves_equal_bytes(once.step.program)) {
    text += ": an all-reduce is a reduce-scatter and an all-gather";
    // Shards are padded to equal numbers of rows; an unsharded unit has no padding.
    if (difference != 0) text += fmt::format(", and {} of these are padding", bytes_text(difference));
  }
  return text + fmt::format(". It holds {} of state all step instead of {}, {}.", bytes_text(a.state),
                            bytes_text(b.state), beside(a.state, b.state));
}

std::string hybrid_lesson(const WalkedStrategy& hybrid, const WalkedStrategy& full) {
  const WalkSummary &a = hybrid.step.summary, &b = full.step.summary;
  const Degrees& degrees = hybrid.step.mesh.degrees();
  return fmt::format(
      "{} shards over {} ranks and has {} replicas: gathers send {} instead of {} and stay among the {}; only the "
      "all-reduce of what a rank owns goes between replicas. Its state is {} instead of {}.",
      hybrid.name, degrees.data_shard * degrees.context, degrees.data_replicate, bytes_text(a.sent_by_gathers),
      bytes_text(b.sent_by_gathers), degrees.data_shard * degrees.context, bytes_text(a.state), bytes_text(b.state));
}

std::string island_lesson(const WalkedStrategy& island, const WalkedStrategy& full) {
  const WalkSummary &a = island.step.summary, &b = full.step.summary;
  std::int64_t inside = 0;
  for (const WalkLine& line : island.step.lines) {
    if (line.kind == WalkKind::gather_island) inside += line.sent;
  }
  return fmt::format(
      "{} keeps parts after each forward: {} of {} gathers stay among neighbours, so {} instead of {} are sent between "
      "islands, and full parameters with those parts take {} at most instead of {}.",
      island.name, a.island_gathers, a.gathers, bytes_text(a.sent_by_gathers - inside), bytes_text(b.sent_by_gathers),
      bytes_text(a.parameters_peak), bytes_text(b.parameters_peak));
}

// The line at which the total of a walk is largest.
std::string peak_lesson(const WalkedStrategy& walked) {
  const WalkSummary& summary = walked.step.summary;
  const WalkLine& line = walked.step.lines[summary.peak_line];
  return fmt::format("The peak, {}, is reached in \"{}\"{}; {} of it are there all step.",
                     bytes_text(summary.total_peak), what_of(line),
                     line.microbatch ? fmt::format(" of microbatch {}", *line.microbatch) : std::string(),
                     bytes_text(summary.state));
}

}  // namespace

std::vector<std::string> walk_lessons(std::span<const WalkedStrategy> strategies) {
  const WalkedStrategy *full = find(strategies, "full_shard"), *each = find(strategies, "shard_grad_op"),
                       *once = find(strategies, "optimizer"), *whole = find(strategies, "no_shard"),
                       *hybrid = find(strategies, "hybrid"), *island = find(strategies, "island");
  std::vector<std::string> lessons;
  if (full) lessons.push_back(gathers_lesson(*full));
  if (full && each) lessons.push_back(once_lesson(*full, *each));
  if (each && once) lessons.push_back(reduction_lesson(*each, *once));
  if (whole && once) lessons.push_back(whole_lesson(*whole, *once));
  if (hybrid && full) lessons.push_back(hybrid_lesson(*hybrid, *full));
  if (island && full) lessons.push_back(island_lesson(*island, *full));
  if (strategies.size() == 1) lessons.push_back(peak_lesson(strategies.front()));
  std::erase(lessons, std::string());
  return lessons;
}

std::string grouped_digits(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (std::size_t end = digits.size(); end > 3; end -= 3) digits.insert(end - 3, ",");
  return digits;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1'000'000) return fmt::format("{} bytes", grouped_digits(bytes));
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace weft
