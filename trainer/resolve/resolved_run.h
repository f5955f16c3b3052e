// A run as it will be: its configuration together with what is solved from it. The two cannot be parted, so a solution
// never serves another configuration: whoever changes a setting resolves again.
#pragma once

#include <optional>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/timing/plan.h"
#include "trainer/config/config.h"
#include "trainer/layout/stage_layout.h"

namespace weft {

class ResolvedRun {
 public:
  // Makes the choices that the configuration leaves open (chosen_timing.h), deals blocks to stages and, under residency
  // "auto", solves for when units are gathered, dropped and reduced. A pure
  // function of the configuration: every rank and process comes to the same. Throws Error (request) for a layout or
  // schedule that is none, and naming the smallest memory budget that does where the one given is too small.
  explicit ResolvedRun(const Config& config);

  // With the choices made: what the run executes. Another setting is tried from what was given, not from this.
  const Config& config() const { return config_; }
  const Mesh& mesh() const { return mesh_; }
  const std::vector<StageBlocks>& layout() const { return layout_; }
  // Of residency "auto" alone.
  const std::optional<TimingPlan>& timing() const { return timing_; }

 private:
  void solve();

  Config config_;
  Mesh mesh_;
  std::vector<StageBlocks> layout_;
  std::optional<TimingPlan> timing_;
};

// The compiled step with sizes as seen from a rank's coordinates, checked. Throws Error when the configuration cannot
// be compiled.
Program step_program(const ResolvedRun& run, const Coordinates& at);

}  // namespace weft
