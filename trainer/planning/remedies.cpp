#include "trainer/planning/remedies.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <utility>

#include "parallel/pipeline/orders/orders.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/update_rules.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

using Strengths = std::vector<RemedyOverrides>;

// Words for a key of [section], and for the same key of each heir, a family or a group, that reads it.
RemedyOverrides with_heirs(const Config& config, std::string_view section, std::string_view key, std::string_view value,
                           const auto& heirs, const auto& conditions_of) {
  RemedyOverrides result{{word(fmt::format("{}.{}", section, key), value)}};
  const auto holds = [&](const KeyCondition& condition) { return condition.holds(config); };
  for (const auto heir : heirs) {
    if (!std::ranges::all_of(conditions_of(heir), holds)) continue;
    result.by_family.push_back(word(fmt::format("{}.{}.{}", section, name_of(heir), key), value));
  }
  return result;
}
RemedyOverrides for_all_families(const Config& config, std::string_view section, std::string_view key,
                                 std::string_view value) {
  const auto conditions_of = [&](Family family) { return config_fields::of_family(family, key); };
  return with_heirs(config, section, key, value, shard_families, conditions_of);
}
RemedyOverrides for_all_groups(const Config& config, std::string_view key, std::string_view value) {
  return with_heirs(config, "optimizer", key, value, update_groups, config_fields::trains_group);
}

// The policy of the family with most parameters.
const ShardPolicy& main_policy(const Config& config) {
  const Family family = config.model.has(BlockKind::moe) ? Family::experts : Family::dense;
  return config.shard_by_family.at(family);
}

// Several ranks with a GPU each are processes.
void add_launch(const Config& config, const Degrees& degrees, Overrides& words) {
  const bool threads = config.run.device == DeviceKind::cuda && config.run.launch == LaunchKind::threads;
  if (threads && degrees.world() > config.run.ranks_per_device) words.push_back(word("run.launch", "\"processes\""));
}

// Words for the degrees that differ from the configuration's.
Overrides degree_words(const Config& config, const Degrees& degrees) {
  Config changed = config;
  changed.parallelism = degrees;
  Overrides words = changed_words(config, changed,
                                  {"parallelism.pipeline", "parallelism.tensor", "parallelism.context",
                                   "parallelism.data_shard", "parallelism.data_replicate"});
  add_launch(config, degrees, words);
  return words;
}

// Degrees with one of them multiplied by 2, 4, ... up to `most`. The data ranks are divided by the same factor, so that
// the world stays the same. Without data ranks to divide: only multiplied by 2, on twice the ranks.
Strengths doubled(const Config& config, int Degrees::*degree, std::int64_t most) {
  constexpr int most_strengths = 4;
  Strengths strengths;
  Degrees degrees = config.parallelism;
  for (int i = 0; i < most_strengths && 2 * degrees.*degree <= most; ++i) {
    degrees.*degree *= 2;
    if (degrees.data_shard % 2 == 0) {
      degrees.data_shard /= 2;
    } else if (degrees.data_replicate % 2 == 0) {
      degrees.data_replicate /= 2;
    } else if (i > 0) {
      break;  // more ranks only once, and only if no data ranks can be divided
    }
    strengths.push_back({degree_words(config, degrees)});
  }
  return strengths;
}

// Deals stages anew, because a layout text for another number of stages would be refused.
void deal_anew(const Config& config, Strengths& strengths) {
  if (has_automatic_layout(config)) return;
  for (RemedyOverrides& strength : strengths) strength.words.push_back(word("pipeline.layout", "auto"));
}

// The remedies, each with its strengths.

constexpr Remedy selective{"recompute selective", "norms, rotary embedding and SwiGLU are recomputed instead of kept",
                           "no product more, some memory traffic", [](const Config& config) -> Strengths {
                             if (config.training.recompute != Recompute::none) return {};
                             return {{{word("training.recompute", "selective")}}};
                           }};

