#include "trainer/planning/kernel_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "parallel/pipeline/execute/execute.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/parameter.h"
#include "trainer/costs/step_flops.h"
#include "trainer/rank/dry_run.h"

namespace weft {
namespace {

// Measured with cuDNN 9.19 in steps on an H200 at its power limit (docs/gpu-results.md), causal, bfloat16, head size
// 128, sequences of 4,096. They reach 495 TFLOP/s forward and 387 backward, of 989. Alone on a cool card they reach 600
// and 479, as NVIDIA says; shorter sequences reach less, longer ones more.
constexpr double attention_forward_share = 0.50, attention_backward_share = 0.39;
// Of Weft's scans of state spaces: 64 heads of 64 columns, 128 elements of a state, 8 groups. In a step in float8 they
// reached 5.2 and 3.6 %. In bfloat16 the card's clock is slower: the same kernels took 6 % longer.
constexpr double scan_forward_share = 0.050, scan_backward_share = 0.034;

// The share of the peak that a call's operations reach; `of_products` for a product.
double reached_share(const KernelCall& call, double of_products) {
  if (call.name == "scan_tokens_forward") return scan_forward_share;
  if (call.name == "scan_tokens_backward") return scan_backward_share;
  if (call.kind != KernelKind::attention) return of_products;
  return call.name == "attention_backward" ? attention_backward_share : attention_forward_share;
}

std::string_view phase_of(Op op) {
  if (is_compute(op)) return computation_name(op);
  if (is_gather(op) || is_reshard(op)) return "gather";
  if (is_send(op) || is_receive(op)) return "message";
  if (is_row_exchange(op)) return "rows";
  if (takes_kept(op)) return "offload";
  return takes_unit(op) ? "reduce" : "update";
}

std::string kernel_text(const KernelCall& call) {
  if (call.kind != KernelKind::product) return std::string(call.name);
  const std::string_view dtype = call.dtype == DType::float32                ? " float32"
                                 : size_of(call.dtype) > 1                   ? ""
                                 : call.product.scaled_a == ScaledBlock::all ? " float8"
                                                                             : " float8_blocks";
  return fmt::format("{} {} x {} x {}{}", call.name, call.product.rows, call.product.columns, call.product.inner,
                     dtype);
}

const Figure& peak_of(const KernelCall& call, const Hardware& hardware) {
  if (call.product.scaled_a != ScaledBlock::all) return hardware.flops_per_second(ProductFormat::float8_blocks);
  return hardware.flops_per_second(call.dtype);
}

// Seconds of a call without its launch.
KernelSeconds busy_seconds(const KernelCall& call, const Hardware& hardware) {
  const std::optional<double> bytes_per_second = hardware.moved_bytes_per_second();
  if (!bytes_per_second) {
    fail_request(
        "nobody has measured how fast the memory of \"{}\" is: its kernels have no time. Name a card: --hardware h200",
        hardware.name);
  }
  const double moved = static_cast<double>(call.read + call.written) / *bytes_per_second;
  KernelSeconds seconds;
  for (std::size_t i = 0; i < product_shares.size(); ++i) {
    const double computed = call.flops / (reached_share(call, product_shares[i]) * peak_of(call, hardware).value);
    seconds.at[i] = std::max(moved, computed);
  }
  return seconds;
}

class KernelSum final : public KernelObserver, public ActionObserver {
 public:
  KernelSum(const Program& program, std::span<const Action> actions, const Hardware& hardware)
      : program_(program), actions_(actions), hardware_(hardware) {}

  void begin(std::size_t action) override {
    const Action& now = actions_[action];
    phase_ = phase_of(now.op);
    part_ = now.segment ? name_of(program_.segments[static_cast<std::size_t>(*now.segment)].part.kind)
            : now.unit  ? "units"
                        : "step";
  }
  void end(std::size_t) override { part_ = phase_ = "step"; }
  void called(const KernelCall& call) override {
    const auto [found, first] = row_of_.try_emplace({part_, phase_, call.name, call.product}, rows_.size());
    if (first) rows_.push_back({part_, phase_, kernel_text(call), call.kind});
    KernelRow& row = rows_[found->second];
    ++row.calls;
    row.bytes += static_cast<double>(call.read + call.written);
    row.flops += call.flops;
    const KernelSeconds seconds = kernel_seconds(call, hardware_), busy = busy_seconds(call, hardware_);
    row.seconds += seconds;
    for (std::size_t i = 0; i < product_shares.size(); ++i) row.launch.at[i] += seconds.at[i] - busy.at[i];
  }

  std::vector<KernelRow> rows() && { return std::move(rows_); }

 private:
  using Key = std::tuple<std::string_view, std::string_view, std::string_view, ProductCall>;

  const Program& program_;
  std::span<const Action> actions_;
  const Hardware& hardware_;
  std::string_view part_ = "step", phase_ = "step";
  std::map<Key, std::size_t> row_of_;
  std::vector<KernelRow> rows_;
};

}  // namespace

KernelSeconds& KernelSeconds::operator+=(const KernelSeconds& other) {
  for (std::size_t i = 0; i < at.size(); ++i) at[i] += other.at[i];
  return *this;
}

KernelSeconds kernel_seconds(const KernelCall& call, const Hardware& hardware) {
  KernelSeconds seconds = busy_seconds(call, hardware);
  for (double& each : seconds.at) each = std::max(each, least_kernel_seconds);
  return seconds;
}

KernelRow KernelPlan::sum(KernelKind kind) const {
  KernelRow all{"", "", std::string(name_of(kind)), kind};
  for (const KernelRow& row : rows) {
    if (row.kind != kind) continue;
    all.calls += row.calls;
    all.bytes += row.bytes;
    all.flops += row.flops;
    all.seconds += row.seconds;
  }
  return all;
}

KernelSeconds KernelPlan::seconds() const {
  KernelSeconds all;
  for (const KernelRow& row : rows) all += row.seconds;
  return all;
}

double KernelPlan::utilisation(std::size_t share) const {
  return step_flops / (seconds().at[share] * world * peak);
}

KernelSeconds KernelPlan::capture_saves() const {
  KernelSeconds saved;
  for (const KernelRow& row : rows) {
    const bool in_segment = row.part != "units" && row.part != "step";
    if (in_segment && row.part != name_of(PartKind::experts)) saved += row.launch;
  }
  return saved;
}

KernelPlan plan_kernels(const ResolvedRun& run, const Hardware& hardware) {
  const Config& config = run.config();
  const Mesh& mesh = run.mesh();
  KernelPlan plan;
  plan.world = mesh.world();
  plan.peak = hardware.flops_per_second(config.precision_of(Family::dense).compute).value;
  plan.step_flops = published_step_flops(config);
  const Program program = step_program(run, mesh.coordinates(0));
  for (int pipeline_rank = 0; pipeline_rank < config.parallelism.pipeline; ++pipeline_rank) {
    const int rank = mesh.rank_at(pipeline_rank, 0, 0, 0, 0);
    KernelSum sum(program, program.ranks[static_cast<std::size_t>(pipeline_rank)], hardware);
    dry_walk(config, mesh, program, rank, sum, sum);
    KernelPlan of_rank = plan;
    of_rank.rank = rank;
    of_rank.rows = std::move(sum).rows();
    if (pipeline_rank == 0 || of_rank.seconds().at.front() > plan.seconds().at.front()) plan = std::move(of_rank);
  }
  return plan;
}

}  // namespace weft
