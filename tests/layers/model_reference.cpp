#include "tests/layers/model_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace weft {
namespace {

std::size_t to_size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// a [rows, inner] times b [inner, columns].
Values product(const Values& a, const Values& b, std::size_t inner) {
  const std::size_t rows = a.size() / inner, columns = b.size() / inner;
  Values c(rows * columns, 0.0);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < inner; ++i) {
      for (std::size_t column = 0; column < columns; ++column) {
        c[row * columns + column] += a[row * inner + i] * b[i * columns + column];
      }
    }
  }
  return c;
}

// a [rows, inner] times the transpose of b [columns, inner].
Values product_with_transpose(const Values& a, const Values& b, std::size_t inner) {
  const std::size_t rows = a.size() / inner, columns = b.size() / inner;
  Values c(rows * columns, 0.0);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      for (std::size_t i = 0; i < inner; ++i) c[row * columns + column] += a[row * inner + i] * b[column * inner + i];
    }
  }
  return c;
}

void add_to(Values& y, const Values& x) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
}

double log_sum_exp(std::span<const double> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

// Rows are as wide as the weight: a token's hidden values, or one head.
Values ModelReference::norm(const Values& x, const std::string& weight) const {
  const Values& w = parameter(weight);
  Values y = x;
  for (std::size_t begin = 0; begin < x.size(); begin += w.size()) {
    double squares = 0.0;
    for (std::size_t i = 0; i < w.size(); ++i) squares += x[begin + i] * x[begin + i];
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(w.size()) + model_.rms_norm_eps);
    for (std::size_t i = 0; i < w.size(); ++i) y[begin + i] *= inverse * w[i];
  }
  return y;
}

Values ModelReference::swiglu(const Values& x, const std::string& name) const {
  const std::size_t hidden = to_size(model_.hidden_size);
  Values activated = product_with_transpose(x, parameter(name + ".gate_proj.weight"), hidden);
  const Values up = product_with_transpose(x, parameter(name + ".up_proj.weight"), hidden);
  for (std::size_t i = 0; i < up.size(); ++i) activated[i] *= up[i] / (1.0 + std::exp(-activated[i]));
  const Values& down = parameter(name + ".down_proj.weight");
  return product(activated, down, down.size() / hidden);
}

void ModelReference::rotate(Values& heads, std::int64_t head_count) const {
  const std::size_t head_dim = to_size(model_.head_dim), half = head_dim / 2, columns = to_size(head_count) * head_dim;
  for (std::size_t begin = 0; begin < heads.size(); begin += head_dim) {
    const double position = static_cast<double>(begin / columns % to_size(sequence_length_));
    for (std::size_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
      const double angle = position * std::pow(model_.rope_theta, exponent);
      double &first = heads[begin + i], &second = heads[begin + half + i];
      const double turned = first * std::cos(angle) - second * std::sin(angle);
      second = second * std::cos(angle) + first * std::sin(angle);
      first = turned;
    }
  }
}

Values ModelReference::embedding(std::span<const std::int32_t> tokens) const {
  const Values& table = parameter("embedding.weight");
  const std::int64_t hidden = model_.hidden_size;
  Values y;
  for (std::int64_t token : tokens) {
    y.insert(y.end(), table.begin() + token * hidden, table.begin() + (token + 1) * hidden);
  }
  return y;
}

Values ModelReference::convolved(const Values& x, const std::string& name) const {
  const Values &filter = parameter(name + "_filter"), &bias = parameter(name + "_bias");
  const std::size_t channels = bias.size(), taps = filter.size() / channels;
  Values y(x.size());
  for (std::size_t token = 0; token < x.size() / channels; ++token) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      double sum = bias[channel];
      for (std::size_t back = 0; back < taps && back <= token % to_size(sequence_length_); ++back) {
        sum += filter[channel * taps + taps - 1 - back] * x[(token - back) * channels + channel];
      }
      y[token * channels + channel] = sum / (1.0 + std::exp(-sum));
    }
  }
  return y;
}

