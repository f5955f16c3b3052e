#include "trainer/planning/search_bounds.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/program/overlap.h"
#include "trainer/plan/configured_schedule.h"
#include "trainer/planning/stage_sums.h"

namespace weft {
namespace {

// A bound sums in another order than the simulator, so rounding may differ.
constexpr double rounding = 1.0 - 1e-9;

// The largest total of bytes that one rank keeps, over the positions after each action of its list.
std::int64_t most_kept(const std::vector<Action>& actions, const std::vector<StageSums>& stages, std::int64_t count) {
  struct Held {
    std::int64_t uses = 0, all_uses = 0, ended = 0;
  };
  std::vector<Held> held(stages.size());
  for (const Action& action : actions) {
    if (reads_parameters(action.op)) ++held[static_cast<std::size_t>(*action.stage)].all_uses;
  }
  const bool parted = std::ranges::any_of(actions, [](const Action& each) { return each.op == Op::backward_input; });
  std::int64_t now = 0, most = 0;
  for (const Action& action : actions) {
    const auto at = static_cast<std::size_t>(*action.stage);
    Held& stage = held[at];
    const StageSums& sums = stages[at];
    const std::int64_t kept = parted ? sums.sum.kept_parted_bytes : sums.sum.kept_bytes;
    if (reads_parameters(action.op)) {
      if (stage.uses++ == 0) now += sums.parameters;
      if (stage.uses == stage.all_uses) now -= sums.parameters;
    }
    if (action.op == Op::forward) now += kept;
    if (makes_weight_gradient(action.op)) {
      now -= kept;
      // The first weight gradient creates all accumulators of the stage; after the last one they can be reduced.
      if (++stage.ended == 1 && count > 1) now += sums.gradients;
      if (stage.ended == count && count > 1) now -= sums.gradients;
    }
    most = std::max(most, now);
  }
  return most;
}

// A walk through the lists of all ranks, stage by stage, with messages between ranks. A rank that overlaps a pair hides
// the exchanges of both, in whichever order their parts run.
class OrderWalk {
 public:
  OrderWalk(const Program& order, const std::vector<Overlaps>& overlaps, const std::vector<StageSums>& stages,
            double message)
      : order_(order), overlaps_(overlaps), stages_(stages), message_(message), free_(order.ranks.size(), 0.0) {
    const auto pieces = stages.size() * static_cast<std::size_t>(order.microbatches);
    forward_.resize(pieces);
    backward_.resize(pieces);
  }

  double seconds() {
    std::vector<std::size_t> next(order_.ranks.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < next.size(); ++rank) {
        while (const std::size_t taken = take(rank, next[rank])) {
          next[rank] += taken;
          moved = true;
        }
      }
    }
    return *std::ranges::max_element(free_);
  }

 private:
  // Takes the actions at a position if their data has come; returns their number.
  std::size_t take(std::size_t rank, std::size_t position) {
    const std::vector<Action>& actions = order_.ranks[rank];
    if (position == actions.size()) return 0;
    const bool paired = overlaps_[rank].pair_of[position].has_value();
    const std::span<const Action> taken(&actions[position], paired ? 2 : 1);
    for (const Action& action : taken) {
      if (!arrival(action)) return 0;
    }
    const double begin = free_[rank];
    double busy = begin;
    for (const Action& action : taken) {
      const double seconds = seconds_of(action, paired);
      const double end = std::max(paired ? begin : free_[rank], *arrival(action)) + seconds;
      busy += seconds;
      free_[rank] = std::max({free_[rank], busy, end});
      if (action.op == Op::forward) ended(forward_, action) = end;
      if (action.op == Op::backward || action.op == Op::backward_input) ended(backward_, action) = end;
    }
    return taken.size();
  }

  std::optional<double>& ended(std::vector<std::optional<double>>& pieces, const Action& action, int stages_away = 0) {
    return pieces[static_cast<std::size_t>((*action.stage + stages_away) * order_.microbatches + *action.microbatch)];
  }

