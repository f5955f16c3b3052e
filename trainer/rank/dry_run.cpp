#include "trainer/rank/dry_run.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <unordered_set>
#include <utility>

#include "layers/kernels/kernels.h"
#include "layers/token_relay.h"
#include "parallel/comm/lone_communicator.h"
#include "parallel/runtime/dry_device.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/rank/checkpoint_rows.h"
#include "trainer/rank/launch.h"
#include "trainer/rank/rank_step.h"

namespace weft {
namespace {

// Number of choices, by expert, among those that a rank sorts. They are those of its own tokens for all experts, or
// those of relayed tokens for the experts of its part. If an even routing leaves a remainder, the experts with one
// choice more are evenly spaced.
std::vector<std::int32_t> dealt(const Config& config, int expert_rank, Routing routing) {
  const Degrees& d = config.parallelism;
  const MoeConfig& moe = config.model.moe;
  // At worst, no choice is a null slot.
  const std::int64_t all = moe.num_experts,
                     chosen = routing == Routing::worst ? moe.choices() : moe.num_experts_per_tok;
  const std::int64_t tokens = config.microbatch_tokens() / (d.context * d.tensor), choices = tokens * chosen;
  const std::int64_t parts = d.expert_relay(), experts = all / parts;
  // A token chooses each expert at most once, and an expert takes no more than its capacity.
  std::int64_t most = tokens;
  if (moe.drops()) {
    most = moe.capacity_rows(tokens, config.training.microbatch_size, config.training.sequence_length);
  }
  // At worst, tokens choose experts from this rank's first expert on, first those of its part.
  const std::int64_t own = expert_rank * (all / d.expert), first = own / experts * experts;
  std::vector<std::int32_t> counts(static_cast<std::size_t>(experts));
  std::int64_t left = choices;
  for (std::int64_t i = 0; i < experts; ++i) {
    const std::int64_t e = routing == Routing::worst ? (own + i) % experts : i;
    const std::int64_t even = (first + e + 1) * choices / all - (first + e) * choices / all;
    const std::int64_t count = std::min(most, routing == Routing::worst ? left : even);
    counts[e] = static_cast<std::int32_t>(parts * count);
    left -= count;
  }
  return counts;
}

// Copies of one rank's tokens that a hierarchical dispatch sends to each part of the expert group. At worst, all go to
// the part of the walking rank, and to as many others as tokens reach.
std::vector<std::int32_t> dealt_copies(const Config& config, int expert_rank, Routing routing) {
  const Degrees& d = config.parallelism;
  const int parts = d.expert_relay();
  const std::int64_t tokens = config.microbatch_tokens() / (d.context * d.tensor);
  if (routing == Routing::even) {
    const std::int64_t even = even_copies(config.model.moe, parts, tokens);
    return std::vector(static_cast<std::size_t>(parts), static_cast<std::int32_t>(even));
  }
  std::vector<std::int32_t> counts(static_cast<std::size_t>(parts));
  const int part = expert_rank / (d.expert / parts);
  for (std::int64_t i = 0; i < copies_of_token(config.model.moe, parts).most; ++i) {
    counts[(part + i) % parts] = static_cast<std::int32_t>(tokens);
  }
  return counts;
}

// The row counts that ranks exchange in a run, one row for each rank. They are those of experts, and before them in
// each block those of parts if the dispatch is hierarchical. Experts that are padded to their capacity need none.
DryDownload exchanged_counts(const Config& config, int expert_rank, Routing routing) {
  std::vector<std::vector<std::int32_t>> in_turn;
  if (config.parallelism.expert_dispatch == ExpertDispatch::hierarchical && config.parallelism.expert_relay() > 1) {
    in_turn.push_back(dealt_copies(config, expert_rank, routing));
  }
  const bool counts_rows = config.model.has(BlockKind::moe) && !config.model.moe.pads();
  if (counts_rows) in_turn.push_back(dealt(config, expert_rank, routing));
  return [in_turn, next = std::size_t{0}](std::span<std::byte> destination) mutable {
    require(!in_turn.empty(), "expert counts are all that a step downloads before its totals");
    const std::vector<std::int32_t>& counts = in_turn[next++ % in_turn.size()];
    const std::size_t row = counts.size() * sizeof(std::int32_t);
    require(row > 0 && destination.size() % row == 0, "expert counts are all that a step downloads before its totals");
    for (std::size_t at = 0; at < destination.size(); at += row) std::memcpy(&destination[at], counts.data(), row);
  };
}

class DryUpdate final : public RowsUpdate {
 public:
  explicit DryUpdate(std::span<const UpdateRows> rows) {
    for (const UpdateRows& each : rows) {
      if (each.gradients.empty()) continue;
      const std::int64_t kept = each.parameters.bytes() + each.first_state.bytes() + each.second_state.bytes();
      read_ += kept + each.gradients.bytes();
      written_ += kept;
    }
  }
  void norms(Stream& stream, std::span<const GroupStep>, ConstTensorView, TensorView) override {
    tell(stream, {.name = "update_norms", .read = read_});
  }
  void run(Stream& stream, std::span<const GroupStep>, ConstTensorView, ConstTensorView) override {
    tell(stream, {.name = "update", .read = read_, .written = written_});
  }

