// The whole model in plain double loops: what the segments are compared with. Nothing is shared with layers/ but the
// configuration and the names and orientation of the parameters (o_proj and down_proj are stored transposed).
//
// Activations are [tokens, hidden], several sequences one after another. T tokens, S tokens a sequence, E experts, K
// choices a token.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "layers/model_config.h"

namespace weft {

using Values = std::vector<double>;
using NamedValues = std::map<std::string, Values>;  // by global parameter name

struct MoeReference {
  Values y;
  double auxiliary_loss = 0.0, z_loss = 0.0;  // with coefficient and loss factor
  std::vector<std::int64_t> expert_tokens;    // choices by expert
  std::int64_t null_choices = 0;
};

class ModelReference {
 public:
  // The model and the parameters must outlive this object.
  ModelReference(const ModelConfig& model, const NamedValues& parameters, std::int64_t sequence_length,
                 double loss_factor)
      : model_(model), parameters_(parameters), sequence_length_(sequence_length), loss_factor_(loss_factor) {}

  // Of each element of a router's input; empty: 1.
  Values router_noise = {};

  Values embedding(std::span<const std::int32_t> tokens) const;
  Values attention(int block, const Values& x) const;
  Values state_space(int block, const Values& x) const;
  Values mlp(int block, const Values& x) const;
  // `balanced`: the choices of the pool that the load-balancing loss takes in the place of the microbatch's own.
  MoeReference moe(int block, const Values& x, const Values& balanced = {}) const;
  // The parts of a block; adds the auxiliary losses to `auxiliary`.
  Values block(int block, const Values& x, double& auxiliary) const;
  // A predictor's input, from the hidden state before it and the following ids.
  Values merge(int block, const Values& x, std::span<const std::int32_t> ids) const;
  double prediction_loss(int block, const Values& x, std::span<const std::int32_t> targets) const;
  // The sum over tokens of the cross-entropy, in nats.
  double head(const Values& x, std::span<const std::int32_t> targets) const;
  // What a step minimises: loss_factor * (cross-entropy of the chained segments + mtp_loss_coef * the mean one of the
  // predictors), plus every auxiliary loss.
  double objective(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const;

 private:
  // What a router says of a token.
  struct RoutedToken {
    Values scores;                    // of each expert of the pool
    std::vector<std::size_t> chosen;  // the K largest, ties to the lower expert
    double chosen_sum = 0.0;          // of scores, without null slots

    double weight(std::size_t expert, bool normalised) const {
      return normalised ? scores[expert] / chosen_sum : scores[expert];
    }
  };

  const Values& parameter(const std::string& name) const { return parameters_.at(name); }
  Values norm(const Values& x, const std::string& weight) const;
  Values swiglu(const Values& x, const std::string& name) const;
  // heads [T, heads * head_dim], in place: the pair (i, i + d/2) turns by position * theta^(-2i/d), d the head size.
  void rotate(Values& heads, std::int64_t head_count) const;
  Values scores(std::span<const double> logits) const;
  double cross_entropy(const Values& normed, std::span<const std::int32_t> targets) const;
  // One channel per column: bias and filter over the last tokens of a sequence, then silu.
  Values convolved(const Values& x, const std::string& name) const;
  // Rows of a router's elements, the last of each once for every null slot.
  Values of_pool(const Values& rows) const;
  // Tokens that each expert takes.
  std::vector<std::vector<std::size_t>> taken_choices(const std::vector<RoutedToken>& routed) const;
  // `bias` is the selection bias; empty: none.
  std::vector<std::size_t> choose(const Values& scores, const Values& bias) const;

  const ModelConfig& model_;
  const NamedValues& parameters_;
  std::int64_t sequence_length_;
  double loss_factor_;
};

}  // namespace weft
