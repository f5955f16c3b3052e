// What must hold between schedule, stages and the blocks they hold.
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/pipeline/orders/orders.h"
#include "trainer/config_rules.h"
#include "trainer/stage_layout.h"

namespace weft {
namespace {

using Messages = std::vector<std::string>;

std::string chunks_text(const Schedule& schedule) {
  const int least = schedule.least_chunks, most = schedule.most_chunks;
  if (most == 0) return fmt::format("{} chunks or more a rank", least);
  if (least == most) return least == 1 ? "1 chunk a rank" : fmt::format("{} chunks a rank", least);
  return fmt::format("{} to {} chunks a rank", least, most);
}

Messages chunk_faults(const Config& config) {
  const auto known = schedules();
  const auto row =
      std::find_if(known.begin(), known.end(), [&](const Schedule& s) { return s.name == config.pipeline.schedule; });
  const int chunks = config.pipeline.chunks;
  if (row == known.end() || row->takes_chunks(chunks)) return {};
  std::vector<std::string> others;
  for (const Schedule& schedule : known) {
    if (schedule.takes_chunks(chunks)) others.push_back(fmt::format("\"{}\"", schedule.name));
  }
  return {fmt::format("schedule \"{}\" runs {}, not {}; schedules that run {} are {}", row->name, chunks_text(*row),
                      chunks, chunks, fmt::join(others, ", "))};
}

}  // namespace

std::vector<ConfigRule> pipeline_rules() {
  return {
      {{"pipeline.chunks", "pipeline.schedule"}, chunk_faults},
      {{"pipeline.layout", "pipeline.chunks", "parallelism.pipeline", "model.layers"}, layout_faults},
      {{"pipeline.first_stage_blocks", "pipeline.last_stage_blocks", "pipeline.layout", "pipeline.chunks",
        "parallelism.pipeline", "model.layers"},
       end_stage_faults},
  };
}

}  // namespace weft
