#include "tools/walk/walk_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/plan/unit_policy.h"

namespace weft {
namespace {

// Float32 everywhere, so that a unit's gather and reduction have equal bytes.
constexpr const char* toy_text = R"([run]
name = "toy"
[model]
layers = "{layers}"
vocab_size = 256
hidden_size = {hidden}
intermediate_size = {intermediate}
num_attention_heads = {heads}
num_key_value_heads = {heads}
head_dim = 8
qk_norm = false
{moe}[parallelism]
data_shard = {ranks}
[training]
sequence_length = 8
global_batch_size = {batch}
microbatch_size = 1
[data]
train = ["nothing is read"]
)";

constexpr const char* toy_moe = R"([model.moe]
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = {intermediate}
)";

void require_range(const char* option, int value, int least, int most) {
  if (value >= least && value <= most) return;
  fail_request("weft walk: error: {} takes {} to {}, not {}", option, least, most, value);
}

// Overrides for the strategy and its open keys. Families with [shard] sections of their own get the same values, as if
// the configuration had been written for this strategy.
Overrides shard_overrides(const Config& config, const std::string& strategy, const std::string& residency) {
  Overrides overrides;
  const auto add = [&](const std::string& section) {
    overrides.push_back(fmt::format("--{}.strategy={}", section, strategy));
    overrides.push_back(fmt::format("--{}.residency={}", section, residency));
    overrides.push_back(fmt::format("--{}.reduction=auto", section));
    overrides.push_back(fmt::format("--{}.accumulation=auto", section));
  };
  add("shard");
  for (const auto& [family, policy] : config.shard_by_family) {
    const ShardPolicy& base = config.shard;
    const bool same = policy.strategy == base.strategy && policy.residency == base.residency &&
                      policy.residency_by_stage == base.residency_by_stage && policy.reduction == base.reduction &&
                      policy.accumulation == base.accumulation;
    if (!same) add(fmt::format("shard.{}", name_of(family)));
  }
  return overrides;
}

WalkStrategy hybrid(const Config& config) {
  const Degrees& degrees = config.parallelism;
  if (degrees.data_shard % 2 != 0) {
    fail_request("weft walk: error: hybrid halves the {} ranks of parallelism.data_shard: there must be an even number",
                 degrees.data_shard);
  }
  WalkStrategy strategy{"hybrid", shard_overrides(config, "full_shard", "stage")};
  strategy.overrides.push_back(fmt::format("--parallelism.data_replicate={}", 2 * degrees.data_replicate));
  strategy.overrides.push_back(fmt::format("--parallelism.data_shard={}", degrees.data_shard / 2));
  return strategy;
}

WalkStrategy island(const Config& config, const std::string& ranks_text) {
  const std::int64_t group = shard_ranks(config.parallelism, Family::dense);
  int ranks = 0;
  if (ranks_text.empty()) {
    for (int divisor = 2; divisor < group && ranks == 0; ++divisor) {
      if (group % divisor == 0) ranks = divisor;
    }
    if (ranks == 0) {
      fail_request("weft walk: error: no island: {} ranks shard a unit, which have no divisor between 1 and all",
                   group);
    }
  } else {
    ranks = parsed_number<int>(ranks_text).value_or(0);
    if (ranks < 2 || ranks >= group || group % ranks != 0) {
      fail_request(
          "weft walk: error: --strategy \"island {}\": an island has a divisor of the {} ranks that shard a unit, "
          "neither 1 nor all",
          ranks_text, group);
    }
  }
  return {fmt::format("island {}", ranks), shard_overrides(config, "full_shard", fmt::format("{}", ranks))};
}

}  // namespace

std::string toy_config(const WalkToy& toy) {
  require_range("--ranks", toy.ranks, 1, 64);
  require_range("--blocks", toy.blocks, 1, 64);
  require_range("--microbatches", toy.microbatches, 1, 64);
  require_range("--hidden", toy.hidden, 8, 8192);
  if (toy.hidden % 8 != 0) {
    fail_request("weft walk: error: --hidden takes a multiple of 8, the width of a head, not {}", toy.hidden);
  }
  std::string layers;
  for (int block = 0; block < toy.blocks; ++block) layers += toy.moe && block % 2 == 1 ? " e" : " d";
  using fmt::arg;
  const std::string moe = toy.moe ? fmt::format(toy_moe, arg("intermediate", toy.hidden)) : "";
  return fmt::format(toy_text, arg("layers", layers.substr(1)), arg("hidden", toy.hidden),
                     arg("intermediate", 3 * toy.hidden), arg("heads", toy.hidden / 8), arg("moe", moe),
                     arg("ranks", toy.ranks), arg("batch", toy.ranks * toy.microbatches));
}

std::vector<std::string> all_walk_strategies() {
  return {"full_shard", "shard_grad_op", "optimizer", "no_shard", "hybrid", "island"};
}

WalkStrategy walk_strategy(const std::string& name, const Config& config) {
  if (name == "full_shard" || name == "shard_grad_op" || name == "optimizer" || name == "no_shard") {
    return {name, shard_overrides(config, name, "stage")};
  }
  if (name == "hybrid") return hybrid(config);
  if (name == "island") return island(config, "");
  if (name.starts_with("island ")) return island(config, name.substr(std::string_view("island ").size()));
  fail_request("weft walk: error: --strategy takes {}, \"island N\" and all, not {}",
               fmt::join(all_walk_strategies(), ", "), name);
}

}  // namespace weft
