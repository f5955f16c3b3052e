// Which stage runs on which pipeline rank if a rank runs several stages (its chunks). Pure arithmetic.
#pragma once

#include <cstdint>

namespace weft {

enum class Placement : std::uint8_t {
  looped,  // every chunk begins anew at rank 0: stage s on rank s % ranks
  v,       // even chunks run up the ranks, odd chunks down, so that the turn costs no message
};

constexpr int stage_of(Placement placement, int ranks, int rank, int chunk) {
  const bool down = placement == Placement::v && chunk % 2 == 1;
  return chunk * ranks + (down ? ranks - 1 - rank : rank);
}

constexpr int rank_of(Placement placement, int ranks, int stage) {
  const bool down = placement == Placement::v && stage / ranks % 2 == 1;
  return down ? ranks - 1 - stage % ranks : stage % ranks;
}

}  // namespace weft
