#include "trainer/inference/evaluation.h"

#include <algorithm>
#include <chrono>

#include "parallel/runtime/phase_clock.h"
#include "trainer/rank/step_totals.h"
#include "trainer/run/held_out.h"

namespace weft {

EvaluationResult evaluate(const HeldOutWindows& text, const FillWeights& fill_weights,
                          const BackendFactory& make_backend, const OnWindows& on_windows) {
  const Config& config = text.config();
  const Mesh mesh(config.parallelism);
  const std::int64_t windows = text.windows().count(), batch = config.training.global_batch_size;
  const int first_rank = first_rank_of_process(config);
  EvaluationResult result;
  run_ranks(config, make_backend ? make_backend : backend_of(config), [&](const RankContext& context) {
    const int rank = context.world.rank();
    ForwardRun run(config, mesh, plan_forward(config, mesh, mesh.coordinates(rank)), fill_weights, context);
    Tensor on_device = run.ledger().allocate(Bucket::workspace, DType::int32, HeldOutReader::numbers(config), 1);
    HeldOutReader reader(text, mesh, rank, on_device.view(), run.kernels().stream);
    StepSums sums(run.kernels().stream, run.ledger(), config.model.blocks.size(),
                  static_cast<std::size_t>(config.model.moe.num_experts), static_cast<std::size_t>(mesh.world()));
    const auto begin = std::chrono::steady_clock::now();
    run.ledger().reset_peak();
    sums.begin_step();
    for (std::int64_t pass = 0; pass < text.passes(); ++pass) {
      run.pass(reader.read(pass), sums.report());
      if (on_windows && rank == first_rank) on_windows(std::min((pass + 1) * batch, windows), windows);
    }
    const CommunicationCounters none;
    const BucketBytes at_peak = run.ledger().at_peak();
    const StepTotals totals = sums.total(run.world(), {none, at_peak, /*system_allocations=*/0});
    const std::vector<BucketBytes> predicted = gather_buckets(run.world(), run.plan().predicted);
    const std::vector<BucketBytes> measured = gather_buckets(run.world(), at_peak);
    if (rank != first_rank) return;
    static_cast<HeldOutLoss&>(result) = text.loss(totals.loss_sum, seconds_since(begin));
    result.predicted = predicted;
    result.measured = measured;
  });
  return result;
}

}  // namespace weft
