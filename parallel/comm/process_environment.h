// The rank of this process, from the environment variables of its launcher. Read in this order: torchrun, Open MPI,
// MPICH and its relatives (PMI), Slurm.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

// The place of a process among all processes of the run, and among the processes on its machine.
struct ProcessPlace {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;
  bool operator==(const ProcessPlace&) const = default;
};

// The value of an environment variable, or nothing.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> environment_variable(const char* name);

// Nothing if no launcher has set its variables. Throws Error (request) with the values found if the variables of a
// launcher are incomplete or impossible, or if two launchers disagree. Slurm may disagree with the others: it may start
// one torchrun or mpirun for each machine, which then starts the ranks. If Slurm agrees with a launcher that has no
// variables of the machine, Slurm's are taken.
std::optional<ProcessPlace> find_process_place(const EnvironmentLookup& lookup = environment_variable);

// Variables that show that this process is one of several, each of which would run the same command: "RANK=1 and
// WORLD_SIZE=2 of torchrun". Nothing if no launcher has set its variables, or if it started only one process. Slurm
// describes the script of a batch job as task 0 of all its tasks. So for task 0 only the variables of a job step count.
std::optional<std::string> find_siblings(const EnvironmentLookup& lookup = environment_variable);

// The beginning of the TORCHELASTIC_RUN_ID that `weft launch` gives its ranks.
inline constexpr std::string_view launch_identity = "weft-";
// The identity of this run: TORCHELASTIC_RUN_ID, or the numbers of Slurm's job and step, else "weft".
std::string run_identity(const EnvironmentLookup& lookup = environment_variable);

}  // namespace weft
