// A first configuration of one's own: a model of a wanted size with usual settings, for given data and ranks. What it
// leaves open, the layout of the ranks, a search decides (search.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/config/config.h"
#include "trainer/costs/hardware.h"

namespace weft {

struct FirstRunRequest {
  std::string name = "first";
  DataConfig data = {};
  std::int64_t vocab_size = 256;
  std::int64_t data_tokens = 0;        // that a run reads in a pass over the data (SampleOrder::passes)
  ValidationConfig validation = {};    // its data; the rest is decided here
  double parameters = 0.0;             // wanted, of the whole model
  std::int64_t experts = 0;            // of each MoE block; 0: a dense model
  std::int64_t experts_per_token = 2;  // of them
  std::int64_t sequence_length = 0;    // tokens
  double tokens = 0.0;                 // to train on; 0: 20 for each active parameter, and at most 4 passes or a step
  DeviceKind device = DeviceKind::cpu;
  std::string hardware = {};  // a name of the hardware table, or empty: the device's own
  int ranks = 1;
  std::optional<std::int64_t> memory = {};  // bytes for each rank, where the hardware has none of its own
};

// The usual tokens of a sequence for a model of so many parameters.
std::int64_t usual_length(double parameters);

// The widths and the number of blocks with parameters nearest to the wanted number, among those with usual proportions.
// Heads have 64 or 128 values, and four query heads share a key head where that divides. Dense blocks are 8/3 as wide
// inside, and the model is 64 to 128 times as wide as deep. Of an MoE model the first block is dense, and the experts
// of a token are together about as wide as a dense block. Throws Error (request) if the nearest differs by more than a
// quarter.
ModelConfig sized_model(const FirstRunRequest& request);

// The whole configuration, with data_shard ranks alone. Batch and learning rate follow the compute C = 6 x active
// parameters x tokens. A step has 0.2920 C^0.3271 tokens, rounded to a power of two of sequences. The rate is 0.3118
// C^-0.1250 (DeepSeek LLM, arXiv 2401.02954, section 3.1). Tokens follow Hoffmann et al. 2022 (20 for each parameter).
// Data may be repeated up to four times, which is nearly as good as new data (Muennighoff et al. 2023).
Config first_run(const FirstRunRequest& request);

// The configuration as a file for people: the keys that differ from their defaults and the ones that everybody turns,
// each with a comment. `reasons`: comments by path, in place of what the key means.
std::string first_run_toml(const Config& config, std::string_view head,
                           const std::map<std::string, std::string>& reasons);

}  // namespace weft
