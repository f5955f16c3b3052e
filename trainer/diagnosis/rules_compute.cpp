// Rules on the distribution of computation: over stages of the pipeline, and over ranks with equal work.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "parallel/runtime/error.h"
#include "parallel/runtime/medians.h"
#include "trainer/diagnosis/alternatives.h"
#include "trainer/diagnosis/diagnose.h"
#include "trainer/layout/layout_summary.h"

namespace weft {
namespace {

constexpr const char* no_trace = "needs the traces of a run with profiling.first_step";

struct StageTimes {
  std::vector<double> seconds;  // by pipeline rank, of its fastest traced rank
  double mean = 0.0, imbalance = 0.0;
  std::size_t slowest = 0;
};

// Absent unless every pipeline rank was traced.
std::optional<StageTimes> stage_times(const RunEvidence& evidence) {
  std::map<int, double> least;
  for (const TracedRank& rank : evidence.traced) {
    const double seconds = rank.compute_seconds();
    const auto [found, fresh] = least.try_emplace(rank.pipeline_rank, seconds);
    if (!fresh) found->second = std::min(found->second, seconds);
  }
  if (std::ssize(least) != evidence.config().parallelism.pipeline) return std::nullopt;
  StageTimes times;
  for (const auto& [pipeline_rank, seconds] : least) {
    times.mean += seconds / static_cast<double>(least.size());
    times.seconds.push_back(seconds);
  }
  times.slowest = std::ranges::max_element(times.seconds) - times.seconds.begin();
  times.imbalance = times.seconds[times.slowest] / times.mean;
  return times;
}

// The layout that Weft chooses; absent if the schedule does not allow one.
std::optional<LayoutSummary> even_layout(Config config) {
  config.pipeline.layout = std::string("auto");
  config.pipeline.first_stage_blocks = config.pipeline.last_stage_blocks = std::nullopt;
  std::optional<LayoutSummary> summary;
  refusal_of([&] { summary = summarize_layout(config); });
  return summary;
}

// The counts of blocks at the ends say what layout "auto" deals: they are refused beside a written one.
void free_ends(const Config& config, DiagnosedFault& finding) {
  if (config.pipeline.first_stage_blocks) finding.changes.push_back({"pipeline.first_stage_blocks", "\"auto\""});
  if (config.pipeline.last_stage_blocks) finding.changes.push_back({"pipeline.last_stage_blocks", "\"auto\""});
}

// The run with this layout; absent if it is refused.
std::optional<Alternative> with_layout(const RunEvidence& evidence, const std::string& layout) {
  Config config = evidence.config();
  config.pipeline.layout = layout;
  config.pipeline.first_stage_blocks = config.pipeline.last_stage_blocks = std::nullopt;
  return alternative_of(evidence, config);
}

// Seconds that the slowest pipeline rank computes more than the mean; without traces the share `more` of the modelled
// mean.
std::optional<StepCost> slowest_stage_cost(const RunEvidence& evidence, const std::optional<StageTimes>& times,
                                           double more) {
  if (times) {
    return StepCost{times->seconds[times->slowest] - times->mean, Basis::measured,
                    fmt::format("rank {} of the pipeline computes so much longer than the mean (trace_rank*.json)",
                                times->slowest)};
  }
  return StepCost{
      more * evidence.compute_seconds(evidence.hardware.reached_flops), Basis::modelled,
      fmt::format("operations at {:.3g} a second of {}", evidence.hardware.reached_flops, evidence.hardware.name)};
}

// Times of a rank's comparable actions, relative to the same actions of its peers.
struct Comparison {
  std::vector<double> ratios;
  double seconds_more = 0.0;  // of a step
};

Comparison compare(const TracedRank& rank, std::span<const TracedRank> all) {
  Comparison comparison;
  for (const auto& [what, own] : rank.computed) {
    std::vector<double> others;
    for (const TracedRank& other : all) {
      if (other.rank == rank.rank || other.pipeline_rank != rank.pipeline_rank || !own.comparable) continue;
      const auto same = other.computed.find(what);
      if (same != other.computed.end() && same->second.least > 0.0) others.push_back(same->second.least);
    }
    if (others.empty()) continue;
    const double usual = median_of(std::move(others));
    comparison.ratios.push_back(own.least / usual);
    comparison.seconds_more += (own.least - usual) * own.a_step;
  }
  std::sort(comparison.ratios.begin(), comparison.ratios.end());
  return comparison;
}

}  // namespace

// By operations of the model, which are exact, a stage with a tenth more than the mean costs a tenth of the step. A
// table of measured costs stands in their place.
// Measured times count only from 1.5 on, because kernels are not equally fast on every shape.
RuleVerdict check_stages(const RunEvidence& evidence) {
  constexpr double uneven = 1.1, uneven_by_clock = 1.5, better = 1.05;
  const Config& config = evidence.config();
  if (config.parallelism.pipeline == 1) return RuleVerdict::silent("no pipeline");
  const LayoutSummary run = summarize_layout(config);
  const LayoutSummary even = even_layout(config).value_or(run);
  const auto times = stage_times(evidence);
  const std::string_view measure = config.pipeline.has_cost_table() ? "given costs" : "operations";
  const double modelled = run.rank_imbalance(), best = even.rank_imbalance();
  const bool by_model = modelled > uneven && modelled > better * best;
  const bool by_clock = times && times->imbalance > uneven_by_clock && !(modelled > uneven);
  if (modelled > uneven && !by_model) {
    return RuleVerdict::silent("{:.2f} of the mean by {}, but no layout of so many stages is more even", modelled,
                               measure);
  }
  if (by_model && times && times->imbalance <= uneven) {
    return RuleVerdict::silent("{:.2f} of the mean by {}, {:.2f} by the clock", modelled, measure, times->imbalance);
  }
  if (!by_model && !by_clock) return RuleVerdict::silent();
  const auto other = by_model ? with_layout(evidence, even.layout) : std::nullopt;
  if (other && !other->fits.value_or(true)) {
    return RuleVerdict::silent("{:.2f} of the mean by {}, and layout \"{}\" would not fit: it takes {}", modelled,
                               measure, even.layout, other->memory);
  }
  DiagnosedFault finding;
  finding.step = slowest_stage_cost(evidence, times, modelled - best);
  if (times) {
    finding.evidence.push_back({"computation of the slowest pipeline rank over the mean",
                                fmt::format("{:.2f}: rank {} of the pipeline, {:.3g} s a step", times->imbalance,
                                            times->slowest, times->seconds[times->slowest]),
                                "1", "trace_rank*.json"});
  }
  finding.evidence.push_back({fmt::format("{} of the most loaded pipeline rank over the mean", measure),
                              fmt::format("{:.2f} with layout \"{}\"", modelled, run.layout),
                              fmt::format("{:.2f} with \"{}\"", best, even.layout), "config.toml", Basis::predicted});
  if (other) finding.evidence.push_back(memory_line(evidence, "that layout", *other));
  if (by_model) {
    finding.sentence =
        fmt::format("the pipeline waits for one rank: it has {:.2f} times the mean's {}", modelled, measure);
    finding.changes = {{"pipeline.layout", "\"" + even.layout + "\""}};
  } else {
    finding.sentence =
        fmt::format("the pipeline waits for one rank: it takes {:.2f} times the mean, though {} are even",
                    times->imbalance, measure);
    finding.changes = {{"pipeline.layout", "\"auto\"",
                        "with pipeline.costs, a table of what the traces measured; or the rank is slow"}};
  }
  free_ends(config, finding);
  return RuleVerdict::found(std::move(finding));
}

// Undisturbed times of the same work (the least of all microbatches and steps) differ by a few percent. A rank that is
// throttled or busy with other work is slow at everything: in three of four kinds of action.
RuleVerdict check_slow_ranks(const RunEvidence& evidence) {
  constexpr double slow = 1.15;
  if (evidence.traced.empty()) return RuleVerdict::unchecked(no_trace);
  DiagnosedFault finding;
  std::vector<int> slow_ranks;
  bool compared = false;
  for (const TracedRank& rank : evidence.traced) {
    const Comparison comparison = compare(rank, evidence.traced);
    if (comparison.ratios.size() < 2) continue;
    compared = true;
    const double quarter = comparison.ratios[comparison.ratios.size() / 4], usual = median_of(comparison.ratios);
    if (quarter <= slow) continue;
    slow_ranks.push_back(rank.rank);
    if (!finding.step || comparison.seconds_more > finding.step->seconds) {
      finding.step = StepCost{
          comparison.seconds_more, Basis::measured,
          fmt::format("rank {} computes so much longer than its peers (trace_rank{}.json)", rank.rank, rank.rank)};
    }
    finding.evidence.push_back(
        {fmt::format("computation of rank {} over that of the ranks with the same work", rank.rank),
         fmt::format("{:.2f} in the median of {} kinds of action, above {:.2f} in three of four", usual,
                     comparison.ratios.size(), quarter),
         "1", fmt::format("trace_rank{}.json", rank.rank)});
    finding.changes.push_back({fmt::format("the machine of rank {}", rank.rank), "",
                               "clocks, temperature, other processes; no setting of the run makes it faster"});
  }
  if (!compared)
    return RuleVerdict::unchecked("no two traced ranks do the same work without waiting for each other in it");
  if (slow_ranks.empty()) return RuleVerdict::silent();
  finding.sentence =
      slow_ranks.size() == 1
          ? fmt::format("rank {} computes slower than its peers, and they wait for it", slow_ranks.front())
          : fmt::format("{} ranks compute slower than their peers", slow_ranks.size());
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
