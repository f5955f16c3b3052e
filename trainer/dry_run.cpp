#include "trainer/dry_run.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "layers/kernels/dry_kernels.h"
#include "parallel/comm/dry_communicator.h"
#include "parallel/runtime/dry_device.h"
#include "trainer/checkpoint/checkpoint_rows.h"
#include "trainer/rank_step.h"

namespace weft {
namespace {

// Choices of one rank's tokens by expert. Dealt evenly where they do not divide, experts with one more stand in equal
// distances.
std::vector<std::int32_t> dealt(const Config& config, int expert_rank, Routing routing) {
  const Degrees& d = config.parallelism;
  const std::int64_t experts = config.model.moe.num_experts, chosen = config.model.moe.num_experts_per_tok;
  const std::int64_t tokens = config.microbatch_tokens() / (d.context * d.tensor);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(experts));
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t choices = tokens * chosen;
    std::int64_t count = (expert + 1) * choices / experts - expert * choices / experts;
    if (routing == Routing::worst) {
      // A token chooses an expert once: from the first of this rank's on, as many experts as it may choose.
      const std::int64_t first = expert_rank * (experts / d.expert);
      count = (expert - first + experts) % experts < chosen ? tokens : 0;
    }
    counts[static_cast<std::size_t>(expert)] = static_cast<std::int32_t>(count);
  }
  return counts;
}

// Expert counts as the ranks of an expert group would exchange them: a row of counts for each rank.
DryDownload exchanged_counts(const Config& config, int expert_rank, Routing routing) {
  return [counts = dealt(config, expert_rank, routing)](std::span<std::byte> destination) {
    const std::size_t row = counts.size() * sizeof(std::int32_t);
    require(row > 0 && destination.size() % row == 0, "expert counts are all that a step downloads before its totals");
    for (std::size_t at = 0; at < destination.size(); at += row) std::memcpy(&destination[at], counts.data(), row);
  };
}

class NoUpdate final : public RowsUpdate {
 public:
  void norms(Stream&, std::span<const GroupStep>, ConstTensorView, TensorView) override {}
  void run(Stream&, std::span<const GroupStep>, ConstTensorView, ConstTensorView) override {}
};

class DryBackend final : public Backend {
 public:
  DryBackend(const Config& config, DryDownload download)
      : workspace_(config.run.device == DeviceKind::cpu ? DryWorkspace::of_cpu : DryWorkspace::of_cuda),
        device_(make_dry_device(std::move(download))) {}
  Device& device() override { return *device_; }
  const LayerKernels& layer_kernels() const override { return layer_kernels_; }
  const OptimizerKernels& optimizer_kernels() const override { return optimizer_kernels_; }
  std::unique_ptr<MatrixProducts> make_products(Stream&, MemoryLedger& ledger) override {
    return make_dry_matrix_products(workspace_, ledger);
  }

 private:
  DryWorkspace workspace_;
  std::unique_ptr<Device> device_;
  LayerKernels layer_kernels_ = dry_layer_kernels(workspace_);
  OptimizerKernels optimizer_kernels_ = {
      .make_update = [](Stream&, MemoryLedger&, std::vector<UpdateRows>, std::vector<UpdateRule>)
          -> std::unique_ptr<RowsUpdate> { return std::make_unique<NoUpdate>(); },
      .clip_scale = [](Stream&, ConstTensorView, double, double, TensorView) {},
      .muon = {.momentum = [](Stream&, const MuonMomentum&) {}, .change = [](Stream&, const MuonChange&) {}},
  };
};

// What comes and goes, in order, and during which action.
class MemoryEvents final : public MemoryObserver, public ActionObserver {
 public:
  MemoryEvents(const Program& program, int pipeline_rank)
      : program_(program),
        actions_(program.ranks[static_cast<std::size_t>(pipeline_rank)]),
        beside_units_(actions_.size()) {
    walk_.actions.resize(actions_.size());
  }

  void begin(std::size_t action) override {
    action_ = action;
    beside_units_[action] = beside_;
    walk_.actions[action].most = now_;
  }
  void end(std::size_t action) override { walk_.actions[action].after = now_; }
  void allocated(const void* data, Bucket bucket, std::int64_t bytes) override {
    events_.push_back({data, bytes, action_, bucket, true});
    total_ += bytes;
    now_[bucket] += bytes;
    BucketBytes& most = action_ ? walk_.actions[*action_].most : walk_.before;
    if (total_ > most.total()) most = now_;
    if (comes_with_unit(bucket)) {
      of_units_.insert(data);
    } else {
      beside_ += bytes;
      if (action_) beside_units_[*action_] = std::max(beside_units_[*action_], beside_);
    }
    if (total_ <= most_) return;
    most_ = total_;
    peak_ = events_.size();
  }
  void released(const void* data, Bucket bucket, std::int64_t bytes) override {
    events_.push_back({data, bytes, action_, bucket, false});
    total_ -= bytes;
    now_[bucket] -= bytes;
    if (of_units_.erase(data) == 0) beside_ -= bytes;
  }
  // From here on the peak counts, as it does for a ledger that is reset. `kept`: what is there already.
  void begin_step(const BucketBytes& kept) {
    now_ = walk_.before = kept;
    total_ = most_ = beside_ = kept.total();
    peak_ = events_.size();
    peak_before_actions_ = peak_;
  }