// Token by token, as the recurrence is defined.
Values ModelReference::state_space(int block, const Values& x) const {
  const std::string name = fmt::format("blocks.{}.state_space", block);
  const StateSpaceConfig& config = model_.state_space;
  const std::size_t hidden = to_size(model_.hidden_size), heads = to_size(config.num_heads);
  const std::size_t width = to_size(config.head_dim), size = to_size(config.state_size);
  const std::size_t groups = to_size(config.n_groups), inner = heads * width, group_width = inner / groups;
  const Values normed = norm(x, name + ".norm.weight");
  const auto project = [&](const char* which) {
    return product_with_transpose(normed, parameter(fmt::format("{}.{}_proj.weight", name, which)), hidden);
  };
  const Values z = project("z"), steps = project("step");
  const Values inputs = convolved(project("x"), name + ".x"), b = convolved(project("b"), name + ".b");
  const Values c = convolved(project("c"), name + ".c");

  Values y(inputs.size(), 0.0), state(inner * size, 0.0);
  for (std::size_t token = 0; token < x.size() / hidden; ++token) {
    if (token % to_size(sequence_length_) == 0) std::fill(state.begin(), state.end(), 0.0);
    for (std::size_t head = 0; head < heads; ++head) {
      const double step = std::log1p(std::exp(steps[token * heads + head] + parameter(name + ".step_bias")[head]));
      const double keep = std::exp(-std::exp(parameter(name + ".a_log")[head]) * step);
      const std::size_t of_group = (token * groups + head / (heads / groups)) * size;
      for (std::size_t i = 0; i < width; ++i) {
        const std::size_t at = head * width + i;
        const double input = inputs[token * inner + at];
        double& out = y[token * inner + at] = parameter(name + ".d")[head] * input;
        for (std::size_t n = 0; n < size; ++n) {
          double& element = state[at * size + n];
          element = keep * element + step * input * b[of_group + n];
          out += element * c[of_group + n];
        }
      }
    }
  }
  const Values& weight = parameter(name + ".gated_norm.weight");
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= z[i] / (1.0 + std::exp(-z[i]));
  for (std::size_t begin = 0; begin < y.size(); begin += group_width) {
    double squares = 0.0;
    for (std::size_t i = 0; i < group_width; ++i) squares += y[begin + i] * y[begin + i];
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(group_width) + model_.rms_norm_eps);
    for (std::size_t i = 0; i < group_width; ++i) y[begin + i] *= inverse * weight[(begin + i) % inner];
  }
  Values result = product(y, parameter(name + ".out_proj.weight"), inner);
  add_to(result, x);
  return result;
}

Values ModelReference::attention(int block, const Values& x) const {
  const std::string name = fmt::format("blocks.{}.attention", block);
  const std::size_t hidden = to_size(model_.hidden_size), head_dim = to_size(model_.head_dim);
  const std::size_t heads = to_size(model_.num_attention_heads), key_heads = to_size(model_.num_key_value_heads);
  const Values normed = norm(x, name + ".norm.weight");
  Values q = product_with_transpose(normed, parameter(name + ".q_proj.weight"), hidden);
  Values k = product_with_transpose(normed, parameter(name + ".k_proj.weight"), hidden);
  const Values v = product_with_transpose(normed, parameter(name + ".v_proj.weight"), hidden);
  if (model_.qk_norm) {
    q = norm(q, name + ".q_norm.weight");
    k = norm(k, name + ".k_norm.weight");
  }
  rotate(q, model_.num_attention_heads);
  rotate(k, model_.num_key_value_heads);

  Values out(q.size(), 0.0);
  for (std::size_t token = 0; token < x.size() / hidden; ++token) {
    const std::size_t begin = token - token % to_size(sequence_length_), window = to_size(model_.sliding_window);
    const std::size_t first = window > 0 && token - begin >= window ? token - window + 1 : begin;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t q_begin = (token * heads + head) * head_dim, key_head = head / (heads / key_heads);
      const auto k_begin = [&](std::size_t other) { return (other * key_heads + key_head) * head_dim; };
      Values logits;
      for (std::size_t other = first; other <= token; ++other) {
        double dot = 0.0;
        for (std::size_t i = 0; i < head_dim; ++i) dot += q[q_begin + i] * k[k_begin(other) + i];
        logits.push_back(dot / std::sqrt(static_cast<double>(head_dim)));
      }
      const double total = log_sum_exp(logits);
      for (std::size_t other = first; other <= token; ++other) {
        const double probability = std::exp(logits[other - first] - total);
        for (std::size_t i = 0; i < head_dim; ++i) out[q_begin + i] += probability * v[k_begin(other) + i];
      }
    }
  }
  Values y = product(out, parameter(name + ".o_proj.weight"), heads * head_dim);
  add_to(y, x);
  return y;
}

