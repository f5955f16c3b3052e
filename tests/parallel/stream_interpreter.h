// Runs the waiting of a program the way devices with streams do, by its own rules and with nothing of the checker.
// Hosts queue what their lists say, streams work it off, and the next to go is drawn at random. Messages, gathers,
// reductions and the norm are meetings: they end when all that take part have come to them at the heads of their
// streams. Nothing is computed; what matters is whether all come to their end.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/pipeline/program/program.h"

namespace weft {

struct StreamOptions {
  bool hosts_wait = false;  // at every compute action until it is over
  // Activations and gradients have one lane each, for messages up and down, sent and received.
  bool merged_lanes = false;
  int replicas = 1;  // of the whole pipeline, whose gathers, reductions and norm meet
};

// Nothing when all come to their end; otherwise who stands still where.
std::string standstill_on_streams(const Program& program, std::uint32_t seed, const StreamOptions& options = {});

}  // namespace weft
