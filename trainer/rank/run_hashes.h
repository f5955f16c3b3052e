// Hashes by which runs are told apart: equal ones asked for the same, did the same, or had the same places.
#pragma once

#include <map>
#include <string>

namespace weft {

// XXH64, 16 hexadecimal digits each (trainer/resolve/resolved_run.h has the texts).
struct RunHashes {
  std::string configuration;  // every key, except those that only name the run and its directories
  std::string program;        // the lists of all pipeline ranks
  std::string layout;         // groups of ranks, and shard units of every stage

  // As files name them.
  std::map<std::string, std::string> named() const {
    return {{"configuration", configuration}, {"program", program}, {"layout", layout}};
  }
  bool operator==(const RunHashes&) const = default;
};

}  // namespace weft