constexpr Remedy expert_recompute{
    "recompute inside experts", "experts keep the rows that they got, and of a block perhaps these alone",
    "two thirds of the experts' products once more, or all of a block's except one of theirs",
    [](const Config& config) -> Strengths {
      if (config.training.recompute > Recompute::selective || !config.model.has(BlockKind::moe)) return {};
      return {{{word("training.recompute", "experts")}}, {{word("training.recompute", "keep_dispatch")}}};
    }};

Strengths recomputing_blocks(const Config& config) {
  const TrainingConfig& training = config.training;
  Overrides words;
  if (training.recompute != Recompute::full) words.push_back(word("training.recompute", "full"));
  if (training.recompute_every > 1) words.push_back(word("training.recompute_every", 1));
  if (!training.recompute_last_block) words.push_back(word("training.recompute_last_block", "true"));
  if (words.empty()) return {};
  return {{std::move(words)}};
}
constexpr Remedy full_recompute{"recompute full", "a block keeps its input alone, and one block is whole at a time",
                                "a third more of the products of blocks", recomputing_blocks};

constexpr Remedy microbatch{"microbatch_size down, accumulation up", "fewer sequences are there at a time",
                            "smaller products; gathers as often as there are microbatches", [](const Config& config) {
                              Strengths strengths;
                              const std::int64_t size = config.training.microbatch_size;
                              for (std::int64_t smaller = size - 1; smaller >= 1; --smaller) {
                                if (size % smaller != 0) continue;
                                strengths.push_back({{word("training.microbatch_size", smaller)}});
                              }
                              return strengths;
                            }};

constexpr Remedy tensor{"tensor up", "heads, widths and, as sequence parallelism, the tokens between them are split",
                        "collectives in every block, which want to stay inside a node", [](const Config& config) {
                          const ModelConfig& model = config.model;
                          std::int64_t most = 8;
                          if (model.has(Mixer::attention)) most = std::min(most, model.num_key_value_heads);
                          if (model.has(Mixer::state_space)) most = std::min(most, model.state_space.n_groups);
                          return doubled(config, &Degrees::tensor, most);
                        }};

constexpr Remedy context{"context up", "the positions of each sequence are split",
                         "keys and values of every block travel", [](const Config& config) -> Strengths {
                           if (config.model.has(Mixer::state_space)) return {};
                           return doubled(config, &Degrees::context, config.training.sequence_length / 2);
                         }};

Strengths longer_pipelines(const Config& config) {
  // A weight that two stages have copies of may not share a unit with a whole stage.
  const auto whole_stage = [&](Family family) { return config.shard_by_family.at(family).wrap.kind == WrapKind::root; };
  const bool tied = config.model.tie_word_embeddings;
  if (tied && (whole_stage(Family::embedding) || whole_stage(Family::head))) return {};
  Strengths strengths = doubled(config, &Degrees::pipeline, config.model.layers() / config.pipeline.chunks);
  deal_anew(config, strengths);
  return strengths;
}
constexpr Remedy pipeline{"pipeline up", "a rank holds fewer blocks", "a bubble, and messages between stages",
                          longer_pipelines};

// Stages dealt so that the fullest rank takes little by the estimate of automatic_layout.h, not by equal times.
Strengths dealt_by_memory(const Config& config) {
  if (config.parallelism.pipeline == 1) return {};
  Config least = config;
  least.pipeline.layout = "auto";
  least.pipeline.first_stage_blocks.reset();
  least.pipeline.last_stage_blocks.reset();
  least.memory_budget = 1;  // no layout keeps it, so the one with the least peak is chosen
  const std::vector<StageBlocks> layout = stage_layout(least);
  if (layout == stage_layout(config)) return {};
  least.pipeline.layout = to_string(layout, config.model);
  return {
      {changed_words(config, least, {"pipeline.layout", "pipeline.first_stage_blocks", "pipeline.last_stage_blocks"})}};
}
constexpr Remedy by_memory{"stages dealt by memory", "a rank that keeps many microbatches has fewer blocks",
                           "ranks wait for the one with most blocks", dealt_by_memory};