Values ModelReference::mlp(int block, const Values& x) const {
  const std::string name = fmt::format("blocks.{}.mlp", block);
  Values y = swiglu(norm(x, name + ".norm.weight"), name);
  add_to(y, x);
  return y;
}

Values ModelReference::scores(std::span<const double> logits) const {
  Values scores;
  const double total = log_sum_exp(logits);
  for (double logit : logits) {
    switch (model_.moe.scoring) {
      case Scoring::softmax:
        scores.push_back(std::exp(logit - total));
        break;
      case Scoring::sigmoid:
        scores.push_back(1.0 / (1.0 + std::exp(-logit)));
        break;
      case Scoring::sqrt_softplus:
        scores.push_back(std::sqrt(std::log1p(std::exp(logit))));
        break;
    }
  }
  return scores;
}

namespace {

// Indices of the `count` largest, in descending order, the lower first among equals.
std::vector<std::size_t> largest(const Values& values, std::int64_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  order.resize(to_size(count));
  return order;
}

}  // namespace

std::vector<std::size_t> ModelReference::choose(const Values& scores, const Values& bias) const {
  const MoeConfig& moe = model_.moe;
  Values values = scores;
  if (!bias.empty()) add_to(values, bias);
  const std::size_t size = values.size() / to_size(moe.n_group);
  Values groups;
  for (std::size_t first = 0; first < values.size(); first += size) {
    Values group(values.begin() + static_cast<std::ptrdiff_t>(first),
                 values.begin() + static_cast<std::ptrdiff_t>(first + size));
    std::sort(group.rbegin(), group.rend());
    groups.push_back(group[0] + (size > 1 ? group[1] : 0.0));
  }
  Values open(values.size(), -1e30);
  for (const std::size_t g : largest(groups, moe.topk_group)) {
    for (std::size_t e = g * size; e < (g + 1) * size; ++e) open[e] = values[e];
  }
  return largest(open, moe.choices());
}

Values ModelReference::of_pool(const Values& rows) const {
  const std::size_t experts = to_size(model_.moe.num_experts), pool = to_size(model_.moe.pool());
  const std::size_t columns = pool > experts ? experts + 1 : experts;
  Values all;
  for (std::size_t row = 0; row < rows.size() / columns; ++row) {
    for (std::size_t i = 0; i < pool; ++i) all.push_back(rows[row * columns + std::min(i, columns - 1)]);
  }
  return all;
}

// The rule in its plainest form: of each sequence and expert all choices in the order in which they are kept.
std::vector<std::vector<std::size_t>> ModelReference::taken_choices(const std::vector<RoutedToken>& routed) const {
  const MoeConfig& moe = model_.moe;
  const std::size_t experts = to_size(moe.num_experts), length = to_size(sequence_length_);
  struct Choice {
    double weight;
    std::size_t token, expert;
  };
  std::vector<Choice> choices;
  for (std::size_t token = 0; token < routed.size(); ++token) {
    for (std::size_t e : routed[token].chosen) {
      if (e < experts) choices.push_back({routed[token].weight(e, moe.norm_topk_prob), token, e});
    }
  }
  std::vector<std::vector<std::size_t>> taken(experts);
  if (moe.drops() && moe.drop_policy == DropPolicy::probability) {
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Choice& a, const Choice& b) { return a.weight > b.weight; });
  }
  std::map<std::pair<std::size_t, std::size_t>, std::int64_t> full;  // by sequence and expert
  for (const Choice& choice : choices) {
    std::int64_t& count = full[{choice.token / length, choice.expert}];
    if (!moe.drops() || count++ < moe.capacity(sequence_length_)) taken[choice.expert].push_back(choice.token);
  }
  return taken;
}

