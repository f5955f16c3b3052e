// Recommends one of the compared shardings: the deciding term in words, and conditions for another choice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/compare.h"
#include "trainer/planning/planned_variants.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {
namespace {

constexpr double giga = 1e9;

// "1.52 s", "3.1 ms".
std::string seconds_text(double seconds) {
  return seconds >= 0.1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.2f} ms", 1e3 * seconds);
}

const StrategyPlan* find(std::span<const StrategyPlan> plans, Sharding sharding) {
  const auto found =
      std::ranges::find_if(plans, [&](const auto& each) { return each.sharding == sharding && each.plan; });
  return found == plans.end() ? nullptr : &*found;
}

std::int64_t needed(const StrategyPlan& each) {
  return each.plan->verdict.needed;
}
bool on_one_node(std::span<const StrategyPlan> plans) {
  return std::ranges::all_of(plans, [](const auto& each) { return !each.plan || each.plan->nodes == 1; });
}

using Candidates = std::vector<std::size_t>;

// Candidates within `slack` of the least.
template <typename Measure>
Candidates least_of(std::span<const StrategyPlan> plans, const Candidates& candidates, double slack, Measure measure) {
  double least = std::numeric_limits<double>::infinity();
  for (const std::size_t i : candidates) least = std::min(least, static_cast<double>(measure(plans[i])));
  Candidates kept;
  for (const std::size_t i : candidates) {
    if (static_cast<double>(measure(plans[i])) <= slack * least) kept.push_back(i);
  }
  return kept;
}

// Why a sharding that is faster, or usual, is not chosen.
std::string misfit_text(const StrategyPlan& each) {
  const Verdict& verdict = each.plan->verdict;
  const std::string text = fmt::format("{} {}", name_of(each.sharding), verdict.text());
  if (each.state_bytes + verdict.reserved <= verdict.memory) return text;
  return fmt::format("{}; its state alone takes {} {} ({}): neither a smaller batch nor accumulation helps", text,
                     verdict.unit().decimal_number(each.state_bytes, 1), verdict.unit().decimal_name(),
                     verdict.unit().text(each.state_bytes));
}

// For two shardings that differ by more than a tie.
std::string faster_text(const StrategyPlan& chosen, const StrategyPlan& full, double compute) {
  const double ours = chosen.plan->node_egress_bytes, theirs = full.plan->node_egress_bytes;
  const auto ratio_text = [](double more, double less) {
    return less > 0.0 ? fmt::format("{:.2f} times fewer", more / less) : std::string("no");
  };
  if (full.egress_seconds > compute) {
    return fmt::format(
        "full_shard's traffic out of a node takes {} and the computation {}: it cannot be hidden; {} sends {} bytes "
        "out "
        "of a node, in {}",
        seconds_text(full.egress_seconds), seconds_text(compute), name_of(chosen.sharding), ratio_text(theirs, ours),
        seconds_text(chosen.egress_seconds));
  }
  const std::string room =
      theirs > 0.0 ? fmt::format("full_shard's traffic out of a node takes {} of {} of computation and could hide",
                                 seconds_text(full.egress_seconds), seconds_text(compute))
                   : std::string("nothing leaves a node");
  const std::int64_t sent = chosen.plan->sent_bytes(), full_sent = full.plan->sent_bytes();
  const ByteUnit unit = byte_unit(std::max(sent, full_sent));
  return fmt::format("{}, but computation waits {} for it, under {} {}; a rank sends {} {} instead of {}", room,
                     seconds_text(full.exposed_seconds), name_of(chosen.sharding), seconds_text(chosen.exposed_seconds),
                     unit.decimal_number(sent, 1), unit.decimal_name(), unit.decimal_number(full_sent, 1));
}

std::vector<std::string> reasons_of(std::span<const StrategyPlan> plans, const StrategyPlan& chosen,
                                    const StrategyPlan& fastest, std::size_t fitting, double compute) {
  std::vector<std::string> reasons;
  const Verdict& verdict = chosen.plan->verdict;
  const std::string takes =
      verdict.unit().text(verdict.needed) +
      (verdict.memory > 0 ? fmt::format(" of {}", verdict.unit().number(verdict.memory, 2)) : std::string());
  const std::string first =
      fmt::format("{}: {} a step, {}", name_of(chosen.sharding), seconds_text(chosen.seconds), takes);
  const std::string all = fmt::format("{}{}", fitting, verdict.memory > 0 ? " that fit" : " (memory is not judged)");
  if (on_one_node(plans)) {
    const std::int64_t sent = chosen.plan->sent_bytes();
    const ByteUnit unit = byte_unit(sent);
    reasons.push_back(
        fmt::format("{}: of {}, it sends least and in fewest calls ({} {} in {}) among those within 1 % "
                    "of the fastest; nothing leaves the node, and a step has no use for memory that is left",
                    first, all, unit.decimal_number(sent, 1), unit.decimal_name(), chosen.collectives));
  } else if (&chosen == &fastest) {
    reasons.push_back(fmt::format("{}: the fastest of {}", first, all));
  } else {
    reasons.push_back(fmt::format("{}: of {}, the one of least memory within 1 % of the fastest ({}, {})", first, all,
                                  name_of(fastest.sharding), seconds_text(fastest.seconds)));
  }
  const StrategyPlan* full = find(plans, Sharding::full_shard);
  if (full && full != &chosen && full->seconds > timing_tie * fastest.seconds) {
    reasons.push_back(faster_text(chosen, *full, compute));
  } else if (full == &chosen && chosen.egress_seconds > 0.0) {
    reasons.push_back(fmt::format("its traffic out of a node takes {} and the computation {}, {} of waiting in all",
                                  seconds_text(chosen.egress_seconds), seconds_text(compute),
                                  seconds_text(chosen.exposed_seconds)));
  }
  for (const StrategyPlan& each : plans) {
    if (!each.plan || each.fits()) continue;
    reasons.push_back(misfit_text(each) + (each.seconds < chosen.seconds
                                               ? fmt::format("; it would take {}", seconds_text(each.seconds))
                                               : ""));
  }
  return reasons;
}