  const LedgerWalk& walk() const { return walk_; }
  const std::vector<std::int64_t>& beside_units() const { return beside_units_; }

  std::optional<std::size_t> peak_action() const {
    return peak_ == peak_before_actions_ ? std::nullopt : events_[peak_ - 1].action;
  }

  std::vector<LiveTensors> live_at_peak() const {
    std::unordered_map<const void*, const MemoryEvent*> live;
    for (std::size_t i = 0; i < peak_; ++i) {
      const MemoryEvent& event = events_[i];
      if (event.comes) {
        live[event.data] = &event;
      } else {
        live.erase(event.data);
      }
    }
    std::map<std::pair<Bucket, std::optional<std::size_t>>, std::int64_t> sums;
    for (const auto& [data, event] : live) sums[{event->bucket, event->action}] += event->bytes;
    std::vector<LiveTensors> result;
    for (const auto& [key, bytes] : sums) {
      if (bytes > 0) result.push_back({key.first, key.second, bytes});
    }
    return result;
  }

 private:
  bool comes_with_unit(Bucket bucket) const {
    if (bucket == Bucket::unsharded_parameters || bucket == Bucket::unsharded_gradients) return true;
    if (!action_ || bucket != Bucket::communication || !is_reduction(actions_[*action_].op)) return false;
    return !program_.units[static_cast<std::size_t>(*actions_[*action_].unit)].replicated;
  }

  struct MemoryEvent {
    const void* data;
    std::int64_t bytes;
    std::optional<std::size_t> action;
    Bucket bucket;
    bool comes;
  };
  const ProgramTables& program_;
  std::span<const Action> actions_;
  std::vector<MemoryEvent> events_;
  std::optional<std::size_t> action_;
  LedgerWalk walk_;
  BucketBytes now_;
  std::int64_t total_ = 0, most_ = 0;
  std::int64_t beside_ = 0;                         // of the total, without what is in of_units_
  std::unordered_set<const void*> of_units_;        // live tensors
  std::vector<std::int64_t> beside_units_;          // by action
  std::size_t peak_ = 0, peak_before_actions_ = 0;  // events up to there
};

// The program with as much of the lists of others as sends to this rank: a pipeline may have a thousand ranks.
Program list_of_rank(const Program& program, int pipeline_rank) {
  Program own{static_cast<const ProgramTables&>(program), program.microbatches, {}};
  for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
    const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
    auto& kept = own.ranks.emplace_back();
    if (rank == pipeline_rank) kept = actions;
    const auto sends_here = [&](const Action& action) { return is_send(action.op) && action.peer == pipeline_rank; };
    if (rank != pipeline_rank) std::ranges::copy_if(actions, std::back_inserter(kept), sends_here);
  }
  return own;
}

}  // namespace

bool routing_decides(const Config& config) {
  const bool routes = std::ranges::find(config.model.blocks, BlockKind::moe) != config.model.blocks.end();
  return routes && config.parallelism.expert > 1;
}

DryRun dry_run(const Config& config, const Mesh& mesh, const Program& program, int rank, Routing routing) {
  const Coordinates at = mesh.coordinates(rank);
  DryBackend backend(config, exchanged_counts(config, at.ep, routing));
  PhaseClock clock;
  clock.set_mode(PhaseClock::Mode::off);
  CommunicationCounters counters;
  const MakeGroup make_group = [&](Group group, const std::vector<int>& members, int place, Stream& stream) {
    return std::make_unique<DryCommunicator>(std::string(name_of(group)), place, static_cast<int>(members.size()),
                                             stream, counters, clock);
  };
  MemoryEvents events(program, at.pp);  // hears of what goes last, too
  RankStep step(config, mesh, list_of_rank(program, at.pp), rank, backend, clock, make_group, std::nullopt);

  // Tensors of the set-up are not among the events: what there is of them stays.
  DryRun result;
  const BucketBytes kept = step.ledger().live();
  counters.clear();
  step.ledger().observe(events);
  events.begin_step(kept);
  step.ledger().reset_peak();
  step.begin({});
  ActionObserver* observers[] = {&events};
  step.walk(observers);
  step.end();

  result.walk = events.walk();
  result.peak = step.ledger().at_peak();
  result.peak_action = events.peak_action();
  result.live = events.live_at_peak();
  result.beside_units = events.beside_units();
  for (std::size_t b = 0; b < bucket_count; ++b) {
    const auto bucket = static_cast<Bucket>(b);
    if (kept[bucket] > 0) result.live.insert(result.live.begin(), {bucket, std::nullopt, kept[bucket]});
  }
  result.communication = counters;
  for (const CheckpointRows& rows : checkpoint_rows(step.stages(), step.optimizer(), mesh, rank)) {
    if (rows.saved) result.saved_bytes += rows.values.bytes();
  }
  return result;
}

std::vector<DryRun> dry_runs(const Config& config, const Mesh& mesh, const Program& program, const Coordinates& at,
                             Routing routing) {
  std::vector<DryRun> runs;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    const int of_mesh = mesh.rank_at(rank, at.dp_replicate, at.dp_shard, at.cp, at.tp);
    runs.push_back(dry_run(config, mesh, program, of_mesh, routing));
  }
  return runs;
}

}  // namespace weft