// The microbatches that the fullest of four ranks keeps for their backward.
double microbatches_kept(const Schedule& schedule, int chunks) {
  int most = 0;
  for (const auto& actions : schedule.order({.ranks = 4, .chunks = chunks, .microbatches = 16})) {
    most = std::max(most, chunks_in_flight(actions));
  }
  return static_cast<double>(most) / chunks;
}

Strengths leaner_schedules(const Config& config) {
  Strengths strengths;
  const auto known = schedules();
  const auto now = std::ranges::find(known, config.pipeline.schedule, &Schedule::name);
  if (config.parallelism.pipeline == 1 || now == known.end()) return strengths;  // no order, or one from a file
  std::vector<std::pair<double, const Schedule*>> choices;
  for (const Schedule& choice : known) choices.emplace_back(microbatches_kept(choice, choice.least_chunks), &choice);
  std::ranges::stable_sort(choices, std::greater(), &std::pair<double, const Schedule*>::first);
  double kept = microbatches_kept(*now, config.pipeline.chunks);
  bool other_stages = false;
  for (const auto& [fewer, choice] : choices) {
    if (fewer >= kept) continue;  // of schedules that keep as many, the first of the table
    kept = fewer;
    RemedyOverrides strength{{word("pipeline.schedule", choice->name)}};
    if (choice->least_chunks != config.pipeline.chunks) {
      strength.words.push_back(word("pipeline.chunks", choice->least_chunks));
      other_stages = true;
    }
    if (config.pipeline.microbatch_group != 0) strength.words.push_back(word("pipeline.microbatch_group", 0));
    strengths.push_back(std::move(strength));
  }
  if (other_stages) deal_anew(config, strengths);
  return strengths;
}
constexpr Remedy schedule{"a schedule with fewer microbatches in flight",
                          "fewer microbatches are kept for their backward", "a bubble of another size",
                          leaner_schedules};

constexpr Remedy expert{"expert up", "a rank holds fewer experts", "tokens travel further", [](const Config& config) {
                          Strengths strengths;
                          if (!config.model.has(BlockKind::moe)) return strengths;
                          const Degrees& d = config.parallelism;
                          for (std::int64_t up = 2 * d.expert; up <= config.model.moe.num_experts; up *= 2) {
                            if (d.stage_ranks() % (up * d.expert_tensor) != 0) break;
                            strengths.push_back({{word("parallelism.expert", up)}});
                          }
                          return strengths;
                        }};

constexpr Remedy replicas{"data_replicate down, data_shard up", "what was replicated is sharded",
                          "gathers over more ranks, which may leave a node", [](const Config& config) {
                            Strengths strengths;
                            Degrees degrees = config.parallelism;
                            while (degrees.data_replicate % 2 == 0) {
                              degrees.data_replicate /= 2;
                              degrees.data_shard *= 2;
                              strengths.push_back({degree_words(config, degrees)});
                            }
                            return strengths;
                          }};

constexpr Remedy strategy{"strategy up", "more of parameters, gradients and optimizer state is sharded",
                          "parameters are gathered more often", [](const Config& config) {
                            Strengths strengths;
                            // The enumeration is ordered from full_shard, which shards most, to no_shard.
                            for (const ShardStrategy up :
                                 {ShardStrategy::optimizer, ShardStrategy::shard_grad_op, ShardStrategy::full_shard}) {
                              if (up >= main_policy(config).strategy) continue;
                              strengths.push_back(for_all_families(config, "shard", "strategy", name_of(up)));
                            }
                            return strengths;
                          }};

// A residency that Weft chooses ("stage") already drops parameters if they would not fit.
constexpr Remedy residency{"residency shorter", "full parameters are dropped sooner",
                           "they are gathered again for the next use", [](const Config& config) -> Strengths {
                             const ShardPolicy& policy = main_policy(config);
                             const ResidencyChoice& now = policy.residency_of(0);
                             if (policy.strategy != ShardStrategy::full_shard) return {};
                             if (!now.kind || *now.kind == Residency::reshard_after_use) return {};
                             return {for_all_families(config, "shard", "residency", "reshard_after_use")};
                           }};

