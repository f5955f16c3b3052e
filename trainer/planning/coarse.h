// Memory by hand: the formulas that people use before there is a configuration. State is parameters times bytes over
// ranks; activations and buffers are what somebody says, or a model's by the textbook. Nothing here knows what Weft
// does: plan_run() does, and where the two differ it is right.
//
// Bytes are doubles in powers of ten, because that is how such sums are written; a card has two readings (Card).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace weft {

// "80 GB" in powers of ten, and the 80 GiB = 85.9 GB that a driver counts. What fits the first fits the second.
struct Card {
  std::string_view name;
  double nominal = 0.0;  // bytes
  double counted = 0.0;
};
// `memory`: bytes that the driver counts, as Hardware::memory has it.
Card card_of(std::string_view name, double memory);

enum class CoarseStrategy : std::uint8_t { full_shard, zero2, zero1, replicated };
inline constexpr std::array coarse_strategies = {CoarseStrategy::full_shard, CoarseStrategy::zero2,
                                                 CoarseStrategy::zero1, CoarseStrategy::replicated};
std::string_view name_of(CoarseStrategy strategy);

// Bytes that training keeps for each parameter.
struct StateRecipe {
  std::string_view name, what;
  double parameters = 0, gradients = 0, optimizer = 0;  // the optimizer's include float32 masters
  double views = 0;                                     // whole copies in the compute dtype, transient under full_shard
  bool has_zero1 = true;

  double bytes() const { return parameters + gradients + optimizer; }
};
// Pure bfloat16; with float32 moments; mixed precision; Megatron's; FSDP2's, which is Weft's default.
std::vector<StateRecipe> state_recipes();
// On each of `ranks`; absent for what a recipe has not got. full_shard shards all, zero2 all but parameters, zero1 the
// optimizer's alone.
std::optional<double> state_bytes(const StateRecipe& recipe, CoarseStrategy strategy, double parameters, int ranks);

// Sizes of a dense transformer for the textbook's activations (Korthikanti et al. 2022, "Reducing Activation
// Recomputation in Large Transformer Models": 34 s b h bytes a layer in 16 bit, and 5 a s^2 b of unfused attention).
struct CoarseModel {
  double layers = 0, hidden = 0, heads = 0, vocabulary = 0, sequence = 0, batch = 1;  // batch: sequences at a time
};
struct CoarseActivations {
  double all = 0;              // every layer keeps all, attention is fused
  double unfused = 0;          // the same with its scores
  double inputs = 0;           // every layer keeps its input
  double inputs_and_live = 0;  // and one is being made again
  double logits = 0;           // in 16 bit and float32
};
CoarseActivations coarse_activations(const CoarseModel& model);
// Sequences at a time that `bytes` have room for, with `per_sequence` each.
int most_sequences(double bytes, double per_sequence);

// Parameters of one rank at the peak of a fully sharded step, in elements: its share and the layers that are whole.
struct PeakElements {
  double share = 0;       // P / W
  double one_layer = 0;   // beside one whole layer
  double in_place = 0;    // whose own share is not copied
  double prefetched = 0;  // beside two
};
PeakElements peak_elements(double parameters, int ranks, double layer_parameters);

struct CoarseRequest {
  double parameters = 70e9;
  int ranks = 8;
  double bytes_per_parameter = 16.0;
  double activations = 0.0, buffers = 0.0;  // bytes of a GPU
  std::optional<double> layer_parameters = {};
  std::optional<CoarseModel> model = {};  // then activations that are not given are its
};

enum class CoarseFit : std::uint8_t { fits, only_as_counted, exceeds };
// Smallest numbers of GPUs; absent where no number would do.
struct CoarseRanks {
  std::optional<int> any, eights;         // eights: of nodes of eight
  std::optional<int> with_headroom;       // with a tenth of the card left
  std::optional<int> any_as_counted;      // by the card's other reading
  std::optional<double> bytes_at_eights;  // of a GPU with so many
};
struct CoarsePlan {
  double state = 0, sum = 0;
  CoarseFit fit = CoarseFit::exceeds;
  bool state_exceeds = false;             // alone, the card as counted: no batch can help
  bool state_and_buffers_exceed = false;  // without any activations
  CoarseRanks ranks;
};
CoarsePlan coarse_plan(const CoarseRequest& request, const Card& card);

}  // namespace weft