  // When the data of an action is there; absent until then.
  std::optional<double> arrival(const Action& action) {
    const bool is_forward = action.op == Op::forward;
    const int from = *action.stage + (is_forward ? -1 : 1);
    if (action.op == Op::backward_weight || from < 0 || from == std::ssize(stages_)) return 0.0;
    std::optional<double> end = ended(is_forward ? forward_ : backward_, action, from - *action.stage);
    const auto rank_of = [&](int stage) { return order_.stages[static_cast<std::size_t>(stage)].rank; };
    if (end && rank_of(from) != rank_of(*action.stage)) *end += message_;
    return end;
  }

  double seconds_of(const Action& action, bool paired) const {
    const StageSums& stage = stages_[static_cast<std::size_t>(*action.stage)];
    const ModelPiece& sum = stage.sum;
    if (action.op == Op::backward_weight) return sum.backward_weight;
    if (action.op == Op::forward) return sum.forward - (paired ? sum.forward_rows : 0.0);
    const double weights = action.op == Op::backward ? sum.backward_weight : 0.0;
    return std::max(0.0, sum.backward_input + stage.alike + weights - (paired ? sum.rows - sum.forward_rows : 0.0));
  }

  const Program& order_;
  const std::vector<Overlaps>& overlaps_;  // by rank
  const std::vector<StageSums>& stages_;
  const double message_;
  std::vector<double> free_;                               // by rank
  std::vector<std::optional<double>> forward_, backward_;  // ends, by stage and microbatch
};

// Of a microbatch; `hides`: without the exchanges that overlapped pairs may hide.
double shown_seconds(const ModelPiece& piece, bool hides) {
  return piece.seconds() - (hides ? piece.rows : 0.0);
}

// The seconds between a microbatch's arrival at a piece and the departure of its gradient, without those in the pieces
// behind it.
double passing_seconds(const ModelPiece& piece, const Schedule& schedule) {
  const double forward = piece.forward - (schedule.overlaps ? piece.forward_rows : 0.0);
  const double backward = piece.backward_input + (schedule.parts ? 0.0 : piece.backward_weight);
  return forward + std::max(0.0, backward - (schedule.overlaps ? piece.rows - piece.forward_rows : 0.0));
}

// The part of shown seconds that is before and behind all work of the ranks after a block, in any order of the
// schedule. Weight gradients of their own fill the wait for others.
double waited_seconds(const ModelPiece& piece, const Schedule& schedule) {
  if (!schedule.parts) return passing_seconds(piece, schedule);
  return piece.forward - (schedule.overlaps ? piece.forward_rows : 0.0);
}

// The least time in which ranks do so many blocks. Each block takes `block` seconds of a rank, and rank r waits for
// r times `wait`.
double seconds_of_dealt(int blocks, int ranks, double block, double wait) {
  double less = 0.0, enough = blocks * block + ranks * wait;
  for (int halving = 0; halving < 40; ++halving) {
    const double seconds = (less + enough) / 2.0;
    double room = 0.0;
    for (int rank = 0; rank < ranks && rank * wait < seconds; ++rank) {
      room += std::floor((seconds - rank * wait) / block);
    }
    (room < blocks ? less : enough) = seconds;
  }
  return less;
}

int node_of(const ModelPieces& pieces, int rank) {
  return pieces.node_of_rank.empty() ? rank : pieces.node_of_rank[static_cast<std::size_t>(rank)];
}

std::vector<StageSums> sums_of_stages(const Config& config, const ModelPieces& pieces,
                                      const std::vector<StageBlocks>& layout) {
  std::vector<StageSums> stages;
  for (std::size_t s = 0; s < layout.size(); ++s) {
    stages.push_back(sums_of(config, pieces, layout[s], static_cast<int>(s)));
  }
  return stages;
}

// The slowest and the fullest rank. A rank begins when the first microbatch has come through all stages before its
// first, and the last one goes back through them.
// `hidden`: by stage, seconds of a step that exchanges may be hidden.
LeastTaken least_of_ranks(const Config& config, const ModelPieces& pieces, const std::vector<StageSums>& stages,
                          const std::vector<double>& hidden) {
  const std::vector<int> rank_of_stage = stage_ranks(config);
  const auto microbatches = static_cast<double>(config.microbatches());
  const bool serial = config.run.device == DeviceKind::cpu;
  const bool overlaps = hides_rows(config);
  const bool parts = config.pipeline.own_order || find_schedule(config.pipeline.schedule).parts;
  LeastTaken least;
  std::map<int, double> on_adapters;  // by node
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    double compute = 0.0, without_weights = 0.0, before = 0.0, after = 0.0;
    UnitSeconds units;
    std::int64_t bytes = 0;
    bool reached = false;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const ModelPiece& sum = stages[s].sum;
      if (rank_of_stage[s] != rank) {
        if (reached) continue;
        before += sum.forward - (overlaps ? sum.forward_rows : 0.0);
        const double backward = sum.backward_input + stages[s].alike + (parts ? 0.0 : sum.backward_weight);
        after += std::max(0.0, backward - (overlaps ? sum.rows - sum.forward_rows : 0.0));
        continue;
      }
      reached = true;
      const double seconds = microbatches * sum.seconds() - hidden[s];
      compute += seconds;
      without_weights += seconds - (parts ? microbatches * sum.backward_weight : 0.0);
      on_adapters[node_of(pieces, rank)] +=
          microbatches * sum.on_adapters + stages[s].on_adapters.gathers + stages[s].on_adapters.reductions;
      units.gathers += stages[s].units.gathers;
      units.reductions += stages[s].units.reductions;
      bytes += sum.static_bytes;
    }
    const double passing = before + std::max(compute, without_weights + after);
    const double longest = serial ? std::max(passing, before + compute + units.gathers + units.reductions)
                                  : std::max({passing, units.gathers, units.reductions});
    least.seconds = std::max(least.seconds, longest);
    least.static_bytes = std::max(least.static_bytes, bytes);
  }
  for (const auto& [node, seconds] : on_adapters) least.seconds = std::max(least.seconds, seconds);
  return least;
}

}  // namespace

