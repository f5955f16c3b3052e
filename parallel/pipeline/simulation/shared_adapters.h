// Durations of actions if lanes share the adapters of a node. The walk of a simulation (simulate.cpp) finds the waits
// of each action. Here time passes, so that transfers that leave a node at the same time slow each other down.
//
// An action first does its work without adapters, then its work with them. Concurrent transfers of one node have equal
// shares of its adapters: each of n proceeds at one n-th of the rate. A node's adapters are thus never used beyond
// their full rate. No step is shorter than the time of all transfers that leave one of its nodes, at full rate.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "parallel/pipeline/simulation/simulate.h"

namespace weft::walking {

// An action as shared_seconds sees it.
struct ToldAction {
  double seconds = 0.0;                     // duration if nothing else uses the adapters
  double adapter_seconds = 0.0;             // the part of `seconds` with the adapters
  int adapters = 0;                         // the adapters used, if adapter_seconds > 0
  std::vector<std::size_t> after = {};      // actions that end before it starts
  std::optional<std::size_t> send = {};     // of a receive: it starts and ends no earlier than this
  std::optional<std::size_t> meeting = {};  // number shared by actions that wait for each other
};

// Seconds of each action from its start to its end. Every action must be able to run: the walk has checked that.
std::vector<double> shared_seconds(const std::vector<ToldAction>& actions);

}  // namespace weft::walking
