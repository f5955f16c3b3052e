#include "tests/trainer/huggingface_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
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
    const FolderMatrix& table = tensor("model.embed_tokens");
    const auto hidden = table.values.size() / static_cast<std::size_t>(table.shape[0]);
    Rows x;
    for (const std::int32_t token : tokens) {
      const auto begin = table.values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * hidden);
      x.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(hidden));
    }
    for (int layer = 0; layer < config_["num_hidden_layers"]; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer);
      const Rows attended = attention(name, x);
      for (std::size_t t = 0; t < x.size(); ++t) {
        add(x[t], attended[t]);
        add(x[t], feed_forward(layer, name, normalise(x[t], tensor(name + ".post_attention_layernorm"), eps())));
      }
    }
    std::vector<double> result;
    const FolderMatrix& head = config_["tie_word_embeddings"] ? table : tensor("lm_head");
    for (const Row& row : x) {
      for (const double p : softmax(multiply(head, normalise(row, tensor("model.norm"), eps())))) {
        result.push_back(std::log(p));
      }
    }
    return result;
  }

 private:
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

  Row swiglu(const std::string& gate, const std::string& up, const std::string& down, const Row& x) const {
    Row inner = multiply(tensor(gate), x);
    const Row factor = multiply(tensor(up), x);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] = inner[i] / (1.0 + std::exp(-inner[i])) * factor[i];
    return multiply(tensor(down), inner);
  }

  Row feed_forward(int layer, const std::string& name, const Row& x) const {
    const std::string type = config_["model_type"], mlp = name + ".mlp";
    const bool mixtral = type == "mixtral";
    bool sparse = mixtral;
    if (type == "qwen3_moe") {
      const std::set<int> dense = config_["mlp_only_layers"];
      sparse = !dense.contains(layer) && config_["num_experts"] > 0 &&
               (layer + 1) % config_["decoder_sparse_step"].get<int>() == 0;
    }
    if (!sparse) return swiglu(mlp + ".gate_proj", mlp + ".up_proj", mlp + ".down_proj", x);
    const std::string block = mixtral ? name + ".block_sparse_moe" : mlp;
    const Row probabilities = softmax(multiply(tensor(block + ".gate"), x));
    std::vector<std::size_t> order(probabilities.size());
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = e;
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return probabilities[a] > probabilities[b]; });
    order.resize(config_["num_experts_per_tok"].get<std::size_t>());
    double sum = 0.0;
    for (const std::size_t e : order) sum += probabilities[e];
    const bool renormalise = mixtral || config_["norm_topk_prob"].get<bool>();
    Row y(x.size(), 0.0);
    for (const std::size_t e : order) {
      const std::string expert = block + ".experts." + std::to_string(e);
      const Row out = mixtral ? swiglu(expert + ".w1", expert + ".w3", expert + ".w2", x)
                              : swiglu(expert + ".gate_proj", expert + ".up_proj", expert + ".down_proj", x);
      add(y, out, renormalise ? probabilities[e] / sum : probabilities[e]);
    }
    return y;
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

}  // namespace weft::huggingface_test