LeastTaken least_of_any_order(const Config& config, const ModelPieces& pieces, int stages) {
  const double ranks = config.parallelism.pipeline;
  const auto microbatches = static_cast<double>(config.microbatches());
  const bool hides = hides_rows(config);
  double seconds = pieces.embedding.seconds() + pieces.head.seconds();
  double on_adapters = pieces.embedding.on_adapters + pieces.head.on_adapters + pieces.predictors.on_adapters;
  // Tied weights are held at least once.
  std::int64_t bytes = config.model.tie_word_embeddings ? pieces.both.static_bytes
                                                        : pieces.embedding.static_bytes + pieces.head.static_bytes;
  std::int64_t kept = pieces.embedding.kept_bytes + pieces.head.kept_bytes;
  seconds += shown_seconds(pieces.predictors, hides);
  for (const auto& [kind, piece] : pieces.blocks) {
    seconds += piece.count * shown_seconds(piece, hides);
    on_adapters += piece.count * piece.on_adapters;
    bytes += piece.count * piece.static_bytes;
    kept += piece.count * piece.kept_bytes;
  }
  const UnitsOfModel units = units_of_model(config, pieces, stages);
  std::set<int> nodes;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) nodes.insert(node_of(pieces, rank));
  double of_rank = microbatches * seconds;
  if (config.run.device == DeviceKind::cpu) {
    of_rank += units.seconds.gathers + units.seconds.reductions;
  } else {
    of_rank = std::max({of_rank, units.seconds.gathers, units.seconds.reductions});
  }
  const double of_node = microbatches * on_adapters + units.on_adapters.gathers + units.on_adapters.reductions;
  LeastTaken least{.seconds = rounding * std::max(of_rank / ranks, of_node / static_cast<double>(nodes.size()))};
  if (!pieces.separable) return least;
  least.static_bytes = static_cast<std::int64_t>(static_cast<double>(bytes) / ranks);
  // When a rank has run the first forward of its last stage, it keeps that microbatch for all its stages. It has used
  // the units of all of them and will use them again.
  least.bytes = static_cast<std::int64_t>(static_cast<double>(bytes + kept + units.parameters) / ranks);
  return least;
}

