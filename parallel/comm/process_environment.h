// Which rank this process is, as the program that started it says in environment variables. Read in this order:
// torchrun, Open MPI, MPICH and its relatives (PMI), Slurm.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace weft {

// A process among all of the run, and among those on its machine.
struct ProcessPlace {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;
  bool operator==(const ProcessPlace&) const = default;
};

// The value of an environment variable, or nothing.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> environment_variable(const char* name);

// Nothing: no launcher has left its variables. Throws Error (request) that shows what was found when a launcher's
// variables are incomplete or impossible, or those of two launchers disagree. Slurm may disagree with the others: it
// starts one torchrun or mpirun a machine, which then start the ranks.
std::optional<ProcessPlace> find_process_place(const EnvironmentLookup& lookup = environment_variable);

// Variables that say that this process is one of several, each of which would run whatever it was given: "RANK=1 and
// WORLD_SIZE=2 of torchrun". Nothing where no launcher has left its variables or it started one process alone. Slurm
// describes the script of a batch job as task 0 of all its tasks: of task 0, only the variables of a job step count.
std::optional<std::string> find_siblings(const EnvironmentLookup& lookup = environment_variable);

// What tells this run from others: TORCHELASTIC_RUN_ID or the number of Slurm's job and step, else "weft".
std::string run_identity(const EnvironmentLookup& lookup = environment_variable);

}  // namespace weft