MoeReference ModelReference::moe(int block, const Values& x, const Values& balanced) const {
  const std::string scope = fmt::format("blocks.{}", block);
  const MoeConfig& moe = model_.moe;
  const std::size_t hidden = to_size(model_.hidden_size), experts = to_size(moe.num_experts);
  const std::size_t pool = to_size(moe.pool());
  const std::size_t tokens = x.size() / hidden;
  const std::size_t length = moe.aux_loss == AuxiliaryLoss::sequence ? to_size(sequence_length_) : tokens;
  const Values normed = norm(x, scope + ".experts.norm.weight");
  Values noisy = normed;
  for (std::size_t i = 0; i < router_noise.size(); ++i) noisy[i] *= router_noise[i];
  const Values logits = of_pool(product_with_transpose(noisy, parameter(scope + ".router.weight"), hidden));

  MoeReference result{x, 0.0, 0.0, std::vector<std::int64_t>(experts, 0)};
  if (moe.shared_expert_intermediate_size > 0) {
    Values shared = swiglu(normed, scope + ".shared_expert");
    if (moe.shared_expert_gate) {
      const Values gate = product_with_transpose(normed, parameter(scope + ".shared_expert_gate.weight"), hidden);
      for (std::size_t i = 0; i < shared.size(); ++i) shared[i] /= 1.0 + std::exp(-gate[i / hidden]);
    }
    add_to(result.y, shared);
  }
  // P / (K S^2), times S and the loss factor. Each sequence, or the microbatch that x is, is a batch of its own, and
  // the mean over all tokens is taken.
  const double balance_factor = moe.router_aux_loss_coef * loss_factor_ * static_cast<double>(pool) /
                                static_cast<double>(to_size(moe.choices()) * length);
  const Values bias = moe.selection_bias ? of_pool(parameter(scope + ".router.selection_bias")) : Values{};
  std::vector<RoutedToken> routed(tokens);
  for (std::size_t sequence = 0; sequence < tokens; sequence += length) {
    Values score_sums(pool, 0.0), counts(pool, 0.0);
    for (std::size_t token = sequence; token < sequence + length; ++token) {
      const std::span<const double> token_logits(logits.data() + token * pool, pool);
      RoutedToken& route = routed[token];
      route.scores = scores(token_logits);
      const double all = std::accumulate(route.scores.begin(), route.scores.end(), 0.0);
      for (std::size_t e = 0; e < pool; ++e) score_sums[e] += route.scores[e] / all;
      result.z_loss += moe.router_z_loss_coef * loss_factor_ * std::pow(log_sum_exp(token_logits), 2);
      route.chosen = choose(route.scores, bias);
      for (std::size_t e : route.chosen) {
        route.chosen_sum += e < experts ? route.scores[e] : 0.0;
        counts[e] += 1.0;
        result.null_choices += e < experts ? 0 : 1;
      }
    }
    if (!balanced.empty()) counts = balanced;
    for (std::size_t e = 0; e < pool; ++e) result.auxiliary_loss += balance_factor * score_sums[e] * counts[e];
  }
  const std::vector<std::vector<std::size_t>> taken = taken_choices(routed);
  for (std::size_t e = 0; e < experts; ++e) {
    result.expert_tokens[e] = std::ssize(taken[e]);
    if (taken[e].empty()) continue;
    Values rows;
    for (std::size_t token : taken[e]) {
      rows.insert(rows.end(), normed.begin() + static_cast<std::ptrdiff_t>(token * hidden),
                  normed.begin() + static_cast<std::ptrdiff_t>((token + 1) * hidden));
    }
    const Values out = swiglu(rows, fmt::format("{}.experts.{}", scope, e));
    for (std::size_t row = 0; row < taken[e].size(); ++row) {
      const std::size_t token = taken[e][row];
      const double weight = moe.routed_scaling_factor * routed[token].weight(e, moe.norm_topk_prob);
      for (std::size_t i = 0; i < hidden; ++i) result.y[token * hidden + i] += weight * out[row * hidden + i];
    }
  }
  return result;
}

