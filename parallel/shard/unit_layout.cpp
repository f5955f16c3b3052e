#include "parallel/shard/unit_layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool is_vector(const ParameterSpec& parameter) {
  return parameter.columns == 1;
}

}  // namespace

std::int64_t UnitLayout::tensor_replicated_size() const {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters.size() && parameters[i].tensor_replicated; ++i) {
    end = offsets[i] + parameters[i].size();
  }
  return end;
}

std::vector<RowBlock> UnitLayout::rows_of_shard(std::int64_t index) const {
  const std::int64_t begin = index * shard_size, end = begin + shard_size;
  std::vector<RowBlock> blocks;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::int64_t first = std::max(begin, offsets[i]);
    const std::int64_t last = std::min(end, offsets[i] + parameters[i].size());
    if (first >= last) continue;
    const std::int64_t columns = parameters[i].columns;
    require((first - offsets[i]) % columns == 0 && (last - offsets[i]) % columns == 0, "shards cut between rows");
    blocks.push_back({i, (first - offsets[i]) / columns, (last - first) / columns, first - begin});
  }
  return blocks;
}

UnitLayout lay_out_unit(std::span<const ParameterSpec> parameters, std::int64_t shards) {
  UnitLayout layout;
  layout.shards = shards;
  layout.parameters.assign(parameters.begin(), parameters.end());
  // Tensor-replicated parameters come first, so that their partial gradients are contiguous; of each kind vectors
  // before matrices.
  const auto place = [](const ParameterSpec& p) { return (p.tensor_replicated ? 0 : 2) + (is_vector(p) ? 0 : 1); };
  std::ranges::stable_sort(layout.parameters,
                           [&](const ParameterSpec& a, const ParameterSpec& b) { return place(a) < place(b); });

  std::set<std::string> names;
  std::int64_t row_multiple = 1, end = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    if (parameter.columns < 1) fail("parameter {} has no columns", parameter.name);
    if (!names.insert(parameter.name).second) fail("parameter {} is declared twice in one shard unit", parameter.name);
    row_multiple = std::lcm(row_multiple, parameter.columns);
    layout.offsets.push_back(round_up(end, parameter.columns));
    end = layout.offsets.back() + parameter.size();
  }
  layout.shard_size = round_up((end + shards - 1) / shards, row_multiple);
  return layout;
}

}  // namespace weft
