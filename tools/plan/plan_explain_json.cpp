
#include "tools/plan/plan_reports.h"
#include "tools/report/report_parts.h"

namespace weft {
namespace {

Json variant_json(const PlannedVariant& variant) {
  Json json = {{"words", variant.words}};
  if (!variant.refused.empty()) {
    json["refused"] = variant.refused;
    return json;
  }
  json["ranks"] = variant.world;
  json["global_batch_size"] = variant.batch;
  json["peak_bytes"] = variant.peak.total();
  json["needed_bytes"] = variant.verdict.needed;
  json["verdict"] = name_of(variant.verdict.fit);
  if (variant.worst_needed) {
    json["worst_needed_bytes"] = *variant.worst_needed;
    json["worst_verdict"] = name_of(variant.verdict.fit_of(*variant.worst_needed));
  }
  json["step_seconds"] = variant.time.seconds;
  return json;
}

Json remedies_json(const std::vector<TriedRemedy>& remedies) {
  Json list = Json::array();
  for (const TriedRemedy& tried : remedies) {
    Json json = {{"remedy", tried.remedy.name}, {"why", tried.remedy.why}, {"cost", tried.remedy.cost}};
    json["changes_arithmetic"] = tried.remedy.kind == RemedyKind::arithmetic;
    json.update(variant_json(tried.variant));
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

std::string plan_explain_json(const Explanation& explanation, const Hardware& hardware) {
  const RunPlan& plan = explanation.plan;
  Json json = {{"hardware", hardware.name},
               {"world", plan.world},
               {"verdict", name_of(plan.verdict.fit)},
               {"worst_verdict", name_of(plan.worst_fit())},
               {"verdict_text", plan.verdict.text()},
               {"needed_bytes", plan.verdict.needed},
               {"memory_bytes", plan.verdict.memory},
               {"step_seconds", plan.time.seconds}};
  json["limits"] = Json::array();
  for (const Limit& limit : explanation.limits) {
    Json entry = {{"key", limit.what}, {"fits", limit.fits}, {"fits_bytes", limit.fits_bytes}};
    if (limit.batch) entry["global_batch_size"] = *limit.batch;
    if (limit.exceeds) {
      entry["exceeds"] = *limit.exceeds;
      entry["exceeds_bytes"] = limit.exceeds_bytes;
    }
    json["limits"].push_back(std::move(entry));
  }
  json["remedies"] = remedies_json(explanation.remedies);
  json["cannot_help"] = remedies_json(explanation.cannot);
  json["refused"] = remedies_json(explanation.refused);
  if (plan.worst_fit() == Fit::fits || plan.verdict.fit == Fit::unknown) return json.dump() + "\n";
  json["remedies_routing"] = explanation.routing == Routing::worst ? "worst" : "even";

  const ActivationFacts& facts = explanation.activations;
  json["cause"] = name_of(explanation.cause);
  json["cause_bytes"] = explanation.cause_bytes;
  json["state_bytes"] = explanation.state_bytes;
  json["state_alone_exceeds"] = explanation.state_exceeds;
  json["activations"] = {{"sequence_parallel", facts.sequence_parallel},
                         {"unfused_scores_bytes_of_a_block", facts.scores},
                         {"float32_logits_bytes_at_a_time", facts.logits},
                         {"float32_logits_bytes_whole", facts.all_logits},
                         {"logits_gradient_bytes", facts.dlogits},
                         {"bytes_of_a_token_and_block", facts.block_token},
                         {"textbook_bytes_of_a_token_and_block", facts.textbook_token}};
  const auto name = [](const TriedRemedy* tried) { return tried ? Json(tried->remedy.name) : Json(); };
  json["first_that_fits"] = name(explanation.first_that_fits());
  json["fastest_that_fits"] = name(explanation.fastest_that_fits());
  if (explanation.combination) {
    json["combination"] = variant_json(*explanation.combination);
    for (const Remedy& remedy : explanation.combined) json["combination"]["remedies"].push_back(remedy.name);
  }
  if (explanation.more_sharding) json["more_sharding"] = variant_json(*explanation.more_sharding);
  if (explanation.minimum_world) json["fewest_ranks"] = variant_json(explanation.minimum_world->variant);
  return json.dump() + "\n";
}

}  // namespace weft
