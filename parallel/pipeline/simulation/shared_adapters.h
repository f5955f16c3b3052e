// How long actions last where lanes share the adapters of a node. The walk of a simulation (simulate.cpp) finds what
// each action waits for; here time passes, so that transfers which leave a node at the same time slow each other down.
//
// An action first does what needs no adapters, then what does. The transfers of one node that are under way at a time
// have equal shares of its adapters: each of n goes on at one n-th of the rate. So a node's adapters are never more
// than fully used, and no step is shorter than all that leaves one of its nodes takes at their full rate.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"

namespace weft::walking {

// An action as time sees it.
struct ToldAction {
  double seconds = 0.0;                     // where nothing else uses the adapters
  double adapter_seconds = 0.0;             // of these
  int adapters = 0;                         // whose, where there are such seconds
  std::vector<std::size_t> after = {};      // actions that end before it starts
  std::optional<std::size_t> send = {};     // of a receive: it starts no earlier, and ends no earlier
  std::optional<std::size_t> meeting = {};  // of those that wait for each other
};

// Seconds of each action from its start to its end. Every action comes to its turn: the walk has been through.
std::vector<double> shared_seconds(const std::vector<ToldAction>& actions);

}  // namespace weft::walking
