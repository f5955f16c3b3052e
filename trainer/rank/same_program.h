// Checks that all ranks run the same step. Each rank compiles the step for itself, and with residency "auto" solves for
// its timing; configuration and arithmetic should be the same on all ranks. A rank with another list would not join a
// collective that the others wait for, or would join with a different number of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// A hash of the list of each pipeline rank. Equal lists have equal hashes on all machines; unequal lists collide with
// probability 2^-64. Bytes of actions are not hashed: they differ between the coordinates of tensor and expert groups.
std::vector<std::uint64_t> program_hashes(const Program& program);

// `hashes_of_ranks`: program_hashes() of each rank of the world. Returns nothing if all are equal. Otherwise a text
// with, for each pipeline rank, the ranks with another list than the majority (than rank 0 if there is no majority).
std::optional<std::string> program_disagreement(std::span<const std::vector<std::uint64_t>> hashes_of_ranks);

// Collective over the world, one all-gather on its stream; blocks the host. Throws Error (failure) on every rank with
// the text of program_disagreement().
void require_same_program(const Program& program, Communicator& world);

}  // namespace weft
