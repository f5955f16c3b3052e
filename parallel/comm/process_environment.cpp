#include "parallel/comm/process_environment.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

// The variables of a launcher: rank, number of ranks, and both of them on the machine.
struct Launcher {
  const char* name;
  std::array<const char*, 4> variables;
};

constexpr std::array launchers = {
    Launcher{"torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},
    Launcher{
        "Open MPI",
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    Launcher{"PMI", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},
};

// A launcher's variables in this process.
struct Setting {
  Launcher launcher;
  std::array<std::optional<std::string>, 4> values = {};

  bool present() const { return values[0] || values[1]; }
  bool tells_no_machine() const { return !values[2] && !values[3]; }
  std::string text() const {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const char* name = launcher.variables[i];
      parts.push_back(values[i] ? fmt::format("{}={}", name, *values[i]) : fmt::format("{} not set", name));
    }
    return fmt::format("{} ({})", launcher.name, fmt::join(parts, ", "));
  }
};

Setting setting_of(const Launcher& launcher, const EnvironmentLookup& lookup) {
  Setting setting{launcher};
  std::ranges::transform(launcher.variables, setting.values.begin(), lookup);
  return setting;
}

ProcessPlace place_of(const Setting& setting) {
  std::array<int, 4> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!setting.values[i]) {
      fail_request("the variables of {} are incomplete: set {}, or none of them", setting.text(),
                   setting.launcher.variables[i]);
    }
    const auto number = parsed_number<int>(*setting.values[i]);
    if (!number)
      fail_request("{} is not a whole number in the variables of {}", setting.launcher.variables[i], setting.text());
    numbers[i] = *number;
  }
  const ProcessPlace place{numbers[0], numbers[1], numbers[2], numbers[3]};
  const bool possible = place.rank >= 0 && place.rank < place.world && place.local_rank >= 0 &&
                        place.local_rank < place.local_world && place.local_world <= place.world &&
                        place.local_rank <= place.rank;
  if (!possible) {
    fail_request(
        "the variables of {} contradict each other: ranks count from 0 and stay below the number of ranks; a machine "
        "has no more ranks than the run",
        setting.text());
  }
  return place;
}

// Number of tasks on machine `node` in Slurm's notation: "4(x2),3" means 4, 4, 3.
std::optional<int> tasks_on_node(const std::string& text, int node) {
  for (const std::string_view entry : parts_between(text, ',')) {
    const std::size_t times = entry.find("(x");
    const auto tasks = parsed_number<int>(entry.substr(0, times));
    const auto nodes = times == std::string::npos
                           ? std::optional(1)
                           : parsed_number<int>(entry.substr(times + 2, entry.size() - times - 3));
    if (!tasks || !nodes) return std::nullopt;
    if (node < *nodes) return tasks;
    node -= *nodes;
  }
  return std::nullopt;
}

Setting slurm_setting(const EnvironmentLookup& lookup) {
  Setting setting = setting_of(
      {"Slurm", {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE at SLURM_NODEID"}},
      lookup);
  setting.values[3].reset();
  auto tasks = lookup("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks) tasks = lookup("SLURM_TASKS_PER_NODE");
  const auto node = parsed_number<int>(lookup("SLURM_NODEID").value_or("0"));
  if (tasks && node) {
    if (const auto count = tasks_on_node(*tasks, *node)) setting.values[3] = std::to_string(*count);
  }
  return setting;
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<ProcessPlace> find_process_place(const EnvironmentLookup& lookup) {
  std::optional<ProcessPlace> found;
  std::string found_in;
  const Setting slurm = slurm_setting(lookup);
  for (const Launcher& launcher : launchers) {
    Setting setting = setting_of(launcher, lookup);
    if (!setting.present()) continue;
    // srun --mpi=pmi2 sets the variables of PMI without those of the machine, which are Slurm's own.
    if (setting.tells_no_machine() && setting.values[0] == slurm.values[0] && setting.values[1] == slurm.values[1]) {
      setting = slurm;
    }
    const ProcessPlace place = place_of(setting);
    if (found && *found != place) {
      fail_request("two launchers disagree on which rank this process is: {} and {}; unset those of one", found_in,
                   setting.text());
    }
    found = place;
    found_in = setting.text();
  }
  if (found) return found;
  return slurm.values[0] ? std::optional(place_of(slurm)) : std::nullopt;
}

std::optional<std::string> find_siblings(const EnvironmentLookup& lookup) {
  const bool own = lookup("TORCHELASTIC_RUN_ID").value_or("").starts_with(launch_identity);
  const auto number = [&](const char* name) { return parsed_number<int>(lookup(name).value_or("")).value_or(0); };
  const auto found = [&](const char* launcher, const char* rank, const char* world) -> std::optional<std::string> {
    if (number(rank) == 0 && number(world) <= 1) return std::nullopt;
    return fmt::format("{}={} and {}={} of {}", rank, *lookup(rank), world, lookup(world).value_or("?"), launcher);
  };
  bool started = false;  // by another launcher, which may itself be a task of Slurm
  for (const auto& [launcher, variables] : launchers) {
    if (!lookup(variables[0])) continue;
    started = true;
    if (auto siblings = found(own ? "weft launch" : launcher, variables[0], variables[1])) return siblings;
  }
  if (started || !lookup("SLURM_PROCID")) return std::nullopt;
  const bool step = lookup("SLURM_STEP_NUM_TASKS").has_value() || number("SLURM_PROCID") == 0;
  return found("Slurm", "SLURM_PROCID", step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
}

std::string run_identity(const EnvironmentLookup& lookup) {
  // torchrun sets "none" if it was given no name.
  if (const auto name = lookup("TORCHELASTIC_RUN_ID"); name && *name != "none") return *name;
  if (const auto job = lookup("SLURM_JOB_ID")) return fmt::format("{}.{}", *job, lookup("SLURM_STEP_ID").value_or("0"));
  return "weft";
}

}  // namespace weft
