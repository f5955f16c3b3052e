#include "trainer/rank/router_helpers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/staging.h"
#include "trainer/optimizer/learning_rate.h"

namespace weft {

std::vector<float> bias_steps(BiasUpdate update, double rate, std::span<const std::int64_t> choices,
                              std::int64_t copies) {
  const auto all = static_cast<double>(std::reduce(choices.begin(), choices.end()));
  const double mean = all / static_cast<double>(std::ssize(choices) - 1 + copies);
  std::vector<float> steps;
  steps.reserve(choices.size());
  for (std::size_t e = 0; e < choices.size(); ++e) {
    const std::int64_t slots = e + 1 < choices.size() ? 1 : copies;
    const double missing = mean - static_cast<double>(choices[e]) / static_cast<double>(slots);
    const double sign = missing > 0.0 ? 1.0 : missing < 0.0 ? -1.0 : 0.0;
    steps.push_back(static_cast<float>(rate * (update == BiasUpdate::sign ? sign : missing / mean)));
  }
  return steps;
}

RouterHelpers::RouterHelpers(const Config& config, RankStages& stages, Stream& stream)
    : config_(config), stream_(stream) {
  for (const auto& [block, values] : stages.selection_biases()) {
    biases_.push_back(
        {block, values, {}, std::make_unique<Staging>(stream.device(), DType::float32, values.rows(), 1)});
  }
}

void RouterHelpers::move(const StepTotals& totals, std::int64_t update) {
  const MoeConfig& moe = config_.model.moe;
  if (biases_.empty() || moe.bias_update_rate == 0.0 || !config_.training.trains(Family::routing)) return;
  const double rate = moe.bias_schedule == BiasSchedule::constant
                          ? moe.bias_update_rate
                          : learning_rate(config_.lr_scheduler, moe.bias_update_rate, update, config_.run.steps);
  for (Bias& bias : biases_) {
    if (bias.on_host.empty()) bias.on_host = read<float>(stream_, bias.values);
    const MoeTotals& made = totals.moe[bias.block];
    std::vector<std::int64_t> choices = made.expert_tokens;
    if (moe.null_copies() > 0) choices.push_back(made.null_choices);
    const std::vector<float> steps =
        bias_steps(moe.bias_update, rate, choices, std::max<std::int64_t>(moe.null_copies(), 1));
    for (std::size_t e = 0; e < steps.size(); ++e) bias.on_host[e] += steps[e];
    bias.staging->finish();
    std::ranges::copy(bias.on_host, bias.staging->as<float>().begin());
    bias.staging->upload(stream_, bias.values);
  }
}

void RouterHelpers::report(const Communicator& stage, StepReport report) {
  if (stage.rank() != 0) return;
  for (const Bias& bias : biases_) square_sum(stream_, bias.values, report.bias_squares(bias.block));
}

void RouterHelpers::require_finite() {
  for (const Bias& bias : biases_) {
    const std::vector<float> values = read<float>(stream_, bias.values);
    const auto found = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
    if (found == values.end()) continue;
    fail("the selection bias of block {} is {} for expert {}: experts are chosen by finite numbers", bias.block, *found,
         found - values.begin());
  }
}

void require_same_copies(RankStages& stages, MemoryLedger& ledger, Communicator& stage) {
  if (stage.size() == 1) return;
  for (std::size_t u = 0; u < stages.planned_units().size(); ++u) {
    if (!stages.planned_units()[u]->plan.replicated()) continue;
    for (const OwnedRows& owned : stages.owned_rows(u)) {
      Tensor first = ledger.allocate(Bucket::workspace, DType::float32, owned.values.rows(), owned.values.columns());
      cast(stage.stream(), owned.values, first);
      stage.broadcast(first, 0);
      const std::vector<float> expected = read<float>(stage.stream(), first);
      const std::vector<float> here = read<float>(stage.stream(), owned.values);
      const auto same_bits = [](float a, float b) {
        return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
      };
      const auto [own, other] = std::ranges::mismatch(here, expected, same_bits);
      if (own == here.end()) continue;
      const std::int64_t at = own - here.begin();
      fail(
          "{} differs from that of the first rank of its stage in row {}: {:a} here, {:a} there; all ranks of a stage "
          "have the same copy, and change it alike",
          owned.parameter->name, at / owned.parameter->columns, *own, *other);
    }
  }
}

}  // namespace weft
