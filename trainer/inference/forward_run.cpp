#include "trainer/inference/forward_run.h"

#include <algorithm>
#include <chrono>

#include "parallel/runtime/error.h"
#include "parallel/runtime/phase_clock.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/checkpoint/load.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/rank/step_totals.h"
#include "trainer/rank/verify_step.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/run/held_out.h"
#include "trainer/run/rank_run.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {

ForwardRun::ForwardRun(const Config& config, const Mesh& mesh, ForwardPlan plan, const FillWeights& fill_weights,
                       const RankContext& context)
    : plan_(std::move(plan)),
      pipeline_rank_(mesh.coordinates(context.world.rank()).pp),
      begins_(context.begins),
      clock_(context.world.clock()),
      lanes_(*context.backend.device),
      ledger_(*context.backend.device, lanes_[Lane::compute]),
      host_ledger_(*context.backend.device, lanes_[Lane::compute], MemoryPlace::host),
      products_(context.backend.make_products(lanes_[Lane::compute], ledger_)),
      kernels_{ledger_, clock_, lanes_[Lane::compute], *products_, context.backend.layer_kernels},
      groups_(context.world.rank(), mesh, islands_of(config), transfers_of(plan_.program), lanes_, {},
              groups_split_from(context.world), config.model.has(BlockKind::moe)) {
  if (config.run.device != DeviceKind::cpu) clock_.set_mode(PhaseClock::Mode::off);
  stages_ = std::make_unique<RankStages>(plan_.inputs, std::move(plan_.stages), plan_.program,
                                         Initialization{config.run.seed, context.host_threads}, lanes_, groups_,
                                         kernels_, host_ledger_);
  verify_step(config, mesh, context.world.rank(), *stages_);
  if (fill_weights) fill_weights(*stages_, kernels_.stream);
}

void ForwardRun::replace(ForwardPlan plan) {
  plan_ = std::move(plan);
  PlannedInputs inputs = plan_.inputs;  // the plan keeps its own for its readers
  stages_->exchange_segments(inputs, plan_.stages, plan_.program);
}

void ForwardRun::pass(const StepBatch& batch, StepReport report, GenerationState* generation) {
  const std::span<const Action> actions = plan_.program.ranks[pipeline_rank_];
  stages_->begin_step(batch, {}, 1.0, report, generation);
  AnnouncedActions announced(begins_, plan_.program, actions);
  ActionObserver* observers[] = {&announced};
  const auto perform = [this](const Action& action) { stages_->perform(plan_.program, action); };
  execute(plan_.program, actions, perform, observers);
  stages_->end_step();
}

FillWeights weights_of_checkpoint(const std::filesystem::path& folder, const Config& config) {
  const auto reader = std::make_shared<const CheckpointReader>(folder);
  reader->require_texts_unchanged();
  const std::string differing = differing_model(reader->manifest().model, model_keys(config));
  if (!differing.empty()) fail_request("{} is of another model:\n{}", folder.string(), differing);
  LoadRules rules;
  rules.weights_only = true;
  const LoadPlan plan = plan_load(reader->manifest(), expected_tensors(config, rules.weights_only), rules);
  return
      [reader, plan](RankStages& stages, Stream& stream) { load_rows(*reader, plan, parameter_rows(stages), stream); };
}

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

void take_kept_tokenizer(Config& config, const std::filesystem::path& folder) {
  const Config saved = read_config(folder / checkpoint_config_name).config;
  if (config.data.tokenizer != saved.data.tokenizer) return;
  if (const auto kept = kept_tokenizer(folder.string(), config.data.tokenizer)) config.data.tokenizer = *kept;
}

}  // namespace weft
