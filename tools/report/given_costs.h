// Costs of actions, as --costs and --hardware of a command give them:
//
//   --costs "forward=1 gather=0.5 ..."   words, in units of time (costs_from_words)
//   --costs FILE.toml                    a table (trainer/costs/cost_table.h), in seconds
//   --costs RUN                          the directory of a run with traces: measured times of its actions
//   --hardware NAME                      a model (trainer/costs/hardware.h), like --hardware.name=NAME
//
// Without either option, pipeline.costs decides: a table, or a model of the hardware in [hardware]. Residency "auto" is
// always solved with the costs of pipeline.costs, as in the run.
//
// A source is read once and may be asked for any number of variants.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "parallel/pipeline/simulation/simulate.h"
#include "trainer/config/config.h"
#include "trainer/costs/cost_table.h"
#include "trainer/costs/hardware.h"
#include "trainer/planning/published.h"

namespace weft {

// Costs of one program, and the channels of its lanes.
struct StepCosts {
  ProgramCosts costs;
  LaneChannels channels = LaneChannels::own();
  bool unit_time = false;  // seconds are units of time
};

// Costs that are the same for every rank; `command` begins error messages. `words` are separated by blanks. forward=,
// backward_input= and backward_weight= (each 1 by default) are costs of all stages of a rank together, shared evenly
// among stages and their segments. gather= and reduce= are costs of all units of a rank once, shared by bytes.
// host_copy= is that of what a rank moves to host memory for a microbatch. transfer= is that of a message, rows= that
// of an exchange of rows between experts. These, norm= and step= are 0 by default. Throws Error (request).
ProgramCosts costs_from_words(const std::string& command, const Program& program, const std::string& words);

// The costs of a run's actions by its traces (measured_costs.h), by name, so that other layouts of its model find their
// pieces. Stages that were not traced take the median of the others. Throws Error (request) if there are no traces.
CostTable table_of_run(const std::filesystem::path& directory, const Config& config);

class CostSource {
 public:
  // Both may be empty. Throws Error (request) if both are given, or if a source cannot be read; `command` begins
  // messages.
  CostSource(const std::string& command, const std::string& costs, const std::string& hardware);

  // `program` is that of the configuration's first rank. Throws Error (request) if the source lacks costs for the
  // program.
  StepCosts costs_of(const Config& config, const Mesh& mesh, const Program& program) const;
  // "modelled for h200", "measured in runs/x", for a heading.
  std::string text(const Config& config) const;
  Certainty certainty(const Config& config) const;
  bool unit_time() const { return !words_.empty(); }

 private:
  Hardware hardware_for(const Config& config) const;

  std::string command_, words_, file_, hardware_;
  std::optional<CostTable> table_;
  std::optional<Config> measured_;  // the run that the table was measured in
};

}  // namespace weft
