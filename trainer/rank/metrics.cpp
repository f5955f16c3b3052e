#include "trainer/rank/metrics.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

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

nlohmann::ordered_json spike_json(const Spike& spike) {
  nlohmann::ordered_json json = {{"what", spike.what}, {"value", spike.value}, {"limit", spike.limit}};
  if (spike.mean) json["mean"] = *spike.mean;
  return json;
}

}  // namespace

MoeMetrics expert_balance(int block, std::span<const std::int64_t> tokens, int ranks) {
  const auto sum_of = [](std::span<const std::int64_t> counts) {
    return static_cast<double>(std::reduce(counts.begin(), counts.end()));
  };
  const double all = std::max(sum_of(tokens), 1.0), experts = static_cast<double>(tokens.size());
  MoeMetrics balance{.block = block, .unused = std::ranges::count(tokens, 0)};
  for (std::size_t e = 0; e < tokens.size() && balance.unused_experts.size() < most_named_experts; ++e) {
    if (tokens[e] == 0) balance.unused_experts.push_back(static_cast<std::int64_t>(e));
  }
  const std::size_t of_rank = tokens.size() / static_cast<std::size_t>(ranks);
  if (ranks > 1) balance.idlest_place = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const double load = sum_of(tokens.subspan(static_cast<std::size_t>(rank) * of_rank, of_rank)) * ranks / all;
    balance.busiest_rank = std::max(balance.busiest_rank, load);
    if (load >= balance.idlest_rank) continue;
    balance.idlest_rank = load;
    balance.idlest_place = rank;
  }
  balance.max_over_mean = static_cast<double>(std::ranges::max(tokens)) / (all / experts);
  if (tokens.size() < 2) return balance;
  double nats = 0.0;
  for (const std::int64_t count : tokens) {
    const double share = static_cast<double>(count) / all;
    if (count > 0) nats -= share * std::log(share);
  }
  balance.entropy = nats / std::log(experts);
  return balance;
}

std::optional<StepMetrics> ReportedSteps::add(const StepMetrics& step) {
  StepMetrics reported = step;
  reported.steps += waiting_.steps;
  reported.tokens += waiting_.tokens;
  reported.seconds += waiting_.seconds;
  reported.data_seconds += waiting_.data_seconds;
  reported.model_flops += waiting_.model_flops;
  const bool stands_out = step.validation || step.spike || step.warning || step.skipped;
  const bool first = !std::exchange(begun_, true);
  const bool waits = !first && !stands_out && step.step % interval_ != 0 && step.step != last_step_;
  waiting_ = waits ? reported : StepMetrics{.steps = 0};
  if (waits) return std::nullopt;
  return reported;
}

std::optional<StepMetrics> ReportedSteps::rest() {
  const StepMetrics last = std::exchange(waiting_, StepMetrics{.steps = 0});
  return last.steps > 0 ? std::optional(last) : std::nullopt;
}

void RunTotals::add(const StepMetrics& step) {
  tokens += step.tokens;
  seconds += step.seconds;
  ++steps;
  if (step.has_no_target()) {
    ++without_target;
    return;
  }
  if (steps == without_target + 1) first_loss = step.loss;
  last_loss = step.loss;
}

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.gradient_norm},
                                 {"lr", rates_json(metrics.learning_rates)},
                                 {"tokens", metrics.tokens},
                                 {"seconds", metrics.seconds},
                                 {"data_seconds", metrics.data_seconds},
                                 {"tokens_per_second", metrics.tokens_per_second()},
                                 {"tflops", metrics.tflops()}};
  if (const auto mfu = metrics.mfu()) line["mfu"] = *mfu;
  if (!metrics.prediction_losses.empty()) line["mtp_losses"] = metrics.prediction_losses;
  line["peak_bytes"] = metrics.peak_bytes;
  if (metrics.targets != metrics.tokens) line["targets"] = metrics.targets;
  if (metrics.forced_balance) line["forced_balance"] = true;
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  if (metrics.loss_scale || metrics.skipped) line["skipped"] = metrics.skipped;
  if (const auto& spike = metrics.spike) {
    line["spike"] = spike_json(*spike);
    line["spike"]["action"] = name_of(spike->action);
  }
  if (metrics.warning) line["warning"] = spike_json(*metrics.warning);
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
                             {"entropy", moe.entropy},
                             {"unused", moe.unused},
                             {"busiest_rank", moe.busiest_rank},
                             {"idlest_rank", moe.idlest_rank},
                             {"dropped", moe.dropped}});
      if (!moe.unused_experts.empty()) line["moe"].back()["unused_experts"] = moe.unused_experts;
      if (moe.idlest_place) line["moe"].back()["idlest_place"] = *moe.idlest_place;
      if (moe.null_share) line["moe"].back()["null_share"] = *moe.null_share;
      if (moe.bias_norm) line["moe"].back()["bias_norm"] = *moe.bias_norm;
    }
  }
  if (metrics.validation) line["validation"] = as_json(*metrics.validation);
  if (metrics.hashes) line["hashes"] = metrics.hashes->named();
  return line.dump();
}

}  // namespace weft