double seconds_of_pipeline(const Config& config, const ModelPieces& pieces) {
  const int ranks = config.parallelism.pipeline;
  if (ranks == 1 || config.pipeline.first_stage_blocks || config.pipeline.last_stage_blocks) return 0.0;
  const Schedule& schedule = find_schedule(config.pipeline.schedule);
  // The embedding, which may wait in a backward of its own, is left out. The head is on the last rank.
  double all = shown_seconds(pieces.head, false) + shown_seconds(pieces.predictors, schedule.overlaps);
  double of_one = passing_seconds(pieces.head, schedule);
  double least_block = std::numeric_limits<double>::infinity(), least_wait = least_block, fraction = 1.0;
  for (const auto& [kind, piece] : pieces.blocks) {
    const double seconds = shown_seconds(piece, schedule.overlaps), wait = waited_seconds(piece, schedule);
    all += piece.count * seconds;
    of_one += piece.count * passing_seconds(piece, schedule);
    least_block = std::min(least_block, seconds);
    least_wait = std::min(least_wait, wait);
    if (seconds > 0.0) fraction = std::min(fraction, wait / seconds);
  }
  const auto microbatches = static_cast<double>(config.microbatches());
  // A microbatch passes every piece forward and backward.
  double seconds = of_one;
  if (config.stages() == ranks) {
    // With x(r) the seconds of a microbatch on rank r, rank r takes microbatches * x(r), and before and behind that
    // fraction * (x(0) + ... + x(r - 1)). The sum of all x is largest if every rank takes equally long.
    const double kept = 1.0 - fraction / microbatches;
    if (fraction > 0.0) seconds = std::max(seconds, fraction * all / (1.0 - std::pow(kept, ranks)));
  } else if (config.stages() <= config.model.layers()) {
    // Each of the r stages before rank r has a block.
    seconds = std::max({seconds, microbatches * all / ranks + least_wait * (ranks - 1) / 2.0,
                        seconds_of_dealt(config.model.layers(), ranks, microbatches * least_block, least_wait)});
  }
  return rounding * seconds;
}

LeastTaken least_of_any_layout(const Config& config, const ModelPieces& pieces) {
  LeastTaken least = least_of_any_order(config, pieces, config.stages());
  least.seconds = std::max(least.seconds, seconds_of_pipeline(config, pieces));
  return least;
}

LeastTaken least_of_any_list(const Config& config, const ModelPieces& pieces, const std::vector<StageBlocks>& layout) {
  const std::vector<StageSums> stages = sums_of_stages(config, pieces, layout);
  std::vector<double> hidden;
  for (const StageSums& stage : stages) {
    hidden.push_back(hides_rows(config) ? static_cast<double>(config.microbatches()) * stage.sum.rows : 0.0);
  }
  LeastTaken least = least_of_ranks(config, pieces, stages, hidden);
  least.seconds *= rounding;
  if (!pieces.separable) least.static_bytes = 0;
  least.bytes = least.static_bytes;
  return least;
}

LeastTaken least_taken(const Config& config, const ModelPieces& pieces, const std::vector<StageBlocks>& layout) {
  const Program program = schedule_only_step(config);
  const std::vector<std::vector<Action>>& order = program.ranks;
  const std::vector<StageSums> stages = sums_of_stages(config, pieces, layout);
  std::vector<Overlaps> overlaps;
  std::vector<double> hidden(stages.size(), 0.0);
  for (const std::vector<Action>& actions : order) {
    overlaps.push_back(find_overlaps(actions));
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!overlaps.back().pair_of[i]) continue;
      const auto stage = static_cast<std::size_t>(*actions[i].stage);
      const ModelPiece& sum = stages[stage].sum;
      hidden[stage] += actions[i].op == Op::forward ? sum.forward_rows : sum.rows - sum.forward_rows;
    }
  }
  LeastTaken least = least_of_ranks(config, pieces, stages, hidden);
  if (order.size() > 1) {
    least.seconds = std::max(least.seconds, OrderWalk(program, overlaps, stages, pieces.message).seconds());
  }
  least.seconds *= rounding;
  if (!pieces.separable) {
    least.static_bytes = 0;
    return least;
  }
  std::vector<std::int64_t> bytes(order.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    bytes[static_cast<std::size_t>(program.stages[s].rank)] += stages[s].sum.static_bytes;
  }
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    least.bytes = std::max(least.bytes, bytes[rank] + most_kept(order[rank], stages, config.microbatches()));
  }
  return least;
}

}  // namespace weft
