// Keys of experts, their router and the balance of their load.
#include <fmt/format.h>

#include "layers/kernels/routing.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"

namespace weft::config_fields {
namespace {

// The float32 bias stays finite: 2^31 steps of 65,536 such rates (the most that a step can be) sum to 1.4e20.
constexpr NumberRange bias_rate_range{0, 1e6, false, false, "in [0, 1e6]"};
auto moe_fields() {
  return fields_of(
      "model.moe", [](auto& config) -> auto& { return config.model.moe; });
}

}  // namespace

std::vector<ConfigKey> moe_keys() {
  const auto field = moe_fields();
  const KeyCondition has_shared_expert{"shared_expert_intermediate_size is not 0",
                                       [](const Config& c) { return c.model.moe.shared_expert_intermediate_size > 0; }};
  return {
      number_key(field("router_jitter_noise", &MoeConfig::router_jitter_noise),
                 "in training a router's input is multiplied by numbers from 1 - this to 1 + this; 0: not", below_one),
      integer_key(field("num_experts", &MoeConfig::num_experts), "routed experts of an MoE block", count_range),
      integer_key(field("num_experts_per_tok", &MoeConfig::num_experts_per_tok), "experts a token goes to",
                  count_range),
      number_key(field("real_fraction", &MoeConfig::real_fraction),
                 "below 1: a token makes num_experts_per_tok / this choices, among experts and null slots, which "
                 "compute nothing; of even choices this part goes to experts",
                 NumberRange{0.01, 1, false, false, "from 0.01 to 1"}),
      integer_key(field("moe_intermediate_size", &MoeConfig::moe_intermediate_size), "width inside a routed expert",
                  count_range),
      integer_key(field("shared_expert_intermediate_size", &MoeConfig::shared_expert_intermediate_size),
                  "width inside the shared expert; 0: none", count_range),
      boolean_key(field("shared_expert_gate", &MoeConfig::shared_expert_gate, {has_shared_expert}),
                  "the shared expert's output is multiplied by a sigmoid of the token"),
      boolean_key(field("norm_topk_prob", &MoeConfig::norm_topk_prob), "weights of the chosen experts sum to one"),
      choice_key(
          field("scoring", &MoeConfig::scoring),
          "how router logits become scores; softmax with norm_topk_prob is a softmax of the chosen experts alone"),
      number_key(field("routed_scaling_factor", &MoeConfig::routed_scaling_factor),
                 "factor of the weights of the chosen experts", positive),
      integer_key(field("n_group", &MoeConfig::n_group), "equal groups of neighbouring experts",
                  {1, most_expert_groups}),
      integer_key(field("topk_group", &MoeConfig::topk_group),
                  "groups that a token chooses from: those with the largest sums of their two best scores",
                  {1, most_expert_groups}),
  };
}

std::vector<ConfigKey> balance_keys() {
  const auto field = moe_fields();
  const KeyCondition drops{"capacity_factor is not 0", [](const Config& c) { return c.model.moe.drops(); }};
  const KeyConditions balances = {has_blocks(BlockKind::moe), {"router_aux_loss_coef is not 0", [](const Config& c) {
                                                                 return c.model.moe.router_aux_loss_coef > 0.0;
                                                               }}};
  // Frozen routers keep their bias too.
  KeyConditions moves_bias = trains_group(UpdateGroup::routing);
  moves_bias.push_back({"selection_bias is true", [](const Config& c) { return c.model.moe.selection_bias; }});
  KeyConditions steps_bias = moves_bias;
  steps_bias.push_back(
      {"bias_update_rate is not 0", [](const Config& c) { return c.model.moe.bias_update_rate > 0.0; }});
  return {
      number_key(field("router_aux_loss_coef", &MoeConfig::router_aux_loss_coef), "weight of the load-balancing loss",
                 non_negative),
      choice_key(
          field("aux_loss", &MoeConfig::aux_loss, balances),
          "load-balancing loss: num_experts x sum over experts of its part of the choices x its mean score, summed "
          "over MoE blocks; of each sequence, and the mean over the sequences of a step: every layout and "
          "microbatch size has the same losses; or of all tokens of a rank's microbatch, and the mean over "
          "microbatches: depends on microbatch_size and data ranks; or of the choices of a data rank, or of all, "
          "in all microbatches of the step so far and the scores of a microbatch, and the mean over microbatches"),
      number_key(field("router_z_loss_coef", &MoeConfig::router_z_loss_coef),
                 "weight of the squared log-sum of router logits", non_negative),
      boolean_key(field("selection_bias", &MoeConfig::selection_bias),
                  "balance without a loss: a number of each expert, added to its scores in the choice alone, moves "
                  "against its load after each step"),
      choice_key(field("bias_update", &MoeConfig::bias_update, steps_bias),
                 "step of that number: bias_update_rate up or down, or times what lacks of the mean load"),
      number_key(field("bias_update_rate", &MoeConfig::bias_update_rate, moves_bias),
                 "size of that step; 0: the bias stays as it is", bias_rate_range),
      choice_key(field("bias_schedule", &MoeConfig::bias_schedule, steps_bias),
                 "bias_update_rate over the run: the same, or in proportion to the learning rate"),
      number_key(field("capacity_factor", &MoeConfig::capacity_factor),
                 "an expert takes at most so many times its even share of a sequence's choices, and drops the rest; 0: "
                 "it drops none",
                 non_negative),
      choice_key(field("drop_policy", &MoeConfig::drop_policy, {drops}),
                 "choices that are dropped: those of the smallest weights, or of the last positions"),
      boolean_key(field("pad_to_capacity", &MoeConfig::pad_to_capacity, {drops}),
                  "experts compute as many rows as they may take, zeros for those that they lack: row counts are not "
                  "exchanged, and the host waits for none"),
      boolean_key(field("force_balance", &MoeConfig::force_balance),
                  "experts are dealt to tokens in turn, whatever their scores: to measure speed, not to train"),
  };
}

}  // namespace weft::config_fields
