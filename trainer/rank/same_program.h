// Checks that all ranks run the same step. Each rank reads the configuration and compiles the step for itself, and with
// residency "auto" solves for its timing. A rank with another list would not join a collective that the others wait
// for, or would join with a different number of bytes. A rank with another learning rate would train another model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "parallel/comm/communicator.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// A hash of the lists of all pipeline ranks. Equal lists have equal hashes on all machines; unequal lists collide with
// probability 2^-64. Bytes of actions are not hashed: they differ between the coordinates of tensor and expert groups.
std::uint64_t program_hash(const Program& program);

// Hashes of a rank, for what must be equal on all ranks. A difference in one explains those in the later ones.
using ComparedHashes = std::array<std::uint64_t, 3>;
inline constexpr std::array<std::string_view, 3> compared_parts = {"version of Weft", "configuration", "compiled step"};

struct Disagreement {
  std::size_t part = 0;      // index into compared_parts
  int usual = 0, other = 0;  // two ranks that differ
  std::string ranks;         // lines of ranks that differ from the majority (from rank 0 if there is no majority)
};
// `hashes`: by rank of the world. Returns the first part that differs, or nothing.
std::optional<Disagreement> find_disagreement(std::span<const ComparedHashes> hashes);

// `configuration`: hashed_configuration() of the rank. Collective over the world, one all-gather on its stream; blocks
// the host. If ranks differ, throws Error (failure) on every rank with the ranks, and with the keys of a configuration.
void require_same_program(const Program& program, const std::string& configuration, Communicator& world);

}  // namespace weft