constexpr Remedy lookahead{
    "lookahead down", "fewer units are gathered ahead of their turn", "compute waits for gathers",
    [](const Config& config) {
      Strengths strengths;
      for (int down = std::min(main_policy(config).lookahead - 1, 1); down >= 0; --down) {
        strengths.push_back(for_all_families(config, "shard", "lookahead", fmt::format("{}", down)));
      }
      return strengths;
    }};

constexpr Remedy wrap{"smaller units", "less is whole at a time", "more and smaller collectives",
                      [](const Config& config) {
                        Strengths strengths;
                        const WrapKind now = main_policy(config).wrap.kind;
                        for (const WrapKind smaller : {WrapKind::block, WrapKind::half_block}) {
                          if (now == WrapKind::half_block || now == smaller) continue;
                          strengths.push_back(for_all_families(config, "shard", "wrap", name_of(smaller)));
                        }
                        return strengths;
                      }};

// One of the two ways to hold less of unreduced gradients excludes the other.
Strengths without_whole_gradients(const Config& config, std::string_view key, std::string_view value) {
  const ShardPolicy& policy = main_policy(config);
  const bool sharded = policy.strategy == ShardStrategy::full_shard || policy.strategy == ShardStrategy::shard_grad_op;
  if (!sharded || policy.reduction.kind == ReductionKind::each_microbatch ||
      policy.accumulation == Accumulation::sharded)
    return {};
  if (key == "accumulation" && policy.reduce_every() != 0) return {};  // shards add up until the last microbatch
  return {for_all_families(config, "shard", key, value)};
}
constexpr Remedy each_microbatch{"reduction each_microbatch", "gradients are whole only while their unit is at work",
                                 "a reduction of everything for every microbatch", [](const Config& config) {
                                   return without_whole_gradients(config, "reduction", "each_microbatch");
                                 }};
constexpr Remedy accumulation{
    "accumulation sharded", "gradients add up in shards", "a reduce-scatter of everything for every microbatch",
    [](const Config& config) { return without_whole_gradients(config, "accumulation", "sharded"); }};

constexpr Remedy reduce_inputs{"reduce_inputs down", "fewer full gradients wait beside the one being filled",
                               "compute waits for reductions", [](const Config& config) {
                                 Strengths strengths;
                                 for (int inputs = std::min(config.reduce_inputs - 1, 1); inputs >= 0; --inputs) {
                                   strengths.push_back({{word("shard.reduce_inputs", inputs)}});
                                 }
                                 return strengths;
                               }};

bool uses_muon(const Config& config) {
  return std::ranges::any_of(config.optimizer_by_group,
                             [](const auto& group) { return group.second.rule == UpdateRule::muon; });
}

Strengths in_bfloat16(const Config& config, std::string_view key, DType now) {
  if (size_of(now) <= size_of(DType::bfloat16)) return {};
  return {for_all_families(config, "precision", key, "bfloat16")};
}
constexpr Remedy bf16_reduction{
    "reduction in bfloat16", "what is sent is half as wide", "gradients are rounded",
    [](const Config& config) -> Strengths {
      // Two copies of a weight are summed once a step before they are rounded.
      const ShardPolicy& embedding = config.shard_by_family.at(Family::embedding);
      const bool copies = config.model.tie_word_embeddings && config.stages() > 1;
      if (copies && (embedding.reduce_every() != 0 || embedding.accumulation == Accumulation::sharded)) return {};
      return in_bfloat16(config, "reduction", config.precision_of(Family::dense).reduction);
    },
    RemedyKind::arithmetic};

constexpr Remedy bf16_compute{
    "compute in bfloat16", "what is gathered and kept is half as wide", "products of bfloat16, sums in float32",
    [](const Config& config) { return in_bfloat16(config, "compute", config.precision_of(Family::dense).compute); },
    RemedyKind::arithmetic};

constexpr Remedy bf16_parameters{"parameters stored in bfloat16", "shards are half as wide", "rounded stochastically",
                                 [](const Config& config) -> Strengths {
                                   if (uses_muon(config)) return {};  // keeps parameters in float32
                                   return in_bfloat16(config, "parameters",
                                                      config.precision_of(Family::dense).parameters);
                                 },
                                 RemedyKind::arithmetic};

