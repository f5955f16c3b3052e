// The division of a state-space scan on a GPU, and its workspace, for its kernels (cuda/state_space_scan.cu) and for
// plans. Chunks of 256 tokens keep the traffic of states below that of x and y. A tile holds 64 tokens of a chunk,
// columns of a head or elements of a state.
#pragma once

#include <algorithm>
#include <cstdint>

#include "layers/kernels/state_space.h"

namespace weft {

struct GpuScan {
  static constexpr std::int64_t chunk = 256, tile = 64, tiles_of_chunk = chunk / tile;
  // Pairs of a chunk's tiles of which the first reads the second.
  static constexpr std::int64_t pairs_of_chunk = tiles_of_chunk * (tiles_of_chunk + 1) / 2;

  const StateSpaceShape& shape;
  std::int64_t tokens = 0;

  static std::int64_t tiles(std::int64_t columns) { return (columns + tile - 1) / tile; }
  std::int64_t sequences() const { return tokens / shape.sequence_length; }
  std::int64_t chunks_of_sequence() const { return (shape.sequence_length + chunk - 1) / chunk; }
  std::int64_t chunks() const { return sequences() * chunks_of_sequence(); }
  std::int64_t chunk_heads() const { return chunks() * shape.heads; }
  // The heads of a group are dealt to as many blocks, whose sums are added up later: a group may have all heads.
  std::int64_t slices() const { return std::clamp<std::int64_t>(shape.heads_of_group() / 16, 1, 8); }
  std::int64_t states() const { return chunks() * shape.inner() * shape.state_size; }
};

// Places of float32 numbers in the workspace. What a state tile, tile or slice comes first of is partial: one sum for
// each, to be added up.
struct GpuScanRoom {
  // Forward and backward.
  std::int64_t step, decay;  // [chunk][head][256]: steps, and sums of log decays up to a token
  std::int64_t pairs;        // [chunk][group][pair of tiles][64][64]: C of the first tile's token . B of the second's
  std::int64_t states;       // [chunk][head][column][element]: in front of each chunk
  std::int64_t keep;         // [chunk][head]: the share of the state in front of a chunk in the one behind it
  // Backward.
  std::int64_t dpairs;                // [slice] and as pairs
  std::int64_t of_reads, of_weights;  // [tile][chunk][head][256]
  std::int64_t of_own;                // [chunk][head][256]
  std::int64_t through_c, through_b;  // [state tile][chunk][head][256]
  std::int64_t dkeys;                 // [slice][chunk][group][256][element]: of C, then of B
  std::int64_t dstates;               // as states: of those behind each chunk
  std::int64_t of_states;             // [state tile][chunk][head]
  std::int64_t drates;                // [a_log, d, dt_bias][chunk][head]
  std::int64_t floats = 0;

  GpuScanRoom(const GpuScan& scan, bool backward) {
    const std::int64_t head_tokens = scan.chunk_heads() * GpuScan::chunk, groups = scan.chunks() * scan.shape.groups;
    const std::int64_t of_pairs = groups * GpuScan::pairs_of_chunk * GpuScan::tile * GpuScan::tile;
    const std::int64_t state_tiles = GpuScan::tiles(scan.shape.state_size);
    const auto take = [this](std::int64_t& place, std::int64_t count) {
      place = floats;
      floats += count;
    };
    // Those first whose sizes are multiples of a vector.
    take(step, head_tokens);
    take(decay, head_tokens);
    take(pairs, of_pairs);
    if (backward) {
      take(dpairs, scan.slices() * of_pairs);
      take(of_reads, GpuScan::tiles_of_chunk * head_tokens);
      take(of_weights, GpuScan::tiles_of_chunk * head_tokens);
      take(of_own, head_tokens);
      take(through_c, state_tiles * head_tokens);
      take(through_b, state_tiles * head_tokens);
      take(dkeys, scan.slices() * groups * GpuScan::chunk * scan.shape.state_size);
      take(dstates, scan.states());
    }
    take(states, scan.states());
    take(keep, scan.chunk_heads());
    if (backward) {
      take(of_states, state_tiles * scan.chunk_heads());
      take(drates, 3 * scan.chunk_heads());
    }
  }
};

}  // namespace weft
