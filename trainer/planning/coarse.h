// Memory by hand: the formulas that people use before there is a configuration. State is parameters times bytes per
// parameter over ranks. Activations and buffers are given by the user, or follow the textbook for a model. These
// formulas know nothing of Weft's schedules and policies; where they differ from plan_run(), plan_run() is right.
//
// Bytes are doubles in powers of ten, as such sums are usually written. A card has two readings (Card).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "parallel/runtime/enum_names.h"

namespace weft {

// A card's memory: "80 GB" in powers of ten, and the 80 GiB = 85.9 GB that a driver counts. `nominal` is the smaller.
struct Card {
  std::string_view name;
  double nominal = 0.0;  // bytes
  double counted = 0.0;
};
// `memory`: bytes as the driver counts them, like Hardware::memory.
Card card_of(std::string_view name, double memory);

enum class CoarseStrategy : std::uint8_t { full_shard, zero2, zero1, replicated };
constexpr auto enum_names(CoarseStrategy) {
  return name_list("full_shard", "ZeRO-2", "ZeRO-1", "replicated");
}

// Bytes that training keeps for each parameter.
struct StateRecipe {
  std::string_view name, what;
  double parameters = 0, gradients = 0, optimizer = 0;  // optimizer includes float32 masters
  double views = 0;                                     // whole copies in the compute dtype, transient under full_shard

  double bytes() const { return parameters + gradients + optimizer; }
};
// Five recipes: pure bfloat16; bfloat16 with float32 moments; mixed precision; Megatron's; FSDP2's, Weft's default.
std::vector<StateRecipe> state_recipes();
// Bytes of state on each of `ranks`; absent if the recipe has no such strategy. full_shard shards all state, zero2 all
// except parameters, zero1 the optimizer state only.
std::optional<double> state_bytes(const StateRecipe& recipe, CoarseStrategy strategy, double parameters, int ranks);

// Sizes of a dense transformer for the textbook's activations. They are 34 s b h bytes a layer in 16 bit, and 5 a s^2 b
// of unfused attention (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models").
struct CoarseModel {
  double layers = 0, hidden = 0, heads = 0, vocabulary = 0, sequence = 0, batch = 1;  // batch: of a microbatch
};
struct CoarseActivations {
  double all = 0;              // every layer keeps all its activations, attention is fused
  double unfused = 0;          // the same with unfused attention: plus its scores
  double inputs = 0;           // every layer keeps its input
  double inputs_and_live = 0;  // every layer keeps its input, one layer is recomputed
  double logits = 0;           // in 16 bit and float32
};
CoarseActivations coarse_activations(const CoarseModel& model);

// Two sums of a rank's memory that samples of other trainers make, as they are there. Both leave out what
// left_out_gradients() has, 16 bits a parameter, and the second leaves out activations and full units in use as well.
struct CoarseDegrees {
  double pipeline = 1, data = 1, tensor = 1;
};
// Bytes of the whole model: `unit` of the activations of a sequence of 4,096 tokens.
struct CoarseBudget {
  double parameters = 0, optimizer = 0, unit = 0, batch = 1, sequence = 0;
};
// Parameters and optimizer state over data ranks if `sharded`, activations over tensor ranks, and 1.5 GB.
double budget_bytes(const CoarseBudget& budget, const CoarseDegrees& degrees, bool sharded);
// Bytes of state for each parameter, over pipeline and data ranks; tensor ranks share 65 % of them.
double degree_bytes(double parameters, double bytes_per_parameter, const CoarseDegrees& degrees);
// The budget of a model: 2 bytes a parameter, 8 of optimizer state, and the activations above.
CoarseBudget budget_of(double parameters, const CoarseModel& model);
double left_out_gradients(double parameters, const CoarseDegrees& degrees, bool sharded);

// Parameters of one rank at the peak of a fully sharded step, in elements: its shard, P / W, and the gathered layers.
struct PeakElements {
  double one_layer = 0;   // shard and one gathered layer
  double in_place = 0;    // the same, the layer's own shard gathered in place
  double prefetched = 0;  // shard and two gathered layers
};
PeakElements peak_elements(double parameters, int ranks, double layer_parameters);

struct CoarseRequest {
  double parameters = 70e9;
  int ranks = 8;
  double bytes_per_parameter = 16.0;
  double activations = 0.0, buffers = 0.0;  // bytes per GPU
  std::optional<double> layer_parameters = {};
  std::optional<CoarseModel> model = {};  // source of activations that are not given
  CoarseDegrees degrees = {};             // of the model's configuration
};

enum class CoarseFit : std::uint8_t { fits, only_as_counted, exceeds };
// Smallest numbers of GPUs; absent if no number suffices.
struct CoarseRanks {
  std::optional<int> any, eights;         // eights: a multiple of eight, whole nodes
  std::optional<int> with_headroom;       // with a tenth of the card left free
  std::optional<int> any_as_counted;      // with the card as the driver counts it
  std::optional<double> bytes_at_eights;  // bytes per GPU on `eights` GPUs
};
struct CoarsePlan {
  double state = 0, sum = 0;
  CoarseFit fit = CoarseFit::exceeds;
  bool state_exceeds = false;             // state alone exceeds the card as counted: no batch fits
  bool state_and_buffers_exceed = false;  // without any activations
  CoarseRanks ranks;
};
CoarsePlan coarse_plan(const CoarseRequest& request, const Card& card);

}  // namespace weft