int states_of_rule(const Config& config) {
  return states_of(config.optimizer.rule, config.optimizer.momentum);
}
constexpr Remedy bf16_state{"optimizer state in bfloat16", "moments are half as wide",
                            "rounded stochastically, muon's to the nearest",
                            [](const Config& config) -> Strengths {
                              if (config.optimizer.state != DType::float32 || states_of_rule(config) == 0) return {};
                              return {for_all_groups(config, "state", "bfloat16")};
                            },
                            RemedyKind::arithmetic};

// Half of the way to `most`, which is 1 or 0, and all of it, as far as `now` is not there.
Strengths parts_towards(double most, double now, std::string_view key) {
  Strengths strengths;
  for (const double part : {0.5, most}) {
    if (most > 0.5 ? part > now : part < now) strengths.push_back({{word(key, part)}});
  }
  return strengths;
}

constexpr Remedy activation_offload{
    "activations in host memory", "those of fixed sizes wait on the host for their backward, the longest kept first",
    "compute waits where the bus is slower than it",
    [](const Config& config) { return parts_towards(1.0, config.training.offload, "training.offload"); }};
constexpr Remedy state_offload{"optimizer state in host memory", "moments of adamw wait on the host, the largest first",
                               "a step waits for their way over the bus", [](const Config& config) {
                                 if (!config_fields::steps_some_by_adamw().holds(config)) return Strengths();
                                 return parts_towards(1.0, config.state_offload, "optimizer.offload");
                               }};
constexpr Remedy activation_return{
    "activations on the device", "less of the host's memory is taken", "device memory, less of which copies then free",
    [](const Config& config) { return parts_towards(0.0, config.training.offload, "training.offload"); }};
constexpr Remedy state_return{
    "optimizer state on the device", "less of the host's memory is taken", "device memory for the moments of adamw",
    [](const Config& config) { return parts_towards(0.0, config.state_offload, "optimizer.offload"); }};

constexpr Remedy rule{"a rule with fewer states", "lion keeps one state for each parameter, sgd without momentum none",
                      "another optimizer: its learning rate has to be found anew",
                      [](const Config& config) {
                        Strengths strengths;
                        if (states_of_rule(config) > 1) strengths.push_back(for_all_groups(config, "name", "lion"));
                        if (states_of_rule(config) == 0) return strengths;
                        RemedyOverrides sgd = for_all_groups(config, "name", "sgd");
                        const RemedyOverrides still = for_all_groups(config, "momentum", "0.0");
                        sgd.words.insert(sgd.words.end(), still.words.begin(), still.words.end());
                        sgd.by_family.insert(sgd.by_family.end(), still.by_family.begin(), still.by_family.end());
                        strengths.push_back(std::move(sgd));
                        return strengths;
                      },
                      RemedyKind::arithmetic};

constexpr Remedy element_rule{"adamw in place of muon", "no whole matrices are gathered for a step",
                              "another optimizer, which keeps two states for each parameter",
                              [](const Config& config) -> Strengths {
                                if (!uses_muon(config)) return {};
                                return {for_all_groups(config, "name", name_of(UpdateRule::adamw))};
                              },
                              RemedyKind::arithmetic};

constexpr std::array for_host = {activation_return, state_return};
constexpr std::array for_activations = {selective, full_recompute, microbatch, by_memory,          tensor,
                                        context,   pipeline,       schedule,   activation_offload, bf16_compute};
constexpr std::array for_state = {strategy, replicas,      by_memory,  expert,          tensor,
                                  pipeline, state_offload, bf16_state, bf16_parameters, rule};
constexpr std::array for_parameters = {strategy, residency, lookahead, wrap, tensor, pipeline, expert, bf16_compute};
constexpr std::array for_gradients = {strategy,  each_microbatch, accumulation, reduce_inputs, wrap,
                                      by_memory, tensor,          pipeline,     expert};
