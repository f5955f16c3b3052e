#include "tests/trainer/huggingface_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <stdexcept>

namespace weft::huggingface_test {
namespace {

using SortedJson = nlohmann::json;
using Tensors = std::map<std::string, FolderMatrix>;
using Row = std::vector<double>;
using Rows = std::vector<Row>;  // by position

double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

double element(const char* at, const std::string& dtype) {
  if (dtype == "F32") {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (dtype == "F16") return half_value(bits);
  if (dtype == "BF16") return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  throw std::runtime_error("dtype " + dtype);
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// W x, W [out, in].
Row multiply(const FolderMatrix& w, const Row& x) {
  const auto out = static_cast<std::size_t>(w.shape.at(0)), in = static_cast<std::size_t>(w.shape.at(1));
  if (in != x.size()) throw std::runtime_error("a matrix does not fit what it is applied to");
  Row y(out, 0.0);
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t i = 0; i < in; ++i) y[o] += w.values[o * in + i] * x[i];
  }
  return y;
}

Row normalise(std::span<const double> x, const FolderMatrix& weight, double eps) {
  double squares = 0.0;
  for (double value : x) squares += value * value;
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Row y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(weight.values.at(i) * (x[i] * inverse));
  return y;
}

Row softmax(Row x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0.0;
  for (double& value : x) sum += value = std::exp(value - largest);
  for (double& value : x) value /= sum;
  return x;
}

void add(Row& to, const Row& x, double factor = 1.0) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * x[i];
}

class Model {
 public:
  Model(const SortedJson& config, const Tensors& tensors) : config_(config), tensors_(tensors) {}

  std::vector<double> run(std::span<const std::int32_t> tokens) const {
    const FolderMatrix& head = tensor(config_["tie_word_embeddings"] ? "model.embed_tokens" : "lm_head");
    return log_probabilities(hidden_states(tokens), tensor("model.norm"), head);
  }

  // DeepSeek-V3's: the embedding first, then the hidden state; what it has of the model it has as copies.
  std::vector<double> predict(std::span<const std::int32_t> tokens, std::span<const std::int32_t> following) const {
    const int layer = config_["num_hidden_layers"];
    const std::string name = "model.layers." + std::to_string(layer);
    Rows x = hidden_states(tokens);
    const Rows next = embeddings(tensor(name + ".embed_tokens"), following);
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row both = normalise(next[t], tensor(name + ".enorm"), eps());
      const Row hidden = normalise(x[t], tensor(name + ".hnorm"), eps());
      both.insert(both.end(), hidden.begin(), hidden.end());
      x[t] = multiply(tensor(name + ".eh_proj"), both);
    }
    run_layer(layer, x);
    return log_probabilities(x, tensor(name + ".shared_head.norm"), tensor(name + ".shared_head.head"));
  }

