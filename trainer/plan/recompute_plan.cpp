#include "trainer/plan/recompute_plan.h"

namespace weft {

std::vector<KeptBySegment> kept_by_segments(const Config& config, const PlannedBoundary& boundary,
                                            const PlannedStage& stage) {
  std::vector<KeptBySegment> kept;
  for (std::size_t s = 0; s < stage.segments.size(); ++s) {
    const Segment& segment = *stage.segments[s];
    if (config.training.recompute != Recompute::full || !segment.recomputes_forward()) {
      kept.push_back({{}, segment.activation_bytes()});
      continue;
    }
    const bool begins = s == 0 || !kept.back().region || stage.segments[s - 1]->scope() != segment.scope();
    kept.push_back({begins ? static_cast<int>(s) : *kept.back().region,
                    (begins ? boundary.bytes() : 0) + segment.remembered_bytes()});
  }
  return kept;
}

void add_regions(const std::vector<KeptBySegment>& kept, int first_segment, std::span<ProgramSegment> entries) {
  for (std::size_t s = 0; s < kept.size(); ++s) {
    if (!kept[s].region) continue;
    entries[s].region = first_segment + *kept[s].region;
    entries[s].checkpoint_bytes = kept[s].bytes;
    std::vector<ProgramCollective>& collectives = entries[s].collectives;
    for (std::size_t i = 0, count = collectives.size(); i < count; ++i) {
      ProgramCollective again = collectives[i];
      if (again.during != Op::forward || again.once) continue;
      again.during = Op::recompute;
      collectives.push_back(again);
    }
  }
}

}  // namespace weft