constexpr std::array for_routing = {expert_recompute, full_recompute, microbatch,  tensor,
                                    context,          expert,         bf16_compute};
constexpr std::array for_communication = {microbatch, wrap,           each_microbatch, tensor,
                                          pipeline,   bf16_reduction, element_rule};
constexpr std::array for_workspace = {microbatch, tensor, context, element_rule};
constexpr std::array beside_more_ranks = {selective, full_recompute, microbatch};

// Remedies that people try first, by the bytes that they lower. They cannot help against other causes.
constexpr std::array of_activations = {selective, microbatch, full_recompute};
constexpr std::array of_state = {strategy, bf16_state};
constexpr std::array of_parameters = {microbatch, residency, lookahead};

struct CauseRow {
  std::span<const Remedy> remedies, cannot_help;
};
constexpr CauseRow causes[names_of_all<Cause>.size()] = {  // by Cause
    {for_activations, of_state},    {for_state, of_activations}, {for_parameters, of_activations},
    {for_gradients, of_parameters}, {for_routing, of_state},     {for_communication, of_state},
    {for_workspace, of_state}};

std::string_view key_of(std::string_view word) {
  return word.substr(0, word.find('='));
}

}  // namespace

Cause cause_of(Bucket bucket) {
  if (is_static(bucket)) return Cause::state;
  constexpr std::pair<Bucket, Cause> by_bucket[] = {{Bucket::unsharded_parameters, Cause::unsharded_parameters},
                                                    {Bucket::unsharded_gradients, Cause::unsharded_gradients},
                                                    {Bucket::activations, Cause::activations},
                                                    {Bucket::moe_routing, Cause::routing},
                                                    {Bucket::communication, Cause::communication}};
  const auto found = std::ranges::find(by_bucket, bucket, &std::pair<Bucket, Cause>::first);
  return found == std::end(by_bucket) ? Cause::workspace : found->second;
}

std::int64_t bytes_of(Cause cause, const BucketBytes& bytes) {
  std::int64_t sum = 0;
  for (const Bucket bucket : all_values<Bucket>) sum += cause_of(bucket) == cause ? bytes[bucket] : 0;
  return sum;
}

Cause largest_cause(const BucketBytes& bytes) {
  return std::ranges::max(all_values<Cause>, {}, [&](Cause cause) { return bytes_of(cause, bytes); });
}

std::span<const Remedy> remedies_for(Cause cause) {
  return causes[static_cast<std::size_t>(cause)].remedies;
}

std::span<const Remedy> remedies_that_cannot_help(Cause cause) {
  return causes[static_cast<std::size_t>(cause)].cannot_help;
}

std::span<const Remedy> remedies_beside_more_ranks() {
  return beside_more_ranks;
}

std::span<const Remedy> remedies_against_host() {
  return for_host;
}

Overrides changed_words(const Config& before, const Config& now, const std::vector<std::string>& keys) {
  const std::vector<ConfigKey> schema = config_schema();
  Overrides words;
  for (const std::string& path : keys) {
    const ConfigKey& key = *std::ranges::find(schema, path, &ConfigKey::path);
    std::string value = key.write(now);
    if (value == key.write(before) || missing_for(key, now)) continue;
    std::erase(value, '"');
    words.push_back(word(path, value));
  }
  return words;
}

Overrides merged_words(const Overrides& words, const Overrides& more) {
  Overrides merged;
  for (const std::string& word : words) {
    const auto same_key = [&](const std::string& other) { return key_of(other) == key_of(word); };
    if (std::ranges::none_of(more, same_key)) merged.push_back(word);
  }
  merged.insert(merged.end(), more.begin(), more.end());
  return merged;
}

Overrides scaled_words(const Config& config, int data_shard) {
  const std::int64_t of_one = config.training.global_batch_size / config.parallelism.data_shard;
  Overrides words = {word("parallelism.data_shard", data_shard),
                     word("training.global_batch_size", of_one * data_shard)};
  Degrees degrees = config.parallelism;
  degrees.data_shard = data_shard;
  add_launch(config, degrees, words);
  return words;
}

}  // namespace weft