 private:
  static Rows embeddings(const FolderMatrix& table, std::span<const std::int32_t> tokens) {
    const auto hidden = table.values.size() / static_cast<std::size_t>(table.shape[0]);
    Rows x;
    for (const std::int32_t token : tokens) {
      const auto begin = table.values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * hidden);
      x.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(hidden));
    }
    return x;
  }
  void run_layer(int layer, Rows& x) const {
    const std::string name = "model.layers." + std::to_string(layer);
    const bool mamba = config_["model_type"] == "granitemoehybrid" &&
                       config_["layer_types"][static_cast<std::size_t>(layer)] == "mamba";
    const Rows mixed = mamba ? state_space(name, x) : attention(name, x);
    for (std::size_t t = 0; t < x.size(); ++t) {
      add(x[t], mixed[t]);
      add(x[t], feed_forward(layer, name, normalise(x[t], tensor(name + ".post_attention_layernorm"), eps())));
    }
  }
  Rows hidden_states(std::span<const std::int32_t> tokens) const {
    Rows x = embeddings(tensor("model.embed_tokens"), tokens);
    for (int layer = 0; layer < config_["num_hidden_layers"]; ++layer) run_layer(layer, x);
    return x;
  }
  std::vector<double> log_probabilities(const Rows& x, const FolderMatrix& norm, const FolderMatrix& head) const {
    std::vector<double> result;
    for (const Row& row : x) {
      for (const double p : softmax(multiply(head, normalise(row, norm, eps())))) result.push_back(std::log(p));
    }
    return result;
  }

  const FolderMatrix& tensor(const std::string& name) const { return tensors_.at(name + ".weight"); }
  double eps() const { return config_["rms_norm_eps"]; }

  // x cos + rotate_half(x) sin, with rotate_half(x) = (-second half, first half).
  Row turn(const Row& x, std::size_t position) const {
    const std::size_t d = x.size(), half = d / 2;
    Row y(d);
    for (std::size_t i = 0; i < d; ++i) {
      const double exponent = -2.0 * static_cast<double>(i % half) / static_cast<double>(d);
      const double angle = static_cast<double>(position) * std::pow(config_["rope_theta"].get<double>(), exponent);
      const double rotated = i < half ? -x[i + half] : x[i - half];
      y[i] = x[i] * std::cos(angle) + rotated * std::sin(angle);
    }
    return y;
  }

  // [position][head], normalised and turned where the architecture does that.
  std::vector<Rows> heads(const std::string& name, const char* which, const Rows& x) const {
    const std::size_t d = config_["head_dim"];
    const std::string norm = name + ".self_attn." + which + "_norm";
    std::vector<Rows> result;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Row all = multiply(tensor(name + ".self_attn." + which + "_proj"), x[t]);
      Rows& at = result.emplace_back();
      for (std::size_t begin = 0; begin < all.size(); begin += d) {
        Row head(all.begin() + static_cast<std::ptrdiff_t>(begin),
                 all.begin() + static_cast<std::ptrdiff_t>(begin + d));
        if (tensors_.contains(norm + ".weight")) head = normalise(head, tensor(norm), eps());
        at.push_back(*which == 'v' ? head : turn(head, t));
      }
    }
    return result;
  }

  // Of all blocks; 0 without one.
  std::size_t window() const {
    const bool used = config_.value("use_sliding_window", config_["model_type"] == "mixtral");
    const auto found = config_.find("sliding_window");
    if (!used || found == config_.end() || found->is_null()) return 0;
    if (config_.value("max_window_layers", 0) != 0) throw std::runtime_error("the window is not that of all blocks");
    return *found;
  }

  Rows attention(const std::string& name, const Rows& x) const {
    Rows normed, out;
    for (const Row& row : x) normed.push_back(normalise(row, tensor(name + ".input_layernorm"), eps()));
    const auto q = heads(name, "q", normed), k = heads(name, "k", normed), v = heads(name, "v", normed);
    const std::size_t repeats = q[0].size() / k[0].size();
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row all;
      for (std::size_t h = 0; h < q[t].size(); ++h) {
        const Row& query = q[t][h];
        Row scores;
        // The mask of transformers: a key is seen where it is above the query minus the window.
        const std::size_t first = window() > 0 && t + 1 > window() ? t + 1 - window() : 0;
        for (std::size_t s = first; s <= t; ++s) {
          double dot = 0.0;
          for (std::size_t i = 0; i < query.size(); ++i) dot += query[i] * k[s][h / repeats][i];
          scores.push_back(dot / std::sqrt(static_cast<double>(query.size())));
        }
        const Row weights = softmax(scores);
        Row head(query.size(), 0.0);
        for (std::size_t s = first; s <= t; ++s) add(head, v[s][h / repeats], weights[s - first]);
        all.insert(all.end(), head.begin(), head.end());
      }
      out.push_back(multiply(tensor(name + ".self_attn.o_proj"), all));
    }
    return out;
  }

  // GraniteMoeHybridMambaLayer, token after token.
  Rows state_space(const std::string& name, const Rows& x) const {
    const std::string mamba = name + ".mamba.";
    const std::size_t heads = config_["mamba_n_heads"], width = config_["mamba_d_head"],
                      states = config_["mamba_d_state"], taps = config_["mamba_d_conv"], inner = heads * width,
                      channels = inner + 2 * states;
    const std::vector<double>&filter = tensors_.at(mamba + "conv1d.weight").values,
          &bias = tensors_.at(mamba + "conv1d.bias").values;
    std::vector<Row> projected;
    std::vector<double> state(inner * states, 0.0);
    Rows out;
    for (const Row& row : x) {
      projected.push_back(
          multiply(tensor(mamba + "in_proj"), normalise(row, tensor(name + ".input_layernorm"), eps())));
      const std::size_t t = projected.size() - 1;
      Row mixed(channels);
      for (std::size_t c = 0; c < channels; ++c) {
        double sum = bias[c];
        for (std::size_t k = 0; k < taps && k <= t; ++k)
          sum += filter[c * taps + taps - 1 - k] * projected[t - k][inner + c];
        mixed[c] = silu(sum);
      }
      Row y(inner);
      for (std::size_t h = 0; h < heads; ++h) {
        const double step =
            std::log1p(std::exp(projected[t][inner + channels + h] + tensors_.at(mamba + "dt_bias").values[h]));
        const double decay = std::exp(-std::exp(tensors_.at(mamba + "A_log").values[h]) * step);
        for (std::size_t i = h * width; i < (h + 1) * width; ++i) {
          y[i] = tensors_.at(mamba + "D").values[h] * mixed[i];
          for (std::size_t n = 0; n < states; ++n) {
            double& of = state[i * states + n];
            of = decay * of + step * mixed[inner + n] * mixed[i];
            y[i] += of * mixed[inner + states + n];
          }
        }
      }
      for (std::size_t i = 0; i < inner; ++i) y[i] *= silu(projected[t][i]);
      out.push_back(multiply(tensor(mamba + "out_proj"), normalise(y, tensor(mamba + "norm"), eps())));
    }
    return out;
  }
  static double silu(double value) { return value / (1.0 + std::exp(-value)); }

  // `in` has rows of the gate, then of the other factor; both tensors may be the slices of one expert.
  Row stacked_swiglu(const FolderMatrix& in, const FolderMatrix& down, const Row& x) const {
    const Row both = multiply(in, x);
    Row inner(both.size() / 2);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] = silu(both[i]) * both[i + inner.size()];
    return multiply(down, inner);
  }
  static FolderMatrix slice(const FolderMatrix& all, std::size_t expert) {
    const std::size_t size = all.values.size() / static_cast<std::size_t>(all.shape.at(0));
    const auto begin = all.values.begin() + static_cast<std::ptrdiff_t>(expert * size);
    return {{all.shape.at(1), all.shape.at(2)}, all.dtype, {begin, begin + static_cast<std::ptrdiff_t>(size)}};
  }
  Row granite(const std::string& name, const Row& x) const {
    Row y = stacked_swiglu(tensor(name + ".shared_mlp.input_linear"), tensor(name + ".shared_mlp.output_linear"), x);
    if (config_["num_local_experts"] == 0) return y;
    const std::string block = name + ".block_sparse_moe.";
    const Row logits = multiply(tensor(block + "router.layer"), x);
    std::vector<std::size_t> order = descending(logits);
    order.resize(config_["num_experts_per_tok"].get<std::size_t>());
    Row chosen;
    for (const std::size_t e : order) chosen.push_back(logits[e]);
    chosen = softmax(chosen);
    for (std::size_t k = 0; k < order.size(); ++k) {
      add(y,
          stacked_swiglu(slice(tensor(block + "input_linear"), order[k]),
                         slice(tensor(block + "output_linear"), order[k]), x),
          chosen[k]);
    }
    return y;
  }

  Row swiglu(const std::string& gate, const std::string& up, const std::string& down, const Row& x) const {
    Row inner = multiply(tensor(gate), x);
    const Row factor = multiply(tensor(up), x);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] = inner[i] / (1.0 + std::exp(-inner[i])) * factor[i];
    return multiply(tensor(down), inner);
  }

  Row feed_forward(int layer, const std::string& name, const Row& x) const {
    const std::string type = config_["model_type"], mlp = name + ".mlp";
    if (type == "granitemoehybrid") return granite(name, x);
    const bool mixtral = type == "mixtral";
    bool sparse = mixtral;
    if (type == "glm4_moe") sparse = layer >= config_["first_k_dense_replace"];
    if (type == "qwen3_moe" || type == "qwen2_moe") {
      const std::set<int> dense = config_["mlp_only_layers"];
      sparse = !dense.contains(layer) && config_["num_experts"] > 0 &&
               (layer + 1) % config_["decoder_sparse_step"].get<int>() == 0;
    }
    if (!sparse) return swiglu(mlp + ".gate_proj", mlp + ".up_proj", mlp + ".down_proj", x);
    const std::string block = mixtral ? name + ".block_sparse_moe" : mlp;
    const Row logits = multiply(tensor(block + ".gate"), x);
    const bool glm = type == "glm4_moe";
    const Row probabilities = glm ? sigmoid(logits) : softmax(logits);
    const Row chosen_by = glm ? biased_in_groups(block, probabilities) : probabilities;
    std::vector<std::size_t> order = descending(chosen_by);
    order.resize(config_["num_experts_per_tok"].get<std::size_t>());
    double sum = 0.0;
    for (const std::size_t e : order) sum += probabilities[e];
    const bool renormalise = mixtral || config_["norm_topk_prob"].get<bool>();
    const double scale = config_.value("routed_scaling_factor", 1.0);
    Row y(x.size(), 0.0);
    if (glm) {
      y = swiglu(mlp + ".shared_experts.gate_proj", mlp + ".shared_experts.up_proj", mlp + ".shared_experts.down_proj",
                 x);
    } else if (type == "qwen2_moe") {
      const std::string shared = mlp + ".shared_expert";
      add(y, swiglu(shared + ".gate_proj", shared + ".up_proj", shared + ".down_proj", x),
          sigmoid(multiply(tensor(mlp + ".shared_expert_gate"), x)).at(0));
    }
    for (const std::size_t e : order) {
      const std::string expert = block + ".experts." + std::to_string(e);
      const Row out = mixtral ? swiglu(expert + ".w1", expert + ".w3", expert + ".w2", x)
                              : swiglu(expert + ".gate_proj", expert + ".up_proj", expert + ".down_proj", x);
      add(y, out, scale * (renormalise ? probabilities[e] / sum : probabilities[e]));
    }
    return y;
  }

  static std::vector<std::size_t> descending(const Row& values) {
    std::vector<std::size_t> order(values.size());
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = e;
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
    return order;
  }
  static Row sigmoid(Row x) {
    for (double& value : x) value = 1.0 / (1.0 + std::exp(-value));
    return x;
  }
  // Scores with the correction; those of groups outside the chosen ones are below all. A group counts as its two best.
  Row biased_in_groups(const std::string& block, Row scores) const {
    add(scores, tensors_.at(block + ".gate.e_score_correction_bias").values);
    const std::size_t groups = config_["n_group"], size = scores.size() / groups;
    Row of_group;
    for (std::size_t g = 0; g < groups; ++g) {
      Row inside(scores.begin() + static_cast<std::ptrdiff_t>(g * size),
                 scores.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::ranges::sort(inside, std::greater());
      of_group.push_back(inside.at(0) + inside.at(1));
    }
    const auto order = descending(of_group);
    for (std::size_t g = config_["topk_group"].get<std::size_t>(); g < groups; ++g) {
      for (std::size_t e = 0; e < size; ++e) scores[order[g] * size + e] = -1e300;
    }
    return scores;
  }

  const SortedJson& config_;
  const Tensors& tensors_;
};

}  // namespace

