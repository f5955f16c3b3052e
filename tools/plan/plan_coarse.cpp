#include "tools/plan/plan_reports.h"

#include <fmt/format.h>

#include <utility>

#include "tools/report/report_parts.h"

namespace weft {
namespace {

std::string both(double bytes) {
  return fmt::format("{:8.2f} GB = {:8.2f} GiB", bytes / 1e9, bytes / 0x1p30);
}
std::string gb(double bytes) {
  return fmt::format("{:.1f}", bytes / 1e9);
}
std::string billions(double count) {
  return fmt::format("{:.3f}e9", count / 1e9);
}

std::string verdict_text(const CoarsePlan& plan, const Card& card) {
  const std::string cards =
      fmt::format("{:.0f} GB, which drivers count as {:.1f} GB", card.nominal / 1e9, card.counted / 1e9);
  constexpr std::string_view texts[] = {"fits {}", "tight: fits only if the card's {} are all there",
                                        "does not fit {}"};  // by CoarseFit
  std::string text =
      fmt::format("verdict      {}\n", fmt::format(fmt::runtime(texts[static_cast<std::size_t>(plan.fit)]), cards));
  if (plan.state_exceeds) {
    text += fmt::format(
        "             state alone ({:.1f} GB = {:.1f} GiB) exceeds the card; batch size and accumulation cannot help\n",
        plan.state / 1e9, plan.state / 0x1p30);
  } else if (plan.state_and_buffers_exceed) {
    text += "             state and buffers alone exceed the card; batch size and accumulation cannot help\n";
  }
  const CoarseRanks& ranks = plan.ranks;
  if (!ranks.any) return text + "ranks        no number of GPUs: activations and buffers exceed the card\n";
  text += fmt::format("ranks        {} GPUs or more ({} if a card is {:.1f} GB)", *ranks.any,
                      ranks.any_as_counted.value_or(*ranks.any), card.counted / 1e9);
  text += fmt::format("; as a multiple of 8: {}, with {} GB each", *ranks.eights, gb(*ranks.bytes_at_eights));
  text += ranks.with_headroom ? fmt::format("; with 10 % headroom: {}\n", *ranks.with_headroom)
                              : "; with 10 % headroom: none\n";
  return text;
}

BenchTable recipe_table(const CoarseRequest& request) {
  BenchTable table{{"recipe", "bytes"}};
  for (const CoarseStrategy strategy : all_values<CoarseStrategy>) table.header.emplace_back(name_of(strategy));
  for (const StateRecipe& recipe : state_recipes()) {
    auto& row = table.add(fmt::format("{}: {}", recipe.name, recipe.what), decimals(recipe.bytes(), 0));
    for (const CoarseStrategy strategy : all_values<CoarseStrategy>) {
      const auto bytes = state_bytes(recipe, strategy, request.parameters, request.ranks);
      row.push_back(bytes ? gb(*bytes) : "-");
    }
  }
  return table;
}

std::string model_text(const CoarseModel& model) {
  const CoarseActivations bytes = coarse_activations(model);
  std::string text = fmt::format("activations of {:g} layers of {:.0f}, {:.0f} x {:.0f} tokens, whole on a GPU\n",
                                 model.layers, model.hidden, model.batch, model.sequence);
  text += fmt::format("  34 s b h a layer          {}\n", both(bytes.all));
  text += fmt::format("  with unfused attention    {}\n", both(bytes.unfused));
  text += fmt::format("  inputs of layers alone    {}\n", both(bytes.inputs));
  text += fmt::format("  and one layer recomputed  {}\n", both(bytes.inputs_and_live));
  text += fmt::format("  logits, 16 bit + float32  {}\n", both(bytes.logits));
  return text;
}

// Bytes a parameter of the second sum: parameters and optimizer state.
constexpr double degree_recipe = 2.0 + 10.0;

std::string samples_text(const CoarseRequest& request) {
  const CoarseDegrees& degrees = request.degrees;
  const CoarseBudget budget = budget_of(request.parameters, *request.model);
  std::string text = fmt::format("sums of other trainers' samples, as they are: pp {:.0f} x dp {:.0f} x tp {:.0f}\n",
                                 degrees.pipeline, degrees.data, degrees.tensor);
  for (const bool sharded : {true, false}) {
    text += fmt::format("  four terms, {:<15}{}; no gradients, which take {} GB more\n",
                        sharded ? "sharded" : "not sharded", both(budget_bytes(budget, degrees, sharded)),
                        gb(left_out_gradients(request.parameters, degrees, sharded)));
  }
  text += fmt::format("  2 + 10 bytes by degrees   {}; no gradients, no activations, no full units in use\n",
                      both(degree_bytes(request.parameters, degree_recipe, degrees)));
  return text;
}

std::string peak_text(const CoarseRequest& request) {
  const PeakElements peak = peak_elements(request.parameters, request.ranks, *request.layer_parameters);
  return fmt::format(
      "parameters at the peak of a rank, with layers of {}: {} ({} where a rank's own share is not copied), {} with "
      "one gathered ahead\n",
      billions(*request.layer_parameters), billions(peak.one_layer), billions(peak.in_place),
      billions(peak.prefetched));
}

}  // namespace

std::string plan_coarse_text(const CoarseRequest& request, const Card& card) {
  const CoarsePlan plan = coarse_plan(request, card);
  std::string text = fmt::format("{} parameters on {} GPUs ({}), {:g} bytes of state a parameter, all sharded\n",
                                 billions(request.parameters), request.ranks, card.name, request.bytes_per_parameter);
  text += fmt::format("state        {}\n", both(plan.state));
  text += fmt::format("activations  {}\n", both(request.activations));
  text += fmt::format("buffers      {}\n", both(request.buffers));
  text += fmt::format("sum          {}\n", both(plan.sum));
  text += verdict_text(plan, card);
  text += fmt::format("\nstate of a GPU by recipe and what is sharded over {}, GB\n{}", request.ranks,
                      aligned_text(recipe_table(request)));
  if (request.layer_parameters) text += "\n" + peak_text(request);
  if (request.model) text += "\n" + model_text(*request.model) + "\n" + samples_text(request);
  return marked(text, "coarse", "  ");
}

std::string plan_coarse_json(const CoarseRequest& request, const Card& card) {
  const CoarsePlan plan = coarse_plan(request, card);
  constexpr std::string_view fits[] = {"fits", "only_as_counted", "exceeds"};
  const auto recipe_json = [&](const StateRecipe& recipe) {
    Json row = {{"recipe", recipe.name}, {"bytes_per_parameter", recipe.bytes()}};
    for (const CoarseStrategy strategy : all_values<CoarseStrategy>) {
      row[std::string(name_of(strategy))] = or_null(state_bytes(recipe, strategy, request.parameters, request.ranks));
    }
    return row;
  };
  Json json = {{"formula", "coarse"},
               {"hardware", card.name},
               {"card_bytes_nominal", card.nominal},
               {"card_bytes_counted", card.counted},
               {"parameters", request.parameters},
               {"ranks", request.ranks},
               {"bytes_per_parameter", request.bytes_per_parameter},
               {"state_bytes", plan.state},
               {"activation_bytes", request.activations},
               {"buffer_bytes", request.buffers},
               {"sum_bytes", plan.sum},
               {"verdict", fits[static_cast<std::size_t>(plan.fit)]},
               {"state_alone_exceeds", plan.state_exceeds},
               {"smallest_ranks", or_null(plan.ranks.any)},
               {"smallest_ranks_as_counted", or_null(plan.ranks.any_as_counted)},
               {"smallest_ranks_of_eights", or_null(plan.ranks.eights)},
               {"smallest_ranks_with_headroom", or_null(plan.ranks.with_headroom)},
               {"recipes", json_list(state_recipes(), recipe_json)}};
  if (request.layer_parameters) {
    const PeakElements peak = peak_elements(request.parameters, request.ranks, *request.layer_parameters);
    json["peak_elements"] = {
        {"one_layer", peak.one_layer}, {"in_place", peak.in_place}, {"prefetched", peak.prefetched}};
  }
  if (request.model) {
    const CoarseActivations bytes = coarse_activations(*request.model);
    json["activations"] = {{"all", bytes.all},
                           {"unfused", bytes.unfused},
                           {"inputs", bytes.inputs},
                           {"inputs_and_live", bytes.inputs_and_live},
                           {"logits", bytes.logits}};
    const CoarseBudget budget = budget_of(request.parameters, *request.model);
    const CoarseDegrees& degrees = request.degrees;
    json["samples"] = {{"four_terms_sharded", budget_bytes(budget, degrees, true)},
                       {"four_terms", budget_bytes(budget, degrees, false)},
                       {"left_out_gradients_sharded", left_out_gradients(request.parameters, degrees, true)},
                       {"left_out_gradients", left_out_gradients(request.parameters, degrees, false)},
                       {"by_degrees", degree_bytes(request.parameters, degree_recipe, degrees)}};
  }
  return json.dump() + "\n";
}

}  // namespace weft
