// Rules on the distribution of tokens over experts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "parallel/runtime/medians.h"
#include "trainer/config/config.h"
#include "trainer/diagnosis/diagnose.h"

namespace weft {
namespace {

// A fault that holds in nine of ten steps, with at least three steps, is no accident of initial weights or small
// batches.
constexpr double persistent = 0.9;
constexpr std::size_t enough_steps = 3;

using BlockSteps = std::vector<const MoeMetrics*>;  // of one block, in the order of steps

std::map<int, BlockSteps> by_block(const RunEvidence& evidence) {
  std::map<int, BlockSteps> blocks;
  for (const StepMetrics& step : evidence.steady) {
    for (const MoeMetrics& moe : step.moe) blocks[moe.block].push_back(&moe);
  }
  return blocks;
}

// A line if `wrong` holds of the value in nearly all steps of the block.
void add_persistent(const BlockSteps& steps, double MoeMetrics::*value, const std::function<bool(double)>& wrong,
                    const std::string& what, const std::string& limit, DiagnosedFault& finding) {
  std::vector<double> values;
  for (const MoeMetrics* step : steps) values.push_back(step->*value);
  const auto count = std::ranges::count_if(values, wrong);
  if (static_cast<double>(count) < persistent * static_cast<double>(values.size())) return;
  finding.evidence.push_back(
      {fmt::format("block {}: {}", steps.front()->block, what),
       fmt::format("{:.2f}, {} in {} of {} steps", median_of(values), limit, count, values.size()), "1", metrics_file});
}

// A line if the same experts get no token in any step.
void add_collapsed(const BlockSteps& steps, DiagnosedFault& finding) {
  std::vector<std::int64_t> experts = steps.front()->unused_experts;
  for (const MoeMetrics* step : steps) {
    std::erase_if(experts, [&](auto expert) { return !std::ranges::binary_search(step->unused_experts, expert); });
  }
  if (experts.empty()) return;
  const bool all_named = std::ranges::all_of(
      steps, [](const MoeMetrics* step) { return std::ssize(step->unused_experts) == step->unused; });
  finding.evidence.push_back({fmt::format("block {}: collapsed experts, which get no token", steps.front()->block),
                              fmt::format("{}{} in all of {} steps", fmt::join(experts, ", "),
                                          all_named ? "" : " and perhaps more", steps.size()),
                              "none", metrics_file});
}

// "rank 3 of an expert group (experts 12 to 15)": the one that is idlest most often. "a rank" if no step tells.
std::string idlest_text(const BlockSteps& steps, const Config& config) {
  std::map<int, int> times;  // by place in the expert group
  for (const MoeMetrics* step : steps) {
    if (step->idlest_place) ++times[*step->idlest_place];
  }
  if (times.empty()) return "a rank";
  const std::int64_t place = std::ranges::max_element(times, {}, [](const auto& entry) { return entry.second; })->first;
  const std::int64_t of_rank = config.model.moe.num_experts / config.parallelism.expert;
  return fmt::format("rank {} of an expert group (experts {} to {})", place, place * of_rank,
                     (place + 1) * of_rank - 1);
}

// A selection bias beyond that decides by itself. Sigmoids lie between 0 and 1. The scores of a softmax average 1/E
// over experts and null slots, and the root of a softplus has no end.
std::optional<double> largest_bias(const MoeConfig& moe) {
  constexpr double mean_scores = 10.0;
  if (moe.scoring == Scoring::sqrt_softplus) return std::nullopt;
  return moe.scoring == Scoring::sigmoid ? 1.0 : std::min(1.0, mean_scores / static_cast<double>(moe.pool()));
}

// Root mean square of the selection bias that the step used.
double bias_size(const MoeMetrics& step, const MoeConfig& moe) {
  return step.bias_norm.value_or(0.0) / std::sqrt(static_cast<double>(moe.router_rows()));
}

// Whether the bias grew by more than a tenth over the second half of the steps. Noise around an even load grows in half
// of all cases.
bool still_grows(const BlockSteps& steps, const MoeConfig& moe) {
  constexpr double growth = 1.1;
  return bias_size(*steps.back(), moe) > growth * bias_size(*steps[steps.size() / 2], moe);
}

// A line for each block with a bias that still grows above the largest.
std::vector<EvidenceLine> runaway_biases(const RunEvidence& evidence) {
  std::vector<EvidenceLine> lines;
  const MoeConfig& moe = evidence.config().model.moe;
  const std::optional<double> limit = largest_bias(moe);
  if (!limit) return lines;
  for (const auto& [block, steps] : by_block(evidence)) {
    const double last = bias_size(*steps.back(), moe), half = bias_size(*steps[steps.size() / 2], moe);
    if (last <= *limit || !still_grows(steps, moe)) continue;
    lines.push_back({fmt::format("block {}: root mean square of the selection bias", block),
                     fmt::format("{:.2g}, after half of the steps {:.2g}", last, half),
                     fmt::format("below {:.2g}", *limit), metrics_file});
  }
  return lines;
}

// Whether a larger rate would do better: biases still grow, and stay well below those that decide if they are ten times
// as large. A bias at rest would only swing further. The root of the softplus of 0 is 0.83.
bool needs_larger_rate(const RunEvidence& evidence) {
  constexpr double small_enough = 0.05;
  const MoeConfig& moe = evidence.config().model.moe;
  const double most = small_enough * largest_bias(moe).value_or(1.0);
  return moe.bias_update_rate == 0.0 || std::ranges::all_of(by_block(evidence), [&](const auto& block) {
           return still_grows(block.second, moe) && bias_size(*block.second.back(), moe) <= most;
         });
}

}  // namespace

// If experts are spread over ranks, a busiest expert with twice the mean makes its rank take twice as long. Initial
// weights and small batches come near 1.5, and leave a rank a quarter of the mean. An expert without a token learns
// nothing.
RuleVerdict check_experts(const RunEvidence& evidence) {
  constexpr double uneven = 2.0, starving = 0.1;
  if (!evidence.config().model.has(BlockKind::moe)) return RuleVerdict::silent("no block has experts");
  if (forces_balance(evidence.config().model)) return RuleVerdict::silent("{}", forced_balance_text);
  if (evidence.steady.size() < enough_steps) return RuleVerdict::unchecked("needs three steps behind the first two");
  // The other rule asks for a smaller rate of the bias, this one for a larger.
  if (!runaway_biases(evidence).empty())
    return RuleVerdict::silent("the load is judged once no selection bias runs away");
  DiagnosedFault finding;
  // A step with fewer choices than experts leaves some without a token however they are dealt.
  const MoeConfig& moe = evidence.config().model.moe;
  const bool for_all = evidence.steady.back().tokens * moe.num_experts_per_tok > moe.num_experts;
  for (const auto& [block, steps] : by_block(evidence)) {
    add_persistent(
        steps, &MoeMetrics::max_over_mean, [](double value) { return value > uneven; },
        "tokens of the busiest expert over the mean", fmt::format("above {}", uneven), finding);
    if (for_all) add_collapsed(steps, finding);
    add_persistent(
        steps, &MoeMetrics::idlest_rank, [](double value) { return value < starving; },
        fmt::format("tokens over the mean of the starving rank, {}", idlest_text(steps, evidence.config())),
        fmt::format("below {}", starving), finding);
  }
  if (finding.evidence.empty()) return RuleVerdict::silent();
  finding.sentence = fmt::format("tokens crowd on few of {} experts, step after step", moe.num_experts);
  // Frozen routers keep their bias. The loss still moves what is trained before them.
  if (moe.selection_bias && evidence.config().training.trains(Family::routing)) {
    if (needs_larger_rate(evidence)) {
      finding.changes = {{"model.moe.bias_update_rate",
                          fmt::format("{:g}", moe.bias_update_rate == 0.0 ? 0.001 : 10.0 * moe.bias_update_rate),
                          fmt::format("it is {:g} now", moe.bias_update_rate)}};
    } else {
      finding.sentence += "; a larger bias_update_rate is no remedy: the selection bias is at rest, or large already";
    }
    return RuleVerdict::found(std::move(finding));
  }
  const double coefficient = moe.router_aux_loss_coef;
  finding.changes = {
      {"model.moe.router_aux_loss_coef", fmt::format("{}", coefficient == 0.0 ? 0.01 : 10.0 * coefficient),
       coefficient == 0.0 ? "nothing balances the router now" : fmt::format("it is {} now", coefficient)}};
  return RuleVerdict::found(std::move(finding));
}

// A bias that outweighs the scores and still grows does not find the even load that it is to bring.
RuleVerdict check_biases(const RunEvidence& evidence) {
  const MoeConfig& moe = evidence.config().model.moe;
  if (!evidence.config().model.has(BlockKind::moe) || !moe.selection_bias) {
    return RuleVerdict::silent("no router has a selection bias");
  }
  if (forces_balance(evidence.config().model)) return RuleVerdict::silent("{}", forced_balance_text);
  if (!largest_bias(moe)) return RuleVerdict::silent("scores of {} have no limit", name_of(moe.scoring));
  if (evidence.steady.size() < enough_steps) return RuleVerdict::unchecked("needs three steps behind the first two");
  DiagnosedFault finding;
  finding.evidence = runaway_biases(evidence);
  if (finding.evidence.empty()) return RuleVerdict::silent();
  finding.sentence = "selection biases outweigh the scores, and still grow";
  finding.changes = {{"model.moe.bias_update_rate", fmt::format("{:g}", moe.bias_update_rate / 10.0),
                      fmt::format("it is {:g} now", moe.bias_update_rate)}};
  return RuleVerdict::found(std::move(finding));
}

}  // namespace weft
