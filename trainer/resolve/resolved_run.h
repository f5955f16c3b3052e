// A run as it will be: its configuration together with everything solved from it. The two cannot be separated, so a
// solution never serves another configuration. A changed setting requires a new ResolvedRun.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/timing/plan.h"
#include "trainer/config/config.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/rank/run_hashes.h"

namespace weft {

class ResolvedRun {
 public:
  // Makes the choices that the configuration leaves open (chosen_timing.h), assigns blocks to stages and, under
  // residency "auto", solves when units are gathered, dropped and reduced. A pure function of the configuration: every
  // rank and process gets the same result. Throws Error (request) for an invalid layout or schedule, and for a memory
  // budget that is too small, naming the smallest sufficient one.
  explicit ResolvedRun(const Config& config);

  // The configuration with the choices made, as the run executes it. Try other settings on the original configuration.
  const Config& config() const { return config_; }
  const Mesh& mesh() const { return mesh_; }
  const std::vector<StageBlocks>& layout() const { return layout_; }
  // Only with residency "auto".
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

// A text behind the hashes of a run: the configuration as config.toml has it, with inherited values written out. It is
// without run.name, and without the places run.directory, checkpoint.directory and data.index_cache: runs that differ
// in these alone do the same.
std::string hashed_configuration(const Config& config);
// What the times of a list of actions depend on: values of keys, by key or section as messages name it. Times that were
// measured under one configuration hold for another one with the same work.
std::map<std::string, std::string> timed_work(const Config& config);
std::string work_hash(const Config& config);
// The same in every process. `config`: the configuration that `run` was resolved from; `program`: its step, as any rank
// compiled it.
RunHashes hashes_of(const Config& config, const ResolvedRun& run, const Program& program);

}  // namespace weft
