#include "tools/plan/plan_reports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "parallel/runtime/outside_text.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"

namespace weft {
namespace {

constexpr std::size_t shown_of_cause = 5;

// In the unit of the verdict.
std::string bytes_text(const Explanation& explanation, std::int64_t bytes) {
  return explanation.judged.verdict.unit().text(bytes);
}
// Decimal too, because cards are sold in GB and counted in GiB.
std::string both(const Explanation& explanation, std::int64_t bytes) {
  const ByteUnit unit = explanation.judged.verdict.unit();
  return fmt::format("{} {} = {}", unit.decimal_number(bytes, 2), unit.decimal_name(), bytes_text(explanation, bytes));
}

// The bucket that grew most, if the total need grew.
std::string growth_text(const Explanation& explanation, const PlannedVariant& variant) {
  if (variant.verdict.needed <= explanation.judged.verdict.needed) return {};
  const BucketBytes& before = explanation.judged.peak;
  Bucket most = Bucket::workspace;
  std::int64_t growth = 0;
  for (const Bucket bucket : all_values<Bucket>) {
    if (variant.peak[bucket] - before[bucket] <= growth) continue;
    growth = variant.peak[bucket] - before[bucket];
    most = bucket;
  }
  return fmt::format("; more than before: {} take {} more", name_of(most), bytes_text(explanation, growth));
}

std::string needs_text(const Explanation& explanation, const PlannedVariant& variant) {
  if (!variant.refused.empty()) return fmt::format("refused: {}", variant.refused);
  const double change = 100.0 * (variant.time.seconds / explanation.plan.time.seconds - 1.0);
  std::string text = fmt::format("needs {}{}", bytes_text(explanation, variant.verdict.needed),
                                 explanation.routing == Routing::worst ? " with worst routing" : "");
  if (variant.verdict.host_needed > 0) {
    text += fmt::format(" and {} of the host", bytes_text(explanation, variant.verdict.host_needed));
  }
  text += fmt::format(", {}; ", words_of(variant.verdict.fit));
  // Steps of different batches cannot be compared.
  if (variant.world != explanation.plan.world) {
    text += fmt::format("on {} ranks in place of {}", variant.world, explanation.plan.world);
  } else {
    text += std::abs(change) < 0.05 ? "step as long as before" : fmt::format("step {:+.1f} %", change);
  }
  if (variant.worst_needed) {
    text += fmt::format("; with worst routing up to {}, {}", bytes_text(explanation, *variant.worst_needed),
                        words_of(variant.verdict.fit_of(*variant.worst_needed)));
  }
  return text + growth_text(explanation, variant);
}

std::string arithmetic_text(const Remedy& remedy) {
  return remedy.kind == RemedyKind::arithmetic ? " (changes the arithmetic)" : "";
}

std::string remedy_text(const Explanation& explanation, std::size_t number, const TriedRemedy& tried) {
  std::string text = fmt::format("  {}. {}{}: {}\n", number, tried.remedy.name, arithmetic_text(tried.remedy),
                                 needs_text(explanation, tried.variant));
  text += fmt::format("     {}; costs: {}\n     {}\n", tried.remedy.why, tried.remedy.cost,
                      shell_text(tried.variant.words));
  return text;
}

const char* routing_name(Routing routing) {
  return routing == Routing::worst ? "worst" : "even";
}

std::string limits_text(const Explanation& explanation) {
  const RunPlan& plan = explanation.plan;
  std::string text =
      fmt::format("nothing has to be changed{}; the largest sizes that fit{}, by doubling:\n",
                  plan.worst_fit() == Fit::fits ? "" : " while tokens are routed evenly",
                  plan.worst_bytes() ? fmt::format(" with {} routing", routing_name(plan.judging())) : "");
  for (const Limit& limit : explanation.limits) {
    const std::string batch = limit.batch ? fmt::format(" (training.global_batch_size {})", *limit.batch) : "";
    text +=
        fmt::format("  {} {}{} fits with {}", limit.what, limit.fits, batch, bytes_text(explanation, limit.fits_bytes));
    if (limit.exceeds) {
      text += fmt::format(", {} does not: {}\n", *limit.exceeds, bytes_text(explanation, limit.exceeds_bytes));
    } else if (limit.refused) {
      text += fmt::format(", {} is refused: {}\n", *limit.refused, limit.reason);
    } else {
      text += fmt::format("; none of the sizes tried (up to {}) reaches the limit\n", limit.fits);
    }
  }
  return text;
}

bool is_of_host(const Explanation& explanation) {
  return explanation.routing != Routing::worst && explanation.judged.verdict.exceeds_host();
}
std::string_view cause_name(const Explanation& explanation) {
  return is_of_host(explanation) ? "host memory" : name_of(explanation.cause);
}

std::string cause_text(const Explanation& explanation) {
  const Verdict& verdict = explanation.judged.verdict;
  if (explanation.routing == Routing::worst) {
    return fmt::format("cause     {}: {} of {} on the fullest rank with worst routing\n", name_of(explanation.cause),
                       both(explanation, explanation.cause_bytes),
                       bytes_text(explanation, explanation.judged.peak.total()));
  }
  if (is_of_host(explanation)) {
    return fmt::format("cause     host memory: a rank keeps {} of a card's {}\n",
                       bytes_text(explanation, verdict.host_needed), bytes_text(explanation, verdict.host_memory));
  }
  const RankPlan& rank = explanation.plan.ranks[explanation.plan.fullest];
  std::string text = fmt::format("cause     {}: {} of {} at {} on rank {}\n", name_of(explanation.cause),
                                 both(explanation, explanation.cause_bytes), bytes_text(explanation, rank.peak.total()),
                                 rank.peak_action, rank.ranks.first);
  std::vector<std::string> largest;
  for (const LiveItem& item : rank.live) {
    if (cause_of(item.bucket) != explanation.cause || largest.size() == shown_of_cause) continue;
    const std::string of = item.microbatch ? fmt::format(" of microbatch {}", *item.microbatch) : std::string();
    largest.push_back(fmt::format("{} {}{} {}", name_of(item.bucket), item.what.empty() ? "kept by the run" : item.what,
                                  of, bytes_text(explanation, item.bytes)));
  }
  text += fmt::format("largest   {}\n", fmt::join(largest, "; "));
  if (explanation.state_exceeds) {
    text += fmt::format(
        "state     state alone ({}) with {} reserved exceeds the card's {}; batch size and accumulation cannot help\n",
        both(explanation, explanation.state_bytes), bytes_text(explanation, verdict.reserved),
        both(explanation, verdict.memory));
  } else {
    text += fmt::format("state     {} of parameters, gradients and optimizer state at rest\n",
                        both(explanation, explanation.state_bytes));
  }
  return text;
}

std::string before_remedies(const Explanation& explanation) {
  if (explanation.cause == Cause::routing && explanation.capacity_factor > 0.0) {
    return fmt::format(
        "  -. expert capacity: experts have room for it; model.moe.capacity_factor is {}, and a lower one "
        "drops more choices\n",
        explanation.capacity_factor);
  }
  if (explanation.cause == Cause::routing) {
    return "  -. expert capacity: there is none to lower; every token reaches its experts, and rows are what they "
           "are\n";
  }
  if (explanation.cause != Cause::activations) return {};
  const ActivationFacts& facts = explanation.activations;
  std::string text;
  if (facts.scores > 0) {
    text = fmt::format("  -. fused attention: holds already; scores are never in memory, and would be {} a block\n",
                       both(explanation, facts.scores));
  }
  text += facts.sequence_parallel
              ? "  -. sequence parallelism: on already, with tensor > 1\n"
              : "  -. sequence parallelism: comes with tensor > 1, at no further cost; tensor is 1 here\n";
  return text;
}

// A line between the remedies of recompute and the other remedies.
std::string after_recompute(const Explanation& explanation) {
  if (explanation.cause != Cause::activations) return {};
  const ActivationFacts& facts = explanation.activations;
  return fmt::format(
      "  -. chunked cross-entropy: on already; float32 logits take {} at a time in place of {}, and their gradient "
      "{}\n",
      bytes_text(explanation, facts.logits), bytes_text(explanation, facts.all_logits),
      bytes_text(explanation, facts.dlogits));
}

std::string after_remedies(const Explanation& explanation) {
  if (explanation.cause == Cause::state) return {};
  std::string text = fmt::format("  -. more sharding: last; of {} it takes nothing, and of all state at most {}\n",
                                 name_of(explanation.cause), both(explanation, explanation.state_bytes));
  if (explanation.more_sharding) {
    text += fmt::format("     {}\n", needs_text(explanation, *explanation.more_sharding));
    if (explanation.more_sharding->refused.empty()) {
      text += fmt::format("     {}\n", shell_text(explanation.more_sharding->words));
    }
  }
  return text;
}

bool is_recompute(const TriedRemedy& tried) {
  return tried.remedy.name.starts_with("recompute");
}

std::string remedies_text(const Explanation& explanation) {
  std::string text = fmt::format(
      "\nremedies, in the order to try, each planned by itself (needs: peak and {} reserved). Its words "
      "replace those for the same key\n",
      bytes_text(explanation, explanation.judged.verdict.reserved));
  text += before_remedies(explanation);
  bool between = false;
  for (std::size_t m = 0; m < explanation.remedies.size(); ++m) {
    if (!between && !is_recompute(explanation.remedies[m])) {
      text += after_recompute(explanation);
      between = true;
    }
    text += remedy_text(explanation, m + 1, explanation.remedies[m]);
  }
  if (!between) text += after_recompute(explanation);
  text += after_remedies(explanation);
  if (!explanation.cannot.empty()) {
    text += fmt::format("\nwhat takes too little from {} by itself, at its best\n", cause_name(explanation));
  }
  for (const TriedRemedy& tried : explanation.cannot) {
    text += fmt::format("  {}: {}\n", tried.remedy.name, needs_text(explanation, tried.variant));
  }
  if (!explanation.refused.empty()) text += "\nwhat the configuration does not allow\n";
  for (const TriedRemedy& tried : explanation.refused) {
    text += fmt::format("  {}: {}\n", tried.remedy.name, tried.variant.refused);
  }
  return text;
}

std::string result_text(const Explanation& explanation) {
  std::string text;
  const auto line = [&](std::string_view heading, const TriedRemedy& tried) {
    return fmt::format("{}: {}{}: {}\n  {}\n", heading, tried.remedy.name, arithmetic_text(tried.remedy),
                       needs_text(explanation, tried.variant), shell_text(tried.variant.words));
  };
  if (const TriedRemedy* first = explanation.first_that_fits()) {
    const TriedRemedy* fastest = explanation.fastest_that_fits();
    text += line(fastest == first ? "first that fits, and least slowdown" : "first that fits", *first);
    if (fastest != first) text += line("least slowdown that fits", *fastest);
    const TriedRemedy* always = explanation.first_that_always_fits();
    if (always == nullptr) {
      text += "no single remedy fits with worst routing\n";
    } else if (always != first && always != fastest) {
      text += line("first that fits with worst routing too", *always);
    }
  } else if (explanation.combination) {
    std::vector<std::string> names;
    for (const Remedy& remedy : explanation.combined)
      names.push_back(std::string(remedy.name) + arithmetic_text(remedy));
    text += fmt::format("first combination that fits on {} ranks: {}\n  {}\n  {}\n", explanation.plan.world,
                        fmt::join(names, "; "), needs_text(explanation, *explanation.combination),
                        shell_text(explanation.combination->words));
  } else {
    text += fmt::format("none of these fits on {} ranks, nor all together; weft plan --search looks at other meshes\n",
                        explanation.plan.world);
  }
  if (!explanation.asked_for_ranks) return text;
  if (!explanation.minimum_world) return text + "no number of ranks fits with the same other degrees\n";
  const MinimumWorld& more = *explanation.minimum_world;
  text += fmt::format("fewest ranks with the same other degrees{}: {}, {} sequences a step; needs {}\n  {}\n",
                      more.words.empty() ? std::string() : " and " + shell_text(more.words), more.variant.world,
                      more.variant.batch, bytes_text(explanation, more.variant.verdict.needed),
                      shell_text(more.variant.words));
  return text;
}

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
  return json_list(remedies, [](const TriedRemedy& tried) {
    Json json = {{"remedy", tried.remedy.name}, {"why", tried.remedy.why}, {"cost", tried.remedy.cost}};
    json["changes_arithmetic"] = tried.remedy.kind == RemedyKind::arithmetic;
    json.update(variant_json(tried.variant));
    return json;
  });
}

}  // namespace

