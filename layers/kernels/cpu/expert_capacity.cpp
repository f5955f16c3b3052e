#include "layers/kernels/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace weft::cpu {
namespace {

struct Choice {
  std::int32_t key = 0;  // of the weight, in its order; the sign of a NaN does not count
  std::size_t place = 0;
};

}  // namespace

void limit_choices(KernelContext&, ConstTensorView weights, std::int64_t sequence_length, std::int64_t experts,
                   std::int64_t capacity, DropPolicy policy, TensorView indices) {
  const auto weight = weights.as<float>();
  const auto index = indices.as<std::int32_t>();
  const auto of_sequence = static_cast<std::size_t>(sequence_length * indices.columns());
  const auto room = static_cast<std::size_t>(capacity);
  std::vector<std::vector<Choice>> by_expert(static_cast<std::size_t>(experts));
  for (std::size_t begin = 0; begin < index.size(); begin += of_sequence) {
    for (std::vector<Choice>& choices : by_expert) choices.clear();
    for (std::size_t i = begin; i < begin + of_sequence; ++i) {
      if (index[i] == no_expert) continue;
      const auto key = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(weight[i]) & 0x7fffffffu);
      by_expert[static_cast<std::size_t>(index[i])].push_back({key, i});
    }
    for (std::vector<Choice>& choices : by_expert) {
      if (choices.size() <= room) continue;
      if (policy == DropPolicy::probability) {
        std::ranges::stable_sort(choices, std::ranges::greater{}, &Choice::key);
      }
      for (std::size_t c = room; c < choices.size(); ++c) index[choices[c].place] = no_expert;
    }
  }
}

void spread_slots(KernelContext&, ConstTensorView indices, ConstTensorView counts, std::int64_t rows,
                  TensorView slots) {
  const auto index = indices.as<std::int32_t>(), count = counts.as<std::int32_t>();
  std::vector<std::int64_t> farther(count.size());  // what is added to the slots of an expert
  std::int64_t before = 0;
  for (std::size_t e = 0; e < count.size(); before += count[e], ++e) {
    farther[e] = static_cast<std::int64_t>(e) * rows - before;
  }
  const auto slot = slots.as<std::int32_t>();
  for (std::size_t i = 0; i < slot.size(); ++i) {
    if (slot[i] != no_expert) slot[i] += static_cast<std::int32_t>(farther[static_cast<std::size_t>(index[i])]);
  }
}

void add_dropped(KernelContext&, ConstTensorView indices, ConstTensorView slots, TensorView total) {
  const auto index = indices.as<std::int32_t>();
  const auto slot = slots.as<std::int32_t>();
  std::int64_t dropped = 0;
  for (std::size_t i = 0; i < index.size(); ++i) dropped += index[i] != no_expert && slot[i] == no_expert ? 1 : 0;
  total.as<double>()[0] += static_cast<double>(dropped);
}

const CapacityKernels capacity_kernels = {limit_choices, spread_slots, add_dropped};

}  // namespace weft::cpu
