#include "tests/layers/segment_expectation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace weft {
namespace {

double dot(const Values& a, const Values& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Choices that the load-balancing loss over a step so far takes for a rank's m-th microbatch. All ranks, or its data
// rank, made them in microbatches up to it, as many as one has on average. They are constants to every derivative.
Values balanced_choices(const SegmentCase& the_case, const ModelReference& reference, const SegmentInputs& inputs,
                        std::size_t g) {
  const AuxiliaryLoss loss = the_case.model.moe.aux_loss;
  if (loss != AuxiliaryLoss::rank_batch && loss != AuxiliaryLoss::global) return {};
  const bool own = loss == AuxiliaryLoss::rank_batch;
  const auto microbatches = static_cast<std::size_t>(the_case.microbatches), last = g % microbatches;
  const double seen = (own ? 1.0 : static_cast<double>(the_case.data)) * static_cast<double>(last + 1);
  const MoeConfig& config = the_case.model.moe;
  Values choices(static_cast<std::size_t>(config.pool()), 0.0);
  for (std::size_t other = 0; other < inputs.x.size(); ++other) {
    if (other % microbatches > last || (own && other / microbatches != g / microbatches)) continue;
    const MoeReference moe = reference.moe(0, inputs.x[other]);
    const double null = static_cast<double>(moe.null_choices) / static_cast<double>(config.null_copies());
    for (std::size_t e = 0; e < choices.size(); ++e) {
      choices[e] += (e < moe.expert_tokens.size() ? static_cast<double>(moe.expert_tokens[e]) : null) / seen;
    }
  }
  return choices;
}

// Of the first predictor.
std::vector<std::int32_t> following(const SegmentCase& the_case, std::span<const std::int32_t> ids, std::int32_t none) {
  return shifted(ids, the_case.sequence_length, 1, none);
}
double prediction_loss(const SegmentCase& the_case, const ModelReference& reference, const SegmentInputs& inputs,
                       std::size_t g, const Values& x) {
  return reference.prediction_loss(the_case.model.layers(), x, following(the_case, inputs.targets[g], -1));
}

// What one microbatch adds to the objective.
double objective(const SegmentCase& the_case, const ModelReference& reference, const SegmentInputs& inputs,
                 std::size_t g, const Values& x) {
  switch (the_case.kind) {
    case SegmentKind::embedding:
      return dot(reference.embedding(inputs.tokens[g]), inputs.dy[g]);
    case SegmentKind::attention:
      return dot(reference.attention(0, x), inputs.dy[g]);
    case SegmentKind::state_space:
      return dot(reference.state_space(0, x), inputs.dy[g]);
    case SegmentKind::mlp:
      return dot(reference.mlp(0, x), inputs.dy[g]);
    case SegmentKind::moe: {
      const MoeReference moe = reference.moe(0, x, balanced_choices(the_case, reference, inputs, g));
      return dot(moe.y, inputs.dy[g]) + moe.auxiliary_loss + moe.z_loss;
    }
    case SegmentKind::merge:
      return dot(reference.merge(the_case.model.layers(), x, following(the_case, inputs.tokens[g], 0)), inputs.dy[g]);
    case SegmentKind::predict:
      return dot(x, inputs.dy[g]) + the_case.model.mtp_loss_coef / the_case.model.mtp_depth * the_case.loss_factor *
                                        prediction_loss(the_case, reference, inputs, g, x);
    case SegmentKind::head:
      return the_case.loss_factor * reference.head(x, inputs.targets[g]);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void add_forward(const SegmentCase& the_case, const ModelReference& reference, const SegmentInputs& inputs,
                 std::size_t g, Outcome& outcome) {
  const Values& x = inputs.x[g];
  switch (the_case.kind) {
    case SegmentKind::embedding:
      outcome.y.push_back(reference.embedding(inputs.tokens[g]));
      return;
    case SegmentKind::attention:
      outcome.y.push_back(reference.attention(0, x));
      return;
    case SegmentKind::state_space:
      outcome.y.push_back(reference.state_space(0, x));
      return;
    case SegmentKind::mlp:
      outcome.y.push_back(reference.mlp(0, x));
      return;
    case SegmentKind::moe: {
      MoeReference moe = reference.moe(0, x, balanced_choices(the_case, reference, inputs, g));
      outcome.y.push_back(std::move(moe.y));
      outcome.auxiliary_loss += moe.auxiliary_loss;
      outcome.z_loss += moe.z_loss;
      outcome.null_choices += moe.null_choices;
      outcome.expert_tokens.resize(moe.expert_tokens.size(), 0);
      for (std::size_t e = 0; e < moe.expert_tokens.size(); ++e) outcome.expert_tokens[e] += moe.expert_tokens[e];
      return;
    }
    case SegmentKind::merge:
      outcome.y.push_back(reference.merge(the_case.model.layers(), x, following(the_case, inputs.tokens[g], 0)));
      return;
    case SegmentKind::predict:
      outcome.y.push_back(x);
      outcome.prediction_loss += prediction_loss(the_case, reference, inputs, g, x);
      return;
    case SegmentKind::head:
      outcome.y.emplace_back();
      outcome.loss_sum += reference.head(x, inputs.targets[g]);
      return;
  }
}

struct Declared {
  CommunicationCount exact, bound;
};

}  // namespace

double central_difference(const std::function<double()>& f, double& x) {
  constexpr double step = 1e-5;
  const double at = x;
  x = at + step;
  const double above = f();
  x = at - step;
  const double below = f();
  x = at;
  return (above - below) / (2.0 * step);
}

Outcome expected_outcome(const SegmentCase& the_case, const SegmentInputs& inputs) {
  Outcome outcome;
  NamedValues parameters = inputs.parameters;
  ModelReference reference(the_case.model, parameters, the_case.sequence_length, the_case.loss_factor);
  if (const auto noise = static_cast<float>(the_case.model.moe.router_jitter_noise); noise > 0.0f) {
    for (std::int64_t row = 0; row < the_case.tokens(); ++row) {
      for (std::int64_t column = 0; column < the_case.model.hidden_size; ++column) {
        reference.router_noise.push_back(
            static_cast<float>(noise_factor(noise_key(row), static_cast<std::uint64_t>(column), noise)));
      }
    }
  }
  for (std::size_t g = 0; g < inputs.x.size(); ++g) {
    add_forward(the_case, reference, inputs, g, outcome);
    outcome.dx.emplace_back();
    if (the_case.kind == SegmentKind::embedding) continue;
    Values x = inputs.x[g];
    for (double& element : x) {
      outcome.dx.back().push_back(
          central_difference([&] { return objective(the_case, reference, inputs, g, x); }, element));
    }
  }
  const auto all = [&] {
    double sum = 0.0;
    for (std::size_t g = 0; g < inputs.x.size(); ++g) sum += objective(the_case, reference, inputs, g, inputs.x[g]);
    return sum;
  };
  for (auto& [name, values] : parameters) {
    for (double& element : values) outcome.gradients[name].push_back(central_difference(all, element));
  }
  return outcome;
}

double relative_error(const Values& actual, const Values& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double scale = 1.0 / 16.0, error = 0.0;
  for (double value : expected) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(actual[i] - expected[i]));
  }
  return error / scale;
}

double largest_relative_error(const Outcome& actual, const Outcome& expected) {
  if (actual.y.size() != expected.y.size() || actual.dx.size() != expected.dx.size() ||
      actual.gradients.size() != expected.gradients.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double error =
      relative_error({actual.loss_sum, actual.auxiliary_loss, actual.z_loss, actual.prediction_loss},
                     {expected.loss_sum, expected.auxiliary_loss, expected.z_loss, expected.prediction_loss});
  for (std::size_t g = 0; g < expected.y.size(); ++g) {
    error = std::max({error, relative_error(actual.y[g], expected.y[g]), relative_error(actual.dx[g], expected.dx[g])});
  }
  for (const auto& [name, values] : expected.gradients) {
    const auto found = actual.gradients.find(name);
    error = std::max(error, relative_error(found == actual.gradients.end() ? Values() : found->second, values));
  }
  return error;
}

// float32: one element of a weight gradient has behind it every sum of the segment, forward and backward. The sums go
// over the hidden width (norm, projection, and both again), and over the widest inner dimension twice. They go over
// the keys of a sequence (scores, softmax, values, and again), and over all tokens of the world. Some 64 roundings of
// single elements are added. A sum of n terms loses at most n u of their magnitudes. That roundings do not all point
// one way leaves room for sums that cancel to less than their terms.
//
// 16 bits: what is stored between kernels is rounded once. Eight such tensors lie on the longest path of a forward.
// They are input norm, projection, rotary or SwiGLU, branch, partial sum, their sum over ranks, residual, and the
// routed sum. Two more lie where values pass into another dtype and back. Each is at most as large as the output's
// largest element and, as a bound, is rounded like the coarsest dtype on the way.
double tolerance(const SegmentCase& the_case) {
  const DType coarsest = the_case.coarsest();
  if (coarsest != DType::float32) {
    return (the_case.mixed() ? 10.0 : 8.0) * (coarsest == DType::bfloat16 ? 0x1.0p-8 : 0x1.0p-11);
  }
  const ModelConfig& model = the_case.model;
  const std::int64_t widest = std::max({(model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim,
                                        2 * model.intermediate_size, model.vocab_size});
  const std::int64_t roundings = 4 * model.hidden_size + 2 * widest + 6 * the_case.sequence_length +
                                 the_case.tokens() * the_case.all_microbatches() + 64;
  return static_cast<double>(roundings) * 0x1.0p-24;
}

void expect_declared_traffic(const RankOutcome& rank, int microbatches) {
  std::map<std::pair<SegmentTraffic::When, CommunicationKey>, Declared> declared;
  for (const SegmentTraffic& entry : rank.declared_traffic) {
    if (entry.count == 0) continue;
    Declared& total = declared[{entry.when, {std::string(name_of(entry.group)), entry.op}}];
    CommunicationCount& part = entry.is_bound ? total.bound : total.exact;
    part.count += entry.count * microbatches;
    part.bytes += entry.bytes * microbatches;
  }
  for (const auto& [key, counted] : rank.counted_traffic) {
    SCOPED_TRACE(fmt::format("phase {}, {} {}", static_cast<int>(key.first), key.second.group, name_of(key.second.op)));
    ASSERT_TRUE(declared.contains(key));
    const Declared& expected = declared.at(key);
    EXPECT_EQ(counted.count, expected.exact.count + expected.bound.count);
    EXPECT_GE(counted.bytes, expected.exact.bytes);
    EXPECT_LE(counted.bytes, expected.exact.bytes + expected.bound.bytes);
  }
  EXPECT_EQ(rank.counted_traffic.size(), declared.size());
}

}  // namespace weft
