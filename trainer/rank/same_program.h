// Whether all ranks are about to run the same step. Each compiles it for itself, and with residency "auto" solves for
// its timing, from what should be the same configuration by the same arithmetic. A rank that comes to another list
// would make the others wait for a collective that it never joins, or join with other bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// A number for the list of each pipeline rank: equal lists have equal numbers on all machines, and of unequal ones two
// in 2^64 are alike. Bytes are left out: they differ between the coordinates of tensor and expert groups.
std::vector<std::uint64_t> program_hashes(const Program& program);

// By rank of the world, its program_hashes(). What is wrong where they are not all equal: for each pipeline rank, the
// ranks that have another list than most (than rank 0, where none has a majority).
std::optional<std::string> program_disagreement(std::span<const std::vector<std::uint64_t>> hashes_of_ranks);

// Collective over the world, one all-gather on its stream; blocks the host. Throws Error (failure) on every rank with
// what program_disagreement() says.
void require_same_program(const Program& program, Communicator& world);

}  // namespace weft
