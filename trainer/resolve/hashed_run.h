// The texts behind the hashes of a run (trainer/rank/run_hashes.h). Every process of a run has the same ones.
#pragma once

#include <string>

#include "trainer/rank/run_hashes.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

// The configuration as config.toml has it, with inherited values written out. It is without run.name, and without
// the places run.directory, checkpoint.directory and data.index_cache: runs that differ in these alone do the same.
std::string hashed_configuration(const Config& config);
// A line for each pipeline rank, as `weft program --format csv` writes it.
std::string hashed_program(const Program& program);
// For each kind of group its size and the step between its ranks. For each stage its units with group, shards and
// parameters, as the stage's first rank holds them.
std::string hashed_layout(const ResolvedRun& run);

// `config`: the configuration that `run` was resolved from; `program`: its step, as any rank compiled it.
RunHashes hashes_of(const Config& config, const ResolvedRun& run, const Program& program);

}  // namespace weft