std::vector<std::string> flips_of(std::span<const StrategyPlan> plans, const StrategyPlan* chosen,
                                  const Hardware& hardware, double compute) {
  std::vector<std::string> flips;
  const StrategyPlan* full = find(plans, Sharding::full_shard);
  if (full && full->egress_seconds > 0.0) {
    const double bytes = full->plan->node_egress_bytes;
    flips.push_back(fmt::format(
        "full_shard's {} {} out of a node take as long as the computation ({}) at {:.1f} GB/s; the hardware has {:.1f}",
        byte_unit(bytes).decimal_number(bytes, 1), byte_unit(bytes).decimal_name(), seconds_text(compute),
        bytes / compute / giga, hardware.node_bytes_per_second.value / giga));
  }
  const StrategyPlan* hybrid = find(plans, Sharding::hybrid);
  for (const StrategyPlan* each : {chosen, hybrid == chosen ? nullptr : hybrid}) {
    if (!each || !each->fits() || each->plan->verdict.memory == 0) continue;
    const RunPlan& plan = *each->plan;
    const auto longest = longest_sequence(each->config, hardware, plan.judging());
    const ByteUnit unit = plan.verdict.unit();
    // Up, to the tenth: a card of the size that is told holds it.
    const std::int64_t worst = plan.verdict.reserved + plan.worst_bytes().value_or(0);
    const std::int64_t most = plan.judging() == Routing::worst ? std::max(needed(*each), worst) : needed(*each);
    const double card =
        std::ceil(10.0 * static_cast<double>(most) / Verdict::limit / std::pow(1024.0, unit.power)) / 10.0;
    flips.push_back(
        fmt::format("{} fits up to sequences of {} tokens (now {}; tried are doublings and eighths of them), and with "
                    "this timing of its units on cards of {:.1f} {} and more",
                    name_of(each->sharding), *longest, each->config.training.sequence_length, card, unit.name()));
  }
  return flips;
}

}  // namespace

Recommendation recommend(std::span<const StrategyPlan> plans, const Hardware& hardware) {
  Recommendation result;
  const double compute = compute_seconds(plans);
  Candidates fitting;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].fits()) fitting.push_back(i);
  }
  if (fitting.empty()) {
    const StrategyPlan& least = *std::ranges::min_element(plans, {}, [](const StrategyPlan& each) {
      return each.plan ? needed(each) : std::numeric_limits<std::int64_t>::max();
    });
    result.reasons = {fmt::format("none fits; {} takes least memory", name_of(least.sharding)), misfit_text(least)};
    result.flips = flips_of(plans, nullptr, hardware, compute);
    return result;
  }
  Candidates left = least_of(plans, fitting, timing_tie, [](const auto& each) { return each.seconds; });
  const std::size_t fastest = least_of(plans, left, 1.0, [](const auto& each) { return each.seconds; }).front();
  if (on_one_node(plans)) {
    left = least_of(plans, left, timing_tie, [](const auto& each) { return each.plan->sent_bytes(); });
    left = least_of(plans, left, timing_tie, [](const auto& each) { return each.collectives; });
  }
  result.chosen = least_of(plans, left, 1.0, needed).front();
  const StrategyPlan& chosen = plans[*result.chosen];
  result.reasons = reasons_of(plans, chosen, plans[fastest], fitting.size(), compute);
  result.flips = flips_of(plans, &chosen, hardware, compute);
  return result;
}

std::optional<std::int64_t> longest_sequence(const Config& given, const Hardware& hardware, Routing routing) {
  if (!hardware.memory) return std::nullopt;
  Config config = given;
  const auto fits = [&](std::int64_t length) {
    config.training.sequence_length = length;
    bool enough = false;  // a length is refused if the budget is too small for any timing
    refusal_of([&] { enough = least_need(config, hardware, routing).fits(); });
    return enough;
  };
  std::int64_t length = given.training.sequence_length;
  if (!fits(length)) return std::nullopt;
  while (2 * length <= longest_tried && fits(2 * length)) length *= 2;
  // Eighths are tried only if the ranks can divide them.
  const std::int64_t part = std::int64_t{2} * config.parallelism.context * config.parallelism.tensor;
  if (2 * length > longest_tried || length % 8 != 0 || length / 8 % part != 0) return length;
  const std::int64_t step = length / 8;
  std::int64_t above = 8;  // the least number of eighths known to be too many
  for (std::int64_t below = 0; above - below > 1;) {
    const std::int64_t middle = (above + below) / 2;
    (fits(length + middle * step) ? below : above) = middle;
  }
  return length + (above - 1) * step;
}

}  // namespace weft
