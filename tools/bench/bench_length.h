// How long a bench of training steps lasts, as its command is told.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>

#include "tools/command/commands.h"

namespace weft {

struct BenchLength {
  std::int64_t warmup = 3, steps = 20;  // not counted, and counted
  double product_seconds = 0.5;         // at least, of each product that is measured alone
};

// Adds --warmup, --steps and --seconds.
inline std::shared_ptr<BenchLength> add_length_options(CLI::App& command, double product_seconds) {
  const auto length = std::make_shared<BenchLength>(BenchLength{.product_seconds = product_seconds});
  command.add_option("--warmup", length->warmup, "steps not counted")->check(not_negative())->capture_default_str();
  command.add_option("--steps", length->steps, "steps counted")->check(positive())->capture_default_str();
  command.add_option("--seconds", length->product_seconds, "time for each product alone at least")
      ->check(positive())
      ->capture_default_str();
  return length;
}

}  // namespace weft
