// How often parameters are gathered, in which pieces, in which dtype and when.
#include <fmt/format.h>

#include <algorithm>

#include "parallel/shard/wrap.h"
#include "trainer/diagnosis/alternatives.h"
#include "trainer/diagnosis/rules.h"
#include "trainer/solved_timing.h"

namespace weft {
namespace {

constexpr const char* metrics_file = "metrics.jsonl";

double mean_payload(const RunEvidence& evidence) {
  return static_cast<double>(evidence.measured.gather_bytes) / static_cast<double>(evidence.measured.gathers);
}

// Of the slowest group that gathers.
LinkCost gather_link(const RunEvidence& evidence) {
  for (const Group group : {Group::dp_shard, Group::dp_shard_cp, Group::edp_shard}) {
    const bool used = evidence.measured.exchange.contains({std::string(name_of(group)), CollectiveOp::all_gather});
    if (used && crosses_nodes(evidence.mesh, group, evidence.hardware)) {
      return link_of(evidence.mesh, group, evidence.hardware);
    }
  }
  return evidence.hardware.inside;
}

// A ring of n ranks takes (n - 1) latency + (n - 1) / n payload / rate: at this payload both are equal.
double break_even_payload(const RunEvidence& evidence) {
  const LinkCost link = gather_link(evidence);
  return evidence.program.shard_ranks * link.latency * link.bytes_per_second;
}

double median_of(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

std::optional<RuleVerdict> nothing_gathered(const RunEvidence& evidence) {
  if (evidence.measured.gathers > 0) return std::nullopt;
  return RuleVerdict::silent("nothing is gathered");
}

double saved_seconds(const RunEvidence& evidence, const ProgramFigures& other) {
  return link_seconds(evidence.program.exchange, evidence.mesh, evidence.hardware) -
         link_seconds(other.exchange, evidence.mesh, evidence.hardware);
}

}  // namespace

// One unit a stage has a gather of the whole stage, two equal ones have halves: 0.75 lies between. A stage that is
// smaller than what a latency moves is better gathered at once.
RuleVerdict check_root_only_units(const RunEvidence& evidence) {
  constexpr double whole_stage = 0.75;
  if (auto verdict = nothing_gathered(evidence)) return *verdict;
  const ProgramFigures& program = evidence.program;
  const double stage = static_cast<double>(program.stage_bytes) / static_cast<double>(program.gathered_stages);
  const double payload = mean_payload(evidence);
  if (payload <= whole_stage * stage || stage <= break_even_payload(evidence)) return RuleVerdict::silent();
  const auto by_block = figures_with(evidence.config(), [](Config& config) { wrap_all(config, "block"); });
  if (!by_block || by_block->gathered_units < program.gathered_units * 3 / 2) {
    return RuleVerdict::silent("stages have one block each: by block they are one unit too");
  }
  const double units = static_cast<double>(by_block->gathered_units) / static_cast<double>(by_block->gathered_stages);
  DiagnosedFault finding{.sentence = fmt::format("everything of a stage is gathered in one unit: computation waits for all of "
                                          "it, and all of it is there at once")};
  // By block only the first of the units is waited for.
  const double gathers_a_rank = static_cast<double>(evidence.measured.gathers) / evidence.mesh.world();
  finding.seconds = gathers_a_rank * (1.0 - 1.0 / units) *
                    link_seconds(gather_link(evidence), CollectiveOp::all_gather, payload, program.shard_ranks);
  finding.bytes = program.peak_bytes - by_block->peak_bytes;
  finding.evidence = {
      {"bytes of a gather, mean", fmt::format("{:.0f}", payload),
       fmt::format("{:.0f} by block; a whole stage is {:.0f}", by_block->bytes_a_gather(), stage), metrics_file},
      {"gathers of a step, all ranks", fmt::format("{}", evidence.measured.gathers),
       fmt::format("{} by block", by_block->gathers), metrics_file},
      {"full parameters at the fullest rank's peak",
       fmt::format("{} bytes", evidence.run.steps.back().memory[Bucket::unsharded_parameters]),
       fmt::format("the whole peak is {} bytes lower by block", program.peak_bytes - by_block->peak_bytes),
       metrics_file}};
  finding.changes = {
      {policy_setting(evidence.config(), "wrap",
                      [](const ShardPolicy& policy) { return parse_wrap(policy.wrap).kind != WrapKind::block; }),
       "\"block\""}};
  return RuleVerdict::found(std::move(finding));
}

// Between one gather for each unit and visit and one for each use lies a factor of at least the number of microbatches;
// 1.5 is below that for two of them and leaves those alone that use a unit twice at the ends of a step.
RuleVerdict check_repeated_gathers(const RunEvidence& evidence) {
  constexpr double repeated = 1.5;
  if (auto verdict = nothing_gathered(evidence)) return *verdict;
  const Config& config = evidence.config();
  if (is_solved(config)) return RuleVerdict::silent("gathers are solved for under shard.memory_budget");
  if (config.microbatches() == 1) return RuleVerdict::silent("a step is one microbatch");
  const std::string residency = "step";
  const auto kept = figures_with(config, [&](Config& other) { set_residency(other, residency); });
  const auto gathers = evidence.measured.gathers;
  if (!kept || static_cast<double>(gathers) <= repeated * static_cast<double>(kept->gathers)) return RuleVerdict::silent();
  const std::int64_t more = kept->peak_bytes - evidence.program.peak_bytes;
  const auto fit = fits(evidence, more);
  // Dropping parameters is what sharding them is for: only memory that is known to be free speaks against it.
  if (!fit.has_value()) {
    return RuleVerdict::silent(fmt::format("{} gathers; keeping parameters, {}, would take {}", gathers, kept->gathers,
                                       memory_text(evidence, more)));
  }
  if (!*fit) {
    return RuleVerdict::silent(fmt::format("{} gathers, and keeping parameters would not fit: it takes {}", gathers,
                                       memory_text(evidence, more)));
  }
  DiagnosedFault finding{.sentence = fmt::format("parameters are gathered again for every use, though they could stay between "
                                          "{} microbatches",
                                          config.microbatches())};
  finding.seconds = saved_seconds(evidence, *kept);
  finding.evidence = {
      {"gathers of a step, all ranks", fmt::format("{}", gathers),
       fmt::format("{} for {} units under residency \"{}\"", kept->gathers, kept->gathered_units, residency),
       metrics_file},
      {"bytes gathered in a step, all ranks", fmt::format("{}", evidence.measured.gather_bytes),
       fmt::format("{}", kept->gather_bytes), metrics_file},
      {"memory of the fullest rank", fmt::format("{} bytes", evidence.peak_bytes()),
       fmt::format("keeping takes {}", memory_text(evidence, more)), metrics_file}};
  finding.changes = {{policy_setting(config, "residency",
                                     [&](const ShardPolicy& policy) {
                                       return policy.residency != residency || !policy.residency_by_stage.empty();
                                     }),
                      "\"" + residency + "\""}};
  return RuleVerdict::found(std::move(finding));
}

// Below this payload a gather is mostly latency. The median, since one small unit among large ones is no fault; and
// only where merging would spare a third of the gathers.
RuleVerdict check_small_units(const RunEvidence& evidence) {
  if (auto verdict = nothing_gathered(evidence)) return *verdict;
  const double needed = break_even_payload(evidence);
  std::vector<std::int64_t> traced;
  for (const TracedRank& rank : evidence.traced) {
    traced.insert(traced.end(), rank.gather_bytes.begin(), rank.gather_bytes.end());
  }
  const bool has_trace = !traced.empty();
  const double payload = has_trace ? median_of(traced) : mean_payload(evidence);
  if (payload >= needed) return RuleVerdict::silent();
  const std::string wrap = fmt::format("minimum_bytes {:.0f}", needed);
  const auto merged = figures_with(evidence.config(), [&](Config& config) { wrap_all(config, wrap); });
  const auto gathers = evidence.measured.gathers;
  if (!merged || 3 * merged->gathers > 2 * gathers) {
    return RuleVerdict::silent(
        fmt::format("units are small ({:.0f} bytes), but merging them would hardly spare gathers", payload));
  }
  const LinkCost link = gather_link(evidence);
  DiagnosedFault finding{.sentence = fmt::format("a gather moves less than its link does within its latency")};
  finding.seconds = saved_seconds(evidence, *merged);
  finding.evidence = {
      {has_trace ? "bytes of a gather, median" : "bytes of a gather, mean", fmt::format("{:.0f}", payload),
       fmt::format("at least {:.0f}: {} ranks x {:.1f} us x {:.1f} GB/s ({})", needed, evidence.program.shard_ranks,
                   1e6 * link.latency, 1e-9 * link.bytes_per_second, evidence.hardware.name),
       has_trace ? "trace_rank*.json" : metrics_file},
      {"gathers of a step, all ranks", fmt::format("{}", gathers), fmt::format("{} when merged", merged->gathers),
       metrics_file}};
  finding.changes = {
      {policy_setting(evidence.config(), "wrap", [](const ShardPolicy&) { return true; }), "\"" + wrap + "\""}};
  return RuleVerdict::found(std::move(finding));
}

// 2 bytes for a parameter in 16 bits, 4 in float32: above 3 more than half of them travel in float32, which is not a
// family that needs it.
RuleVerdict check_gather_dtype(const RunEvidence& evidence) {
  constexpr double mostly_float32 = 3.0;
  if (auto verdict = nothing_gathered(evidence)) return *verdict;
  const double elements = static_cast<double>(evidence.program.gathered_elements);
  const double bytes = static_cast<double>(evidence.measured.gather_bytes) / elements;
  if (bytes <= mostly_float32) return RuleVerdict::silent();
  DiagnosedFault finding{.sentence = "parameters travel in float32: twice the bytes that 16 bits need"};
  finding.evidence = {
      {"bytes of a gathered parameter", fmt::format("{:.2f}", bytes), "2 in bfloat16 or float16", metrics_file},
      {"bytes gathered in a step, all ranks", fmt::format("{}", evidence.measured.gather_bytes),
       fmt::format("{:.0f}", 2.0 * elements), metrics_file}};
  if (const auto narrow = figures_with(evidence.config(), compute_in_16_bits)) {
    finding.seconds = saved_seconds(evidence, *narrow);
    finding.bytes = evidence.program.peak_bytes - narrow->peak_bytes;
  }
  finding.changes = {
      {"precision.compute", "\"bfloat16\"", "parameters, gradients' sums and optimizer stay in float32"}};
  return RuleVerdict::found(std::move(finding));
}

// A gather that is late cannot hide behind anything. With a lookahead only those stay late that follow the drop of the
// same unit; so more than half of the late ones must go with one, and be more than a quarter of all.
RuleVerdict check_lookahead(const RunEvidence& evidence) {
  if (auto verdict = nothing_gathered(evidence)) return *verdict;
  const ProgramFigures& program = evidence.program;
  if (4 * program.late_gathers <= program.gathers) return RuleVerdict::silent();
  const auto ahead = figures_with(evidence.config(), look_ahead);
  if (!ahead || 2 * ahead->late_gathers >= program.late_gathers) return RuleVerdict::silent();
  DiagnosedFault finding{.sentence = "gathers start only when the computation before their use has ended"};
  finding.evidence = {{"gathers with nothing computed between them and their use",
                       fmt::format("{} of {}", program.late_gathers, program.gathers),
                       fmt::format("{} with a lookahead of 1", ahead->late_gathers), "config.toml"}};
  double gathers = 0.0, late = 0.0, waited = 0.0;
  for (const TracedRank& rank : evidence.traced) {
    gathers += rank.gathers;
    late += rank.late_gathers;
    waited = std::max(waited, rank.late_seconds);
  }
  if (!evidence.traced.empty()) {
    if (2.0 * late <= gathers) {
      return RuleVerdict::silent(
          fmt::format("{:.0f} of {:.0f} traced gathers ended after the computation before their use", late, gathers));
    }
    finding.seconds = waited;
    finding.evidence.push_back({"traced gathers that ended after the computation before their use",
                                fmt::format("{:.0f} of {:.0f}", late, gathers), "few", "trace_rank*.json"});
    finding.evidence.push_back({"computation stood still for them, most of a rank",
                                fmt::format("{:.3g} s a step", waited), "0", "trace_rank*.json"});
  } else {
    const double one =
        link_seconds(gather_link(evidence), CollectiveOp::all_gather, mean_payload(evidence), program.shard_ranks);
    finding.seconds = one * static_cast<double>(program.late_gathers - ahead->late_gathers) / evidence.mesh.world();
  }
  finding.changes = {
      {policy_setting(evidence.config(), "lookahead", [](const ShardPolicy& policy) { return policy.lookahead == 0; }),
       "1"}};
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