 private:
  std::int64_t read_ = 0, written_ = 0;
};

MuonKernels dry_muon_kernels() {
  return {.momentum =
              [](Stream& stream, const MuonMomentum& rows) {
                tell(stream, {.name = "muon_momentum",
                              .read = rows.gradients.bytes() + rows.momentum.bytes(),
                              .written = rows.momentum.bytes() + rows.update.bytes()});
              },
          .change =
              [](Stream& stream, const MuonChange& rows) {
                tell(stream, {.name = "muon_change",
                              .read = rows.direction.bytes() + rows.values.bytes(),
                              .written = rows.values.bytes()});
              }};
}

Backend dry_backend(const Config& config, DryDownload download, std::vector<AttentionCall>* attention) {
  const DryWorkspace workspace = config.run.device == DeviceKind::cpu ? DryWorkspace::of_cpu : DryWorkspace::of_cuda;
  LayerKernels kernels = dry_layer_kernels(workspace, gpu_kernel_options(config));
  if (attention != nullptr) kernels.attention = kernels.attention.recorded(*attention);
  return {.device = make_dry_device(std::move(download)),
          .layer_kernels = std::move(kernels),
          .optimizer_kernels = {.make_update = [](Stream&, MemoryLedger&, std::vector<UpdateRows> rows,
                                                  std::vector<UpdateRule>) -> std::unique_ptr<RowsUpdate> {
                                  return std::make_unique<DryUpdate>(rows);
                                },
                                .clip_scale = DryKernel<"clip_scale">(),
                                .muon = dry_muon_kernels()},
          .make_products = [workspace](Stream& stream, MemoryLedger& ledger) {
            return make_dry_matrix_products(workspace, stream, ledger);
          }};
}

// Finds what a step keeps in memory, from its allocations and releases in order.
class MemoryEvents final : public MemoryObserver, public ActionObserver {
 public:
  // `found` outlives the events, and gets its figures along the list and its peak_action.
  MemoryEvents(const Program& program, int pipeline_rank, DryRun& found)
      : program_(program), actions_(program.ranks[pipeline_rank]), found_(found) {
    found_.walk.actions.resize(actions_.size());
    found_.beside_units.resize(actions_.size());
  }

