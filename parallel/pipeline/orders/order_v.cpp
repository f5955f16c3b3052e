// Orders made by hand for two chunks per rank in a V.
#include <algorithm>
#include <array>
#include <deque>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Builds the list of one rank. Each kind of action of each chunk takes the microbatches in ascending order.
class VRank {
 public:
  VRank(const OrderInput& input, int rank)
      : microbatches_(input.microbatches),
        stages_{stage_of(Placement::v, input.ranks, rank, 0), stage_of(Placement::v, input.ranks, rank, 1)} {}

  void forward(std::size_t chunk) { add(Op::forward, chunk, forwards[chunk]++); }
  void backward(std::size_t chunk) {
    add(Op::backward, chunk, input_gradients[chunk]++);
    ++weight_gradients[chunk];
  }
  void backward_input(std::size_t chunk) { add(Op::backward_input, chunk, input_gradients[chunk]++); }
  void backward_weight(std::size_t chunk) { add(Op::backward_weight, chunk, weight_gradients[chunk]++); }
  // A backward in two actions.
  void both_halves(std::size_t chunk) {
    backward_input(chunk);
    backward_weight(chunk);
  }
  // A forward and a backward whose communication and computation may overlap.
  void pair(std::size_t forward_chunk, bool overlapped = true) {
    forward(forward_chunk);
    actions.back().overlapped = overlapped;
    backward(1 - forward_chunk);
    actions.back().overlapped = overlapped;
  }

  std::array<int, 2> forwards = {}, input_gradients = {}, weight_gradients = {};
  std::vector<Action> actions;

 private:
  void add(Op op, std::size_t chunk, int microbatch) {
    if (microbatch < microbatches_) actions.push_back(stage_action(op, stages_[chunk], microbatch));
  }

  int microbatches_;
  std::array<int, 2> stages_;
};

std::vector<Action> zbv_rank(const OrderInput& input, int rank) {
  // The order is made for enough microbatches to fill the pipeline; add() leaves out those beyond `input.microbatches`.
  const int microbatches = std::max(2 * input.ranks - 1, input.microbatches);
  VRank list(input, rank);
  for (int i = 0; i < 2 * (input.ranks - rank) - 1; ++i) list.forward(0);
  for (int i = 0; i < rank; ++i) {
    list.forward(1);
    list.forward(0);
  }
  for (int i = 0; i < input.ranks - rank; ++i) {
    list.forward(1);
    list.both_halves(1);
  }
  while (list.forwards[1] < microbatches) {
    if (list.forwards[0] < microbatches) list.forward(0);
    list.both_halves(0);
    list.forward(1);
    list.both_halves(1);
  }
  // Cool-down: input gradients, which the ranks before wait for, then the remaining weight gradients.
  for (int i = 0; i < rank; ++i) {
    list.backward_input(0);
    list.backward_input(1);
  }
  for (int i = 0; i < input.ranks - rank; ++i) list.both_halves(0);
  for (std::size_t chunk : {1, 0}) {
    while (list.weight_gradients[chunk] < list.input_gradients[chunk]) list.backward_weight(chunk);
  }
  return list.actions;
}

}  // namespace

// Qi et al. 2024, ZB-V: two chunks per rank, placed as a V. A microbatch thus turns on rank 0 and on the last rank
// without a message. With equal times of F, I and W the bubble is half a forward for each rank except one. Every rank
// keeps the activations of 2 * ranks chunks, as many as rank 0 of 1F1B.
RankLists zbv_order(const OrderInput& input) {
  return on_each_rank(input, [&](int rank) { return zbv_rank(input, rank); });
}

namespace {

// The eight steps of DeepSeek's description.
std::vector<Action> dualpipev_rank(const OrderInput& input, int rank) {
  const int behind = input.ranks - 1 - rank;
  VRank list(input, rank);
  std::deque<std::size_t> weights;  // chunks of weight gradients that are to come, oldest first
  const auto split_backward = [&](std::size_t chunk) {
    list.backward_input(chunk);
    weights.push_back(chunk);
  };
  const auto take_weight = [&] {
    list.backward_weight(weights.front());
    weights.pop_front();
  };
  for (int i = 0; i < 2 * behind; ++i) list.forward(0);
  for (int i = 0; i <= rank; ++i) {
    list.forward(0);
    list.forward(1);
  }
  for (int i = 0; i < behind; ++i) {
    list.both_halves(1);
    list.forward(1);
  }
  for (int i = 0; i < input.microbatches - 2 * input.ranks + rank + 1; ++i) {
    // On the last rank, where the V turns, the first backward directly follows its own forward, and all ranks wait for
    // it. It runs alone there, not as half of a pair.
    list.pair(0, behind > 0 || i > 0);
    list.pair(1);
  }
  for (int i = 0; i < behind; ++i) {
    list.backward(1);
    list.pair(1);
  }
  // From the middle of the cool-down on, input gradients go first, because other ranks wait for them.
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    const std::size_t chunk = i % 2 == 0 ? 1 : 0;
    i > rank ? split_backward(chunk) : list.backward(chunk);
  }
  for (int i = 0; i < behind; ++i) {
    take_weight();
    split_backward(0);
  }
  for (int i = 0; i <= rank; ++i) take_weight();
  return list.actions;
}

}  // namespace

// DeepSeek-AI 2025, DualPipe folded into a V: two chunks per rank. In the steady state every forward of one chunk is
// overlapped with a backward of the other.
RankLists dualpipev_order(const OrderInput& input) {
  return on_each_rank(input, [&](int rank) { return dualpipev_rank(input, rank); });
}

}  // namespace weft