Values ModelReference::merge(int block, const Values& x, std::span<const std::int32_t> ids) const {
  const std::string name = fmt::format("blocks.{}.merge", block);
  const std::size_t hidden = to_size(model_.hidden_size);
  Values y = product(norm(x, name + ".hidden.norm.weight"), parameter(name + ".hidden_proj.weight"), hidden);
  add_to(y, product(norm(embedding(ids), name + ".embedding.norm.weight"), parameter(name + ".embedding_proj.weight"),
                    hidden));
  return y;
}

double ModelReference::prediction_loss(int block, const Values& x, std::span<const std::int32_t> targets) const {
  return cross_entropy(norm(x, fmt::format("blocks.{}.predict.norm.weight", block)), targets);
}

double ModelReference::head(const Values& x, std::span<const std::int32_t> targets) const {
  return cross_entropy(norm(x, "head.norm.weight"), targets);
}

double ModelReference::cross_entropy(const Values& normed, std::span<const std::int32_t> targets) const {
  const Values& weight = parameter(model_.tie_word_embeddings ? "embedding.weight" : "head.weight");
  const Values logits = product_with_transpose(normed, weight, to_size(model_.hidden_size));
  const std::size_t vocabulary = to_size(model_.vocab_size);
  double loss = 0.0;
  for (std::size_t token = 0; token < targets.size(); ++token) {
    const std::span<const double> row(logits.data() + token * vocabulary, vocabulary);
    if (targets[token] < 0) continue;
    loss += log_sum_exp(row) - row[to_size(targets[token])];
  }
  return loss;
}

double ModelReference::objective(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const {
  Values x = embedding(tokens);
  double auxiliary = 0.0, predictions = 0.0;
  for (int b = 0; b < model_.layers(); ++b) x = block(b, x, auxiliary);
  const double loss = head(x, targets);
  for (int k = 0; k < model_.mtp_depth; ++k) {
    // Position i merges the (k + 1)-th id behind it, and predicts the one behind that.
    std::vector<std::int32_t> ids(tokens.size(), 0), predicted(tokens.size(), -1);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i % to_size(sequence_length_) + to_size(k) + 1 >= to_size(sequence_length_)) continue;
      ids[i] = tokens[i + to_size(k) + 1];
      predicted[i] = targets[i + to_size(k) + 1];
    }
    x = block(model_.layers() + k, merge(model_.layers() + k, x, ids), auxiliary);
    predictions += prediction_loss(model_.layers() + k, x, predicted);
  }
  return loss_factor_ * (loss + model_.mtp_loss_coef * predictions / std::max(model_.mtp_depth, 1)) + auxiliary;
}

Values ModelReference::block(int block, const Values& x, double& auxiliary) const {
  const ModelBlock& kind = model_.blocks[to_size(block)];
  Values mixed = kind.mixer == Mixer::attention     ? attention(block, x)
                 : kind.mixer == Mixer::state_space ? state_space(block, x)
                                                    : x;
  if (kind == BlockKind::none) return mixed;
  if (kind == BlockKind::dense) return mlp(block, mixed);
  MoeReference output = moe(block, mixed);
  auxiliary += output.auxiliary_loss + output.z_loss;
  return std::move(output.y);
}

}  // namespace weft
