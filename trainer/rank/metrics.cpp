#include "trainer/rank/metrics.h"

#include <nlohmann/json.hpp>

namespace weft {

namespace {

nlohmann::ordered_json rates_json(std::span<const GroupRate> rates) {
  if (rates.size() == 1) return rates.front().rate;
  nlohmann::ordered_json json;
  for (const GroupRate& rate : rates) {
    for (const UpdateGroup group : rate.groups) json[std::string(name_of(group))] = rate.rate;
  }
  return json;
}

nlohmann::ordered_json as_json(const HeldOutLoss& held_out) {
  nlohmann::ordered_json json = {{"loss", held_out.loss}, {"perplexity", held_out.perplexity()}};
  if (held_out.bytes > 0) json["bits_per_byte"] = held_out.bits_per_byte();
  json["tokens"] = held_out.tokens;
  json["seconds"] = held_out.seconds;
  return json;
}

}  // namespace

void RunTotals::add(const StepMetrics& step) {
  if (steps++ == 0) first_loss = step.loss;
  last_loss = step.loss;
  tokens += step.tokens;
  seconds += step.seconds;
}

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.gradient_norm},
                                 {"lr", rates_json(metrics.learning_rates)},
                                 {"tokens", metrics.tokens},
                                 {"seconds", metrics.seconds},
                                 {"tokens_per_second", metrics.tokens_per_second()},
                                 {"peak_bytes", metrics.peak_bytes}};
  if (metrics.targets != metrics.tokens) line["targets"] = metrics.targets;
  if (metrics.loss_scale) {
    line["loss_scale"] = *metrics.loss_scale;
    line["skipped"] = metrics.skipped;
  }
  for (const Bucket bucket : all_values<Bucket>) line["memory"][std::string(name_of(bucket))] = metrics.memory[bucket];
  line["communication"] = nlohmann::ordered_json::object();
  for (const auto& [key, count] : metrics.communication) {
    line["communication"][key.group][std::string(name_of(key.op))] = {{"count", count.count}, {"bytes", count.bytes}};
  }
  line["system_allocations"] = metrics.system_allocations;
  if (!metrics.moe.empty()) {
    for (const MoeMetrics& moe : metrics.moe) {
      line["moe"].push_back({{"block", moe.block},
                             {"auxiliary_loss", moe.auxiliary_loss},
                             {"z_loss", moe.z_loss},
                             {"max_over_mean", moe.max_over_mean},
                             {"dropped", 0}});
    }
  }
  if (metrics.validation) line["validation"] = as_json(*metrics.validation);
  return line.dump();
}

}  // namespace weft
