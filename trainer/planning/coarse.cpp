#include "trainer/planning/coarse.h"

#include <algorithm>
#include <cmath>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The smallest number of GPUs with which each part of `whole` bytes is at most `room`. A part that exceeds `room` only
// by the rounding of a division counts as fitting.
std::optional<int> ranks_for(double whole, double room) {
  if (room <= 0.0) return std::nullopt;
  constexpr double rounding = 1e-12;
  const double ranks = std::ceil(whole / room * (1.0 - rounding));
  if (ranks > 1e9) fail_request("{:g} bytes of state would need {:g} GPUs", whole, ranks);
  return std::max(1, static_cast<int>(ranks));
}

}  // namespace

Card card_of(std::string_view name, double memory) {
  return {name, memory / 0x1p30 * 1e9, memory};
}

std::vector<StateRecipe> state_recipes() {
  return {
      // bytes of parameters, gradients, optimizer state and, of FSDP2, views
      {"bfloat16", "all in bfloat16", 2, 2, 4},
      {"float32 moments", "bfloat16, m and v in float32", 2, 2, 8},
      {"mixed precision", "bfloat16; master, m and v in float32", 2, 2, 12},
      {"Megatron", "the same with gradients in float32", 2, 4, 12},
      {"FSDP2 (Weft)", "all in float32, sharded; bfloat16 views come and go", 4, 4, 8, 2},
  };
}

std::optional<double> state_bytes(const StateRecipe& recipe, CoarseStrategy strategy, double parameters, int ranks) {
  const double share = parameters / ranks;
  switch (strategy) {
    case CoarseStrategy::full_shard:
      return recipe.bytes() * share;
    case CoarseStrategy::zero2:
      // Views stay whole for the step; the parameters behind them stay sharded.
      if (recipe.views > 0) return recipe.views * parameters + recipe.bytes() * share;
      return recipe.parameters * parameters + (recipe.gradients + recipe.optimizer) * share;
    case CoarseStrategy::zero1:
      if (recipe.views > 0) return std::nullopt;  // FSDP2 has none
      return (recipe.parameters + recipe.gradients) * parameters + recipe.optimizer * share;
    case CoarseStrategy::replicated:
      return recipe.bytes() * parameters;
  }
  return std::nullopt;
}

CoarseActivations coarse_activations(const CoarseModel& m) {
  const double width = m.sequence * m.batch * m.hidden;  // elements of a layer's input
  CoarseActivations bytes;
  bytes.all = 34.0 * width * m.layers;
  bytes.unfused = bytes.all + 5.0 * m.heads * m.sequence * m.sequence * m.batch * m.layers;
  bytes.inputs = 2.0 * width * m.layers;
  bytes.inputs_and_live = bytes.inputs + 34.0 * width;
  bytes.logits = (2.0 + 4.0) * m.sequence * m.batch * m.vocabulary;
  return bytes;
}

double budget_bytes(const CoarseBudget& budget, const CoarseDegrees& degrees, bool sharded) {
  constexpr double unit_tokens = 4096, overhead = 1.5e9;
  const double state = (budget.parameters + budget.optimizer) / (sharded ? degrees.data : 1.0);
  return state + budget.batch * (budget.sequence / unit_tokens) * budget.unit / degrees.tensor + overhead;
}

double degree_bytes(double parameters, double bytes_per_parameter, const CoarseDegrees& degrees) {
  constexpr double split = 0.65;  // of the parameters
  const double share = split / degrees.tensor + (1.0 - split);
  return parameters * bytes_per_parameter * share / (degrees.pipeline * degrees.data);
}

CoarseBudget budget_of(double parameters, const CoarseModel& model) {
  CoarseModel one = model;
  one.sequence = 4096;
  one.batch = 1;
  return {2.0 * parameters, 8.0 * parameters, coarse_activations(one).all, model.batch, model.sequence};
}

double left_out_gradients(double parameters, const CoarseDegrees& degrees, bool sharded) {
  return 2.0 * parameters / (sharded ? degrees.data : 1.0);
}

PeakElements peak_elements(double parameters, int ranks, double layer) {
  const double share = parameters / ranks;
  return {share + layer, share + layer * (ranks - 1) / ranks, share + 2.0 * layer};
}

CoarsePlan coarse_plan(const CoarseRequest& request, const Card& card) {
  const double whole = request.parameters * request.bytes_per_parameter;
  const double rest = request.activations + request.buffers;
  CoarsePlan plan;
  plan.state = whole / request.ranks;
  plan.sum = plan.state + rest;
  plan.fit = plan.sum <= card.nominal   ? CoarseFit::fits
             : plan.sum <= card.counted ? CoarseFit::only_as_counted
                                        : CoarseFit::exceeds;
  plan.state_exceeds = plan.state > card.counted;
  plan.state_and_buffers_exceed = plan.state + request.buffers > card.counted;
  plan.ranks.any = ranks_for(whole, card.nominal - rest);
  plan.ranks.any_as_counted = ranks_for(whole, card.counted - rest);
  plan.ranks.with_headroom = ranks_for(whole, 0.9 * card.nominal - rest);
  if (plan.ranks.any) {
    plan.ranks.eights = (*plan.ranks.any + 7) / 8 * 8;
    plan.ranks.bytes_at_eights = whole / *plan.ranks.eights + rest;
  }
  return plan;
}

}  // namespace weft