  void begin(std::size_t action) override {
    action_ = action;
    found_.beside_units[action] = beside_;
    found_.walk.actions[action].most = now_;
    most_now_ = total_;
  }
  void end(std::size_t action) override { found_.walk.actions[action].after = now_; }
  void allocated(const void* data, Bucket bucket, std::int64_t bytes) override {
    live_.came(data, {bucket, action_, bytes});
    total_ += bytes;
    now_[bucket] += bytes;
    BucketBytes& most = action_ ? found_.walk.actions[*action_].most : found_.walk.before;
    if (total_ > most_now_) {
      most = now_;
      most_now_ = total_;
    }
    if (comes_with_unit(bucket)) {
      of_units_.insert(data);
    } else {
      beside_ += bytes;
      if (action_) found_.beside_units[*action_] = std::max(found_.beside_units[*action_], beside_);
    }
    if (total_ <= most_) return;
    most_ = total_;
    found_.peak_action = action_;
    live_.mark_peak();
  }
  void released(const void* data, Bucket bucket, std::int64_t bytes) override {
    live_.went(data);
    total_ -= bytes;
    now_[bucket] -= bytes;
    if (of_units_.erase(data) == 0) beside_ -= bytes;
  }
  // Before the step. `kept`: bytes that are already allocated.
  void begin_step(const BucketBytes& kept) {
    now_ = found_.walk.before = kept;
    total_ = most_ = most_now_ = beside_ = kept.total();
  }

  std::vector<LiveTensors> live_at_peak() const { return live_.at_peak(); }

 private:
  bool comes_with_unit(Bucket bucket) const {
    if (bucket == Bucket::unsharded_parameters || bucket == Bucket::unsharded_gradients) return true;
    if (!action_ || bucket != Bucket::communication || !is_reduction(actions_[*action_].op)) return false;
    return !program_.units[*actions_[*action_].unit].replicated;
  }

  const ProgramTables& program_;
  std::span<const Action> actions_;
  DryRun& found_;
  LiveLog live_;
  std::optional<std::size_t> action_;
  BucketBytes now_;
  std::int64_t total_ = 0, most_ = 0, most_now_ = 0;  // now, in the step, and in this action
  std::int64_t beside_ = 0;                           // of total_, without the tensors in of_units_
  std::unordered_set<const void*> of_units_;          // live tensors
};

// The program with this rank's list. Of the other ranks' lists it keeps only the sends to this rank: a pipeline may
// have a thousand ranks.
Program list_of_rank(const Program& program, int pipeline_rank) {
  Program own{static_cast<const ProgramTables&>(program), program.microbatches, {}};
  own.ranks.resize(program.ranks.size());
  auto& list = own.ranks[pipeline_rank] = program.ranks[pipeline_rank];
  std::set<int> senders;
  for (const Action& action : list) {
    if (is_receive(action.op) && *action.peer != pipeline_rank) senders.insert(*action.peer);
  }
  const auto sends_here = [&](const Action& action) { return is_send(action.op) && action.peer == pipeline_rank; };
  for (const auto sender : senders) {
    std::ranges::copy_if(program.ranks[sender], std::back_inserter(own.ranks[sender]), sends_here);
  }
  return own;
}

// A rank with a device without memory, and without peers.
class DryRank {
 public:
  // `attention`, if given, takes the calls of attention, and outlives the rank.
  DryRank(const Config& config, const Mesh& mesh, const Program& program, int rank, Routing routing,
          std::vector<AttentionCall>* attention = nullptr)
      : backend_(dry_backend(config, exchanged_counts(config, mesh.coordinates(rank).ep, routing), attention)) {
    clock_.set_mode(PhaseClock::Mode::off);
    const MakeGroup make_group = [this](Group group, const std::vector<int>& members, int place, Stream& stream) {
      return std::make_unique<DryCommunicator>(std::string(name_of(group)), place, static_cast<int>(members.size()),
                                               stream, counters_, clock_);
    };
    step_.emplace(config, mesh, list_of_rank(program, mesh.coordinates(rank).pp), rank, backend_, clock_, make_group,
                  std::nullopt);
  }

  RankStep& step() { return *step_; }
  DryDevice& device() { return static_cast<DryDevice&>(*backend_.device); }
  const CommunicationCounters& counters() const { return counters_; }

  // Walks one step. Peak and counters are those of this step.
  void walk(std::span<ActionObserver* const> observers) {
    counters_.clear();
    step_->ledger().reset_peak();
    step_->begin({});
    step_->walk(observers);
    step_->end();
  }

