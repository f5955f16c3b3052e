#include "trainer/inference/evaluation.h"

#include <algorithm>
#include <chrono>

#include "parallel/runtime/phase_clock.h"
#include "trainer/rank/step_totals.h"
#include "trainer/run/held_out.h"

namespace weft {

HeldOutLoss evaluate(const HeldOutWindows& text, const FillWeights& fill_weights, const BackendFactory& make_backend,
                     const OnWindows& on_windows) {
  const Config& config = text.config();
  const Mesh mesh(config.parallelism);
  const std::int64_t windows = text.windows().count(), batch = config.training.global_batch_size;
  const int first_rank = first_rank_of_process(config);
  HeldOutLoss result;
  run_ranks(config, make_backend ? make_backend : backend_of(config), [&](const RankContext& context) {
    const int rank = context.world.rank();
    ForwardRun run(config, mesh, plan_forward(config, mesh, mesh.coordinates(rank)), fill_weights, context);
    Tensor on_device = run.ledger().allocate(Bucket::workspace, DType::int32, HeldOutReader::numbers(config), 1);
    HeldOutReader reader(text, mesh, rank, on_device.view(), run.kernels().stream);
    StepSums sums(run.kernels().stream, run.ledger(), config.model.blocks.size(), config.model.moe.num_experts,
                  mesh.world());
    const auto begin = std::chrono::steady_clock::now();
    sums.begin_step();
    for (std::int64_t pass = 0; pass < text.passes(); ++pass) {
      run.pass(reader.read(pass), sums.report());
      if (on_windows && rank == first_rank) on_windows(std::min((pass + 1) * batch, windows), windows);
    }
    const double loss_sum = sums.total(run.world(), {/*communication=*/{}, run.ledger().at_peak()}).loss_sum;
    if (rank == first_rank) result = text.loss(loss_sum, seconds_since(begin));
  });
  return result;
}

}  // namespace weft
