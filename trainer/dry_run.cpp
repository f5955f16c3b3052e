#include "trainer/dry_run.h"

#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "layers/kernels/dry_kernels.h"
#include "parallel/comm/dry_communicator.h"
#include "parallel/runtime/dry_device.h"
#include "trainer/rank_step.h"

namespace weft {
namespace {

// Expert counts as the ranks of an expert group would exchange them: a row of counts for each rank, whose choices are
// dealt evenly; where they do not divide, those with one more stand in equal distances.
DryDownload even_counts(const Config& config) {
  const Degrees& d = config.parallelism;
  const std::int64_t experts = config.model.moe.num_experts;
  const std::int64_t choices =
      config.microbatch_tokens() / (d.context * d.tensor) * config.model.moe.num_experts_per_tok;
  return [experts, choices](std::span<std::byte> destination) {
    const auto count = static_cast<std::int64_t>(destination.size() / sizeof(std::int32_t));
    require(experts > 0 && count % experts == 0, "expert counts are all that a step downloads before its totals");
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t expert = i % experts;
      const auto value = static_cast<std::int32_t>((expert + 1) * choices / experts - expert * choices / experts);
      std::memcpy(destination.data() + i * size_of(DType::int32), &value, sizeof value);
    }
  };
}

class NoUpdate final : public RowsUpdate {
 public:
  void norms(Stream&, std::span<const GroupStep>, ConstTensorView, TensorView) override {}
  void run(Stream&, std::span<const GroupStep>, ConstTensorView, ConstTensorView) override {}
};

class DryBackend final : public Backend {
 public:
  explicit DryBackend(const Config& config)
      : workspace_(config.run.device == DeviceKind::cpu ? DryWorkspace::of_cpu : DryWorkspace::of_cuda),
        device_(make_dry_device(even_counts(config))) {}
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
  void begin(std::size_t action) override { action_ = action; }
  void end(std::size_t) override {}
  void allocated(const void* data, Bucket bucket, std::int64_t bytes) override {
    events_.push_back({data, bytes, action_, bucket, true});
    total_ += bytes;
    if (total_ <= most_) return;
    most_ = total_;
    peak_ = events_.size();
  }
  void released(const void* data, Bucket bucket, std::int64_t bytes) override {
    events_.push_back({data, bytes, action_, bucket, false});
    total_ -= bytes;
  }
  // From here on the peak counts, as it does for a ledger that is reset.
  void begin_step() {
    most_ = total_;
    peak_ = events_.size();
    peak_before_actions_ = peak_;
  }

  std::optional<std::size_t> peak_action() const {
    return peak_ == peak_before_actions_ ? std::nullopt : events_[peak_ - 1].action;
  }

  std::vector<LiveBytes> live_at_peak() const {
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
    std::vector<LiveBytes> result;
    for (const auto& [key, bytes] : sums) {
      if (bytes > 0) result.push_back({key.first, key.second, bytes});
    }
    return result;
  }

 private:
  struct MemoryEvent {
    const void* data;
    std::int64_t bytes;
    std::optional<std::size_t> action;
    Bucket bucket;
    bool comes;
  };
  std::vector<MemoryEvent> events_;
  std::optional<std::size_t> action_;
  std::int64_t total_ = 0, most_ = 0;
  std::size_t peak_ = 0, peak_before_actions_ = 0;  // events up to there
};

}  // namespace

DryRun dry_run(const Config& config, const Mesh& mesh, Program program, int rank) {
  DryBackend backend(config);
  PhaseClock clock;
  clock.set_mode(PhaseClock::Mode::off);
  CommunicationCounters counters;
  const MakeGroup make_group = [&](Group group, const std::vector<int>& members, int place, Stream& stream) {
    return std::make_unique<DryCommunicator>(std::string(name_of(group)), place, static_cast<int>(members.size()),
                                             stream, counters, clock);
  };
  MemoryEvents events;  // hears of what goes last, too
  RankStep step(config, mesh, std::move(program), rank, backend, clock, make_group, std::nullopt);

  // Tensors of the set-up are not among the events: what there is of them stays.
  DryRun result;
  result.kept = step.ledger().live();
  counters.clear();
  step.ledger().observe(events);
  events.begin_step();
  step.ledger().reset_peak();
  step.begin({});
  ActionObserver* observers[] = {&events};
  step.walk(observers);
  step.end();

  result.peak = step.ledger().at_peak();
  result.peak_action = events.peak_action();
  result.live = events.live_at_peak();
  for (std::size_t b = 0; b < bucket_count; ++b) {
    const auto bucket = static_cast<Bucket>(b);
    if (result.kept[bucket] > 0) result.live.insert(result.live.begin(), {bucket, std::nullopt, result.kept[bucket]});
  }
  result.communication = counters;
  return result;
}

}  // namespace weft
