// Launchers' variables as they set them, and as they should not be.
#include "parallel/comm/process_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "parallel/comm/rendezvous.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

EnvironmentLookup in(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

void expect_refusal(const Variables& variables, const std::vector<std::string>& parts) {
  try {
    find_process_place(in(variables));
    ADD_FAILURE() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    const std::string text = error.what();
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nin: " << text;
  }
}

const Variables torchrun = {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
const Variables slurm = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "11"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};

TEST(ProcessEnvironment, EachLauncherIsUnderstood) {
  const ProcessPlace expected{5, 8, 1, 4};
  EXPECT_EQ(find_process_place(in({})), std::nullopt);
  EXPECT_EQ(find_process_place(in(torchrun)), expected);
  EXPECT_EQ(find_process_place(in({{"OMPI_COMM_WORLD_RANK", "5"},
                                   {"OMPI_COMM_WORLD_SIZE", "8"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}})),
            expected);
  EXPECT_EQ(find_process_place(
                in({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}})),
            expected);
  EXPECT_EQ(find_process_place(in(slurm)), (ProcessPlace{5, 11, 1, 4}));
  Variables last_node = slurm;
  last_node["SLURM_NODEID"] = "2";
  EXPECT_EQ(find_process_place(in(last_node)), (ProcessPlace{5, 11, 1, 3}));
}

TEST(ProcessEnvironment, SlurmGivesWayToWhatItStarts) {
  Variables both = slurm;
  both.insert(torchrun.begin(), torchrun.end());
  EXPECT_EQ(find_process_place(in(both)), (ProcessPlace{5, 8, 1, 4}));
}

// As srun --mpi=pmi2 sets them, and as they are where Slurm started something else.
TEST(ProcessEnvironment, SlurmTellsTheMachineOfALauncherThatAgreesWithIt) {
  Variables both = slurm;
  both.insert({{"PMI_RANK", "5"}, {"PMI_SIZE", "11"}});
  EXPECT_EQ(find_process_place(in(both)), (ProcessPlace{5, 11, 1, 4}));
  for (const auto& [name, value] : {std::pair("PMI_RANK", "4"), std::pair("PMI_SIZE", "8")}) {
    Variables other = both;
    other[name] = value;
    expect_refusal(other, {"PMI (PMI_RANK=", "MPI_LOCALRANKID not set", "incomplete"});
  }
  both.erase("SLURM_LOCALID");
  expect_refusal(both, {"Slurm (SLURM_PROCID=5", "SLURM_LOCALID not set", "incomplete"});
}

TEST(ProcessEnvironment, WhatIsIncompleteOrImpossibleIsShown) {
  Variables partial = torchrun;
  partial.erase("LOCAL_RANK");
  expect_refusal(partial, {"torchrun", "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK not set", "incomplete"});
  Variables beyond = torchrun;
  beyond["RANK"] = "8";
  expect_refusal(beyond, {"RANK=8", "WORLD_SIZE=8", "contradict"});
  Variables crowded = torchrun;
  crowded["LOCAL_WORLD_SIZE"] = "9";
  expect_refusal(crowded, {"LOCAL_WORLD_SIZE=9"});
  Variables words = torchrun;
  words["RANK"] = "five";
  expect_refusal(words, {"RANK is not a whole number", "RANK=five"});
  Variables odd = slurm;
  odd["SLURM_STEP_TASKS_PER_NODE"] = "4(x";
  expect_refusal(odd, {"SLURM_STEP_TASKS_PER_NODE at SLURM_NODEID not set"});
}

TEST(ProcessEnvironment, TwoLaunchersMustAgree) {
  Variables both = torchrun;
  both.insert({{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}});
  EXPECT_EQ(find_process_place(in(both)), (ProcessPlace{5, 8, 1, 4}));
  both["PMI_RANK"] = "1";
  expect_refusal(both, {"disagree", "torchrun (RANK=5", "PMI (PMI_RANK=1"});
}

TEST(ProcessEnvironment, OneOfSeveralProcessesIsToldByWhatSaysSo) {
  EXPECT_EQ(find_siblings(in(torchrun)), "RANK=5 and WORLD_SIZE=8 of torchrun");
  EXPECT_EQ(find_siblings(in({{"RANK", "0"}, {"WORLD_SIZE", "2"}})), "RANK=0 and WORLD_SIZE=2 of torchrun");
  EXPECT_EQ(find_siblings(in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "weft-7-20000"}})),
            "RANK=0 and WORLD_SIZE=2 of weft launch");
  EXPECT_EQ(find_siblings(in({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}})),
            "OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=4 of Open MPI");
  EXPECT_EQ(find_siblings(in({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})), "PMI_RANK=1 and PMI_SIZE=2 of PMI");
  EXPECT_EQ(find_siblings(in(slurm)), "SLURM_PROCID=5 and SLURM_NTASKS=11 of Slurm");
  EXPECT_EQ(find_siblings(in({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}})),
            "SLURM_PROCID=0 and SLURM_STEP_NUM_TASKS=2 of Slurm");
}

TEST(ProcessEnvironment, AProcessThatALauncherStartedAloneHasNoSiblings) {
  const Variables alone[] = {
      {},
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}},
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}},
      // The script of a batch job, which no step has started.
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}},
      // Inside an allocation, without a task.
      {{"SLURM_NTASKS", "8"}},
      // One torchrun a machine, each with one process.
      {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}},
  };
  for (const Variables& variables : alone) EXPECT_EQ(find_siblings(in(variables)), std::nullopt);
}

TEST(ProcessEnvironment, RunsAndMeetingPlacesHaveNames) {
  EXPECT_EQ(run_identity(in({})), "weft");
  EXPECT_EQ(run_identity(in({{"TORCHELASTIC_RUN_ID", "none"}, {"SLURM_JOB_ID", "17"}})), "17.0");
  EXPECT_EQ(run_identity(in({{"TORCHELASTIC_RUN_ID", "blue"}})), "blue");
  EXPECT_EQ(default_rendezvous_address(in({})), std::nullopt);
  EXPECT_EQ(default_rendezvous_address(in({{"MASTER_ADDR", "node3"}, {"MASTER_PORT", "29500"}})), "tcp://node3:29501");
  EXPECT_EQ(default_rendezvous_address(in({{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "29500"}})), "tcp://[::1]:29501");
  EXPECT_THROW(default_rendezvous_address(in({{"MASTER_PORT", "29500"}})), Error);
  EXPECT_THROW(default_rendezvous_address(in({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65535"}})), Error);
}

}  // namespace
}  // namespace weft
