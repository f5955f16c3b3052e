// The update rules as plain values: the traits of each rule, and the factors of its formula. p
// is an element of a parameter, g its gradient after clipping, t the step from 1, `decay` the weight decay. In every
// rule the decay acts on the parameter itself and stays out of the states (Loshchilov and Hutter, "Decoupled Weight
// Decay Regularization").
//
//   adamw  (ibid., algorithm 2)  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//          p -= learning_rate (decay p + (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps))
//   sgd    (heavy ball, without Nesterov's look-ahead)  v = momentum v + g
//          p -= learning_rate (v + decay p)
//   lion   (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2)
//          p -= learning_rate (sign(beta1 m + (1 - beta1) g) + decay p);  m = beta2 m + (1 - beta2) g
//   lamb   (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2, with phi(z) = z)
//          u = adamw's bracket;  p -= learning_rate (|p| / |u|) u, norms over the whole parameter; the ratio is 1 if
//          one of them is 0
//   muon   orthogonalised momentum of whole matrices
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "parallel/runtime/enum_names.h"

namespace weft {

enum class UpdateRule : std::uint8_t { adamw, sgd, lion, lamb, muon };

// The data that the update of an element needs besides the element's own numbers.
enum class Needs : std::uint8_t {
  elements,        // nothing: any cut into shards gives the same bits
  tensor_norms,    // two sums over the element's whole parameter
  whole_matrices,  // the element's whole matrix
};

// The facts of a rule that the configuration, the checkpoints and the layout of states ask for.
struct UpdateRuleTraits {
  std::string_view name;
  Needs needs = Needs::elements;
  // States kept beside each element, zero before the first step, by their names in checkpoints: PyTorch's, which
  // readers expect.
  int states = 0;
  std::array<std::string_view, 2> state_names = {};
  bool stateless_without_momentum = false;
  // Keys of [optimizer] that not every rule reads.
  std::array<std::string_view, 3> keys = {};

  constexpr bool reads(std::string_view key) const { return std::ranges::find(keys, key) != keys.end(); }
};
// In the order of UpdateRule.
inline constexpr std::array update_rules = {
    UpdateRuleTraits{.name = "adamw", .states = 2, .state_names = {"exp_avg", "exp_avg_sq"}, .keys = {"betas", "eps"}},
    UpdateRuleTraits{.name = "sgd",
                     .states = 1,
                     .state_names = {"momentum_buffer"},
                     .stateless_without_momentum = true,
                     .keys = {"momentum"}},
    UpdateRuleTraits{.name = "lion", .states = 1, .state_names = {"exp_avg"}, .keys = {"betas"}},
    UpdateRuleTraits{.name = "lamb",
                     .needs = Needs::tensor_norms,
                     .states = 2,
                     .state_names = {"exp_avg", "exp_avg_sq"},
                     .keys = {"betas", "eps"}},
    UpdateRuleTraits{.name = "muon",
                     .needs = Needs::whole_matrices,
                     .states = 1,
                     .state_names = {"momentum_buffer"},
                     .keys = {"momentum", "muon_scale", "newton_schulz"}},
};
static_assert(update_rules.size() == static_cast<std::size_t>(UpdateRule::muon) + 1, "every rule has its traits");
constexpr auto enum_names(UpdateRule) {
  std::array<std::string_view, update_rules.size()> names{};
  std::ranges::transform(update_rules, names.begin(), &UpdateRuleTraits::name);
  return names;
}
constexpr const UpdateRuleTraits& traits_of(UpdateRule rule) {
  return update_rules[static_cast<std::size_t>(rule)];
}
constexpr Needs needs_of(UpdateRule rule) {
  return traits_of(rule).needs;
}
constexpr int states_of(UpdateRule rule, double momentum) {
  const UpdateRuleTraits& traits = traits_of(rule);
  return traits.stateless_without_momentum && momentum <= 0.0 ? 0 : traits.states;
}
inline constexpr int most_states = 2;
constexpr std::string_view state_name(UpdateRule rule, int state) {
  return traits_of(rule).state_names[static_cast<std::size_t>(state)];
}

// Factor of Muon's orthogonal matrix, for a matrix that maps `columns` numbers to `rows`:
//   match_adamw  0.2 sqrt(max(rows, columns)): elements of about 0.2, as AdamW's steps have
//   aspect       sqrt(max(1, rows / columns)): the change of an output is in proportion to the output's size
enum class MuonScale : std::uint8_t { match_adamw, aspect };
constexpr auto enum_names(MuonScale) {
  return name_list("match_adamw", "aspect");
}

// Settings of one step of a group of parameters.
struct GroupStep {
  UpdateRule rule = UpdateRule::adamw;
  double learning_rate = 0.0;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
  std::int64_t step = 1;
};

// Factors of one step, the same for every element, computed in double and rounded once. `step_size` and `decay` are
// those of the direction that is subtracted from the parameter. For lamb that direction is still to be multiplied by
// the learning rate and the ratio of norms.
struct UpdateFactors {
  float first_rate = 0, second_rate = 0;  // 1 - beta
  float second_scale = 0;                 // 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float momentum = 0;
  float step_size = 0, decay = 0;
  float learning_rate = 0;
};
// Throws Error (failure) if the step is less than 1, and for muon, which does not step element by element.
UpdateFactors update_factors(const GroupStep& step);

}  // namespace weft