Tensors read_tensors(const std::filesystem::path& folder) {
  Tensors tensors;
  const SortedJson index = SortedJson::parse(bytes_of(folder / "model.safetensors.index.json"));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) names.insert(file.get<std::string>());
  for (const std::string& name : names) {
    const std::string bytes = bytes_of(folder / name);
    std::uint64_t length;
    std::memcpy(&length, bytes.data(), 8);
    const SortedJson header = SortedJson::parse(bytes.substr(8, length));
    for (const auto& [tensor, entry] : header.items()) {
      if (tensor == "__metadata__") continue;
      FolderMatrix& matrix = tensors[tensor];
      matrix.shape = entry["shape"].get<std::vector<std::int64_t>>();
      matrix.dtype = entry["dtype"];
      const std::size_t size = matrix.dtype == "F32" ? 4 : 2;
      const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      for (std::size_t at = begin; at < end; at += size) {
        matrix.values.push_back(element(bytes.data() + 8 + length + at, matrix.dtype));
      }
    }
  }
  return tensors;
}

void write_tensors(const std::filesystem::path& file, const Tensors& tensors) {
  SortedJson header = SortedJson::object();
  std::string data;
  for (const auto& [name, matrix] : tensors) {
    const std::size_t begin = data.size();
    for (const double value : matrix.values) {
      const auto narrow = static_cast<float>(value);
      data.append(reinterpret_cast<const char*>(&narrow), 4);
    }
    header[name] = {{"dtype", "F32"}, {"shape", matrix.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream(file, std::ios::binary) << std::string(reinterpret_cast<const char*>(&length), 8) << text << data;
}

std::vector<double> log_probabilities(const SortedJson& config, const Tensors& tensors,
                                      std::span<const std::int32_t> tokens) {
  return Model(config, tensors).run(tokens);
}

std::vector<double> predictor_log_probabilities(const SortedJson& config, const Tensors& tensors,
                                                std::span<const std::int32_t> tokens,
                                                std::span<const std::int32_t> following) {
  return Model(config, tensors).predict(tokens, following);
}

}  // namespace weft::huggingface_test
