#include "tools/checkpoint/checkpoint_difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::int64_t piece_bytes = 4 << 20;

void compare_progress(const Progress& a, const Progress& b, std::vector<ValueDifference>& found) {
  const auto compare = [&](const char* name, auto first, auto second) {
    if (first != second) found.push_back({name, fmt::format("{}", first), fmt::format("{}", second)});
  };
  compare("step", a.step, b.step);
  compare("samples", a.samples, b.samples);
  compare("tokens", a.tokens, b.tokens);
  compare("good_steps", a.good_steps, b.good_steps);
  compare("good_in_a_row", a.good_in_a_row, b.good_in_a_row);
  compare("loss_scale", a.loss_scale.value_or(1.0), b.loss_scale.value_or(1.0));
}

using Keys = std::map<std::string, std::string>;

void compare_keys(const Keys& a, const Keys& b, std::vector<ValueDifference>& found) {
  const auto value = [](const Keys& keys, const std::string& name) {
    const auto at = keys.find(name);
    return at == keys.end() ? std::nullopt : std::optional(at->second);
  };
  std::set<std::string> names;
  for (const Keys& keys : {a, b}) {
    for (const auto& [name, text] : keys) names.insert(name);
  }
  for (const std::string& name : names) {
    if (value(a, name) != value(b, name)) found.push_back({name, value(a, name), value(b, name)});
  }
}

template <typename T>
double read_as(const std::uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  if constexpr (sizeof(T) == 2) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

// Element `i` as double, which is exact for every dtype.
double element(DType dtype, const std::vector<std::uint8_t>& bytes, std::size_t i) {
  const std::uint8_t* at = bytes.data() + i * static_cast<std::size_t>(size_of(dtype));
  switch (dtype) {
    case DType::float32:
      return read_as<float>(at);
    case DType::bfloat16:
      return read_as<bfloat16>(at);
    case DType::float16:
      return read_as<float16>(at);
    case DType::float64:
      return read_as<double>(at);
    case DType::int32:
      return read_as<std::int32_t>(at);
    default:
      fail("a checkpoint has no {}", name_of(dtype));
  }
}

// Compares two tensors, a few rows at a time.
class Comparison {
 public:
  Comparison(const CheckpointReader& first, const CheckpointReader& second) : first_(first), second_(second) {}

  // Whether dtype and all bytes are equal; if not, `difference` gets the size of the difference.
  bool equal(TensorDifference& difference, const std::function<void(std::int64_t bytes)>& compared) {
    const SavedTensor &a = *difference.first, &b = *difference.second;
    bool equal = a.dtype == b.dtype;
    const std::int64_t most = std::max<std::int64_t>(1, piece_bytes / std::max(a.row_bytes(), b.row_bytes()));
    for (std::int64_t begin = 0; begin < a.rows; begin += most) {
      const std::int64_t rows = std::min(most, a.rows - begin);
      read(first_, a, begin, rows, bytes_a_);
      read(second_, b, begin, rows, bytes_b_);
      compared(std::ssize(bytes_a_) + std::ssize(bytes_b_));
      if (a.dtype == b.dtype && bytes_a_ == bytes_b_) continue;
      equal = false;
      for (std::size_t i = 0; i < static_cast<std::size_t>(rows * a.columns); ++i) add(difference, i);
    }
    return equal;
  }

 private:
  static void read(const CheckpointReader& reader, const SavedTensor& tensor, std::int64_t begin, std::int64_t rows,
                   std::vector<std::uint8_t>& to) {
    to.resize(static_cast<std::size_t>(rows * tensor.row_bytes()));
    reader.read_rows(tensor, begin, rows, to);
  }
  void add(TensorDifference& difference, std::size_t i) const {
    const double a = element(difference.first->dtype, bytes_a_, i), b = element(difference.second->dtype, bytes_b_, i);
    if (a == b || (std::isnan(a) && std::isnan(b))) return;
    ++difference.elements;
    double absolute = std::abs(a - b), relative = absolute / std::max(std::abs(a), std::abs(b));
    if (!std::isfinite(a) || !std::isfinite(b)) absolute = relative = std::numeric_limits<double>::infinity();
    difference.largest_absolute = std::max(difference.largest_absolute, absolute);
    difference.largest_relative = std::max(difference.largest_relative, relative);
  }

  const CheckpointReader &first_, &second_;
  std::vector<std::uint8_t> bytes_a_, bytes_b_;
};

// The tensors of both manifests in one list, by name and state, each with its entry in either manifest.
std::vector<TensorDifference> matched(const Manifest& first, const Manifest& second) {
  std::vector<TensorDifference> all;
  for (const SavedTensor& tensor : first.tensors) {
    all.push_back({tensor.name, tensor.state, &tensor, second.find(tensor.name, tensor.state)});
  }
  for (const SavedTensor& tensor : second.tensors) {
    if (first.find(tensor.name, tensor.state) == nullptr) all.push_back({tensor.name, tensor.state, nullptr, &tensor});
  }
  std::ranges::sort(all, {}, [](const TensorDifference& entry) { return std::tie(entry.name, entry.state); });
  return all;
}

}  // namespace

CheckpointDifference find_difference(const CheckpointReader& first, const CheckpointReader& second,
                                     const CheckedBytes& compared) {
  CheckpointDifference difference;
  compare_progress(first.manifest().progress, second.manifest().progress, difference.progress);
  compare_keys(first.manifest().model, second.manifest().model, difference.keys);
  compare_keys(first.manifest().data, second.manifest().data, difference.keys);
  std::vector<TensorDifference> all = matched(first.manifest(), second.manifest());
  std::int64_t done = 0, of = 0;
  for (const TensorDifference& entry : all) {
    if (entry.comparable()) of += entry.first->rows * (entry.first->row_bytes() + entry.second->row_bytes());
  }
  Comparison comparison(first, second);
  for (TensorDifference& entry : all) {
    const bool equal = entry.comparable() && comparison.equal(entry, [&](std::int64_t bytes) {
      done += bytes;
      if (compared) compared(done, of);
    });
    if (equal) {
      ++difference.equal_tensors;
    } else {
      difference.tensors.push_back(std::move(entry));
    }
  }
  return difference;
}

}  // namespace weft
