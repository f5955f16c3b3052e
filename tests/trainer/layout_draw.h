// Configurations drawn at random, for tests that compare layouts.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "trainer/layout/stage_layout.h"
#include "trainer/resolve/config_rules.h"

namespace weft {

// Draws of one seed are the same on every machine and with every standard library.
class LayoutDraw {
 public:
  explicit LayoutDraw(std::uint64_t seed) : engine_(seed) {}
  template <typename T, typename... More>
  T from(T first, More... more) {
    const std::array<T, 1 + sizeof...(More)> all = {first, static_cast<T>(more)...};
    return all[engine_() % all.size()];
  }
  bool once_in(std::uint64_t many) { return engine_() % many == 0; }
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(bound));
  }

 private:
  std::mt19937_64 engine_;
};

// Blocks of each stage, some without any.
inline std::vector<std::int64_t> any_stages(LayoutDraw& draw, std::int64_t blocks, int stages) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages));
  for (std::int64_t b = 0; b < blocks; ++b) ++counts[static_cast<std::size_t>(draw.below(stages))];
  return counts;
}

// Those blocks in text, with the predictors on any stage behind the last block.
inline std::string with_predictors(const ModelConfig& model, const std::vector<std::int64_t>& counts,
                                   std::uint64_t turn) {
  std::vector<StageBlocks> stages;
  int first = 0;
  for (const std::int64_t count : counts) {
    stages.push_back({first, static_cast<int>(count), stages.empty(), stages.size() + 1 == counts.size()});
    first += static_cast<int>(count);
  }
  std::size_t last = stages.size() - 1;
  while (stages[last].count == 0) --last;
  StageBlocks& predicts = stages[last + turn % (stages.size() - last)];
  if (predicts.count == 0) predicts.first = model.layers();
  predicts.count += model.mtp_depth;
  return to_string(stages, model);
}

// Whether the rules take a configuration of so many ranks at most.
inline bool accepted(const Config& config, int most_ranks) {
  if (config.parallelism.world() > most_ranks || !degree_errors(config.parallelism).empty()) return false;
  const std::int64_t share = config.training.microbatch_size * config.parallelism.data();
  if (config.training.global_batch_size % share != 0) return false;
  for (const ConfigRule& rule : config_rules()) {
    if (!rule.check(config).empty()) return false;
  }
  return true;
}

}  // namespace weft