 private:
  Backend backend_;
  PhaseClock clock_;
  CommunicationCounters counters_;
  std::optional<RankStep> step_;
};

}  // namespace

bool routing_decides(const Config& config) {
  const MoeConfig& moe = config.model.moe;
  const bool some_unrouted = moe.drops() || moe.null_copies() > 0 || config.data.documents == Documents::pack;
  return config.model.has(BlockKind::moe) && (config.parallelism.expert > 1 || (some_unrouted && !moe.pads()));
}

DryRun dry_run(const Config& config, const Mesh& mesh, const Program& program, int rank, Routing routing) {
  DryRun result;
  // Declared before the walker: outlives the tensors that it observes.
  MemoryEvents events(program, mesh.coordinates(rank).pp, result);
  DryRank walker(config, mesh, program, rank, routing);
  RankStep& step = walker.step();

  // Tensors of the set-up were allocated before the events are observed; they stay allocated.
  const BucketBytes kept = step.ledger().live();
  step.ledger().observe(events);
  events.begin_step(kept);
  ActionObserver* observers[] = {&events};
  walker.walk(observers);

  result.peak = step.ledger().at_peak();
  result.live = events.live_at_peak();
  for (const Bucket bucket : all_values<Bucket>) {
    if (kept[bucket] > 0) result.live.insert(result.live.begin(), {bucket, std::nullopt, kept[bucket]});
  }
  result.communication = walker.counters();
  for (const CheckpointRows& rows : checkpoint_rows(step.stages(), step.optimizer(), mesh, rank)) {
    if (rows.saved) result.saved_bytes += rows.values.bytes();
  }
  result.host = step.host_ledger().live();
  return result;
}

BucketBytes dry_peak(const Config& config, const Mesh& mesh, const Program& program, int rank, Routing routing) {
  DryRank walker(config, mesh, program, rank, routing);
  walker.walk({});
  return walker.step().ledger().at_peak();
}

BucketBytes dry_forward_peak(const Config& config, const Mesh& mesh, const Program& program, int rank,
                             const Config& forward, Routing routing) {
  DryRank walker(config, mesh, program, rank, routing);
  RankStep& step = walker.step();
  ForwardPlan plan = plan_forward(forward, mesh, mesh.coordinates(rank));
  const TextParts parts = forward.held_out_parts();
  const std::int64_t numbers = parts.count() * forward.rank_tokens();
  step.ledger().reset_peak();
  step.forwards(plan, 1, [&](std::int64_t) { return parts_of(step.text().rows_from(0, numbers), parts); }, {});
  return step.ledger().at_peak();
}

void dry_walk(const Config& config, const Mesh& mesh, const Program& program, int rank, KernelObserver& kernels,
              ActionObserver& actions) {
  DryRank walker(config, mesh, program, rank, Routing::even);
  walker.device().observe(&kernels);
  ActionObserver* observers[] = {&actions};
  walker.walk(observers);
}

StepCalls dry_calls(const Config& config, const Mesh& mesh, const Program& program, int rank) {
  struct Products final : KernelObserver {
    void called(const KernelCall& call) override {
      if (call.kind == KernelKind::product) ++calls[call.product];
    }
    std::map<ProductCall, std::int64_t> calls;
  } products;
  StepCalls calls;
  DryRank walker(config, mesh, program, rank, Routing::even, &calls.attention);
  walker.device().observe(&products);
  walker.device().count_host_blocks();
  walker.walk({});
  calls.host_blocks = walker.device().host_blocks();
  calls.products = std::move(products.calls);
  return calls;
}

std::vector<DryRun> dry_runs(const Config& config, const Mesh& mesh, const Program& program, const Coordinates& at,
                             Routing routing) {
  std::vector<DryRun> made(static_cast<std::size_t>(mesh.degrees().pipeline));
  spread_work(made.size(), dry_threads(), [&](std::size_t pipeline_rank) {
    const int rank = mesh.rank_at(static_cast<int>(pipeline_rank), at.dp_replicate, at.dp_shard, at.cp, at.tp);
    made[pipeline_rank] = dry_run(config, mesh, program, rank, routing);
  });
  return made;
}

std::size_t dry_threads() {
  return std::min<std::size_t>(host_cores(), 8);
}

}  // namespace weft
