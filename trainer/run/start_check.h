// Checks before the first step of a run, without its ranks and their devices. `weft check` and `weft train` use the
// same checks, and the same judgement of the memory that [hardware] gives (tools/run/command_train.cpp): both refuse a
// run or neither does. Properties of the machine, such as a GPU and its memory, are checked only by the run itself.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/program/program.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

struct CheckedStart {
  Program program;        // of rank 0
  RoutedBytes predicted;  // of the fullest rank
  std::string reading;    // what the run reads of its text (reading_text in data.h); set by check_start()
};
// Checks the step alone: compiles it and does a dry run on the first rank of each pipeline coordinate.
CheckedStart check_step(const Config& config);

// Checks data files, run.directory and the starting point (checkpoint/start.h), then the step as check_step() does.
// Throws Error (request) with all faults of the files, and with the first fault of the step.
CheckedStart check_start(const ResolvedConfig& resolved);

// The faults of files and folders that a refused configuration names (read_values), a text each: of those that cannot
// be opened, whatever the model is. None of a configuration for planning, without data.train.
std::vector<std::string> named_faults(const ResolvedConfig& resolved);

// A sentence if what a hierarchical dispatch takes for a node (parallelism.expert_nodes) is none of the hardware: other
// numbers of ranks. Nothing on a CPU without hardware.ranks_per_node, where all ranks are threads of one machine.
std::optional<std::string> misplaced_expert_nodes(const Config& config);

// Sentences on settings of a run that train, but hardly as meant. No weights are left, documents are masked that no
// file marks, or nothing balances the experts. Or ranks on the CPU are many times the `cores` of the machine.
std::vector<std::string> start_warnings(const Config& config, std::size_t cores);

}  // namespace weft