std::string plan_remedies_text(const Explanation& explanation) {
  constexpr std::size_t shown = 3;
  std::vector<const TriedRemedy*> remedies;
  for (const TriedRemedy& tried : explanation.remedies) remedies.push_back(&tried);
  std::ranges::stable_partition(remedies, [](const TriedRemedy* tried) { return tried->variant.fits(); });
  remedies.resize(std::min(remedies.size(), shown));
  std::string text;
  for (std::size_t m = 0; m < remedies.size(); ++m) text += remedy_text(explanation, m + 1, *remedies[m]);
  return explanation.first_that_fits() ? text : text + result_text(explanation);
}

std::string plan_explain_text(const Explanation& explanation, const Hardware& hardware) {
  const RunPlan& plan = explanation.plan;
  std::string text =
      fmt::format("verdict   {}\n{}hardware  {}, {} rank{}\n", plan.verdict.text(),
                  plan_routing_text("routing   ", plan), hardware.name, plan.world, plan.world == 1 ? "" : "s");
  if (plan.verdict.fit == Fit::unknown) return text + "nothing to explain: set hardware.memory, or name a card\n";
  if (plan.verdict.fits()) text += limits_text(explanation);
  if (plan.worst_fit() == Fit::fits) return text;
  text += cause_text(explanation);
  if (explanation.cause == Cause::activations && explanation.activations.block_token > 0.0) {
    const ActivationFacts& facts = explanation.activations;
    text += fmt::format("a token   keeps {:.0f} bytes of a block on its rank; the textbook's 34 h are {}\n",
                        facts.block_token, facts.textbook_token);
  }
  return text + remedies_text(explanation) + "\n" + result_text(explanation);
}

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
  json["limits_routing"] = routing_name(plan.judging());
  json["limits"] = json_list(explanation.limits, [](const Limit& limit) {
    Json entry = {{"key", limit.what}, {"fits", limit.fits}, {"fits_bytes", limit.fits_bytes}};
    if (limit.batch) entry["global_batch_size"] = *limit.batch;
    if (limit.exceeds) {
      entry["exceeds"] = *limit.exceeds;
      entry["exceeds_bytes"] = limit.exceeds_bytes;
    }
    if (limit.refused) {
      entry["refused"] = *limit.refused;
      entry["reason"] = limit.reason;
    }
    return entry;
  });
  json["remedies"] = remedies_json(explanation.remedies);
  json["cannot_help"] = remedies_json(explanation.cannot);
  json["refused"] = remedies_json(explanation.refused);
  if (plan.worst_fit() == Fit::fits || plan.verdict.fit == Fit::unknown) return json.dump() + "\n";
  json["remedies_routing"] = routing_name(explanation.routing);

  const ActivationFacts& facts = explanation.activations;
  json["cause"] = cause_name(explanation);
  json["cause_bytes"] = is_of_host(explanation) ? explanation.judged.verdict.host_needed : explanation.cause_bytes;
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
