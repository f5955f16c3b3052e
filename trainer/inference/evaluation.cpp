#include "trainer/inference/evaluation.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "layers/context_parallel.h"
#include "trainer/data/text_windows.h"
#include "trainer/rank/step_totals.h"

namespace weft {
namespace {

// The text of one rank in staging and device memory: token ids, then targets, of the microbatches of a pass.
class PassText {
 public:
  PassText(const Config& config, const Mesh& mesh, int rank, ForwardRun& run)
      : config_(config),
        data_index_(mesh.data_index(rank)),
        runs_(context_runs(config.training.sequence_length, config.parallelism.context, mesh.coordinates(rank).cp)),
        stream_(run.kernels().stream),
        half_(config.microbatches() * run.plan().inputs.microbatch_tokens),
        text_(stream_.device(), DType::int32, 2 * half_),
        on_device_(run.ledger().allocate(Bucket::workspace, DType::int32, 2 * half_, 1)) {}

  // Reads this rank's windows of pass `pass`, from 0.
  StepBatch read(const TextWindows& windows, std::int64_t pass) {
    const BatchPlan plan{config_.microbatches(), config_.parallelism.data(), config_.training.microbatch_size};
    text_.finish();  // waits until the device has copied the text of the last pass
    plan.read(windows, pass * plan.sequences(), data_index_, config_.training.sequence_length, runs_,
              text_.as<std::int32_t>());
    text_.upload(stream_, on_device_);
    return {on_device_.view().rows_from(0, half_), on_device_.view().rows_from(half_, half_)};
  }

 private:
  const Config& config_;
  std::int64_t data_index_;
  std::vector<Range> runs_;
  Stream& stream_;
  std::int64_t half_;
  Staging text_;
  Tensor on_device_;
};

// Bytes of the text of all predicted tokens; 0 for ids without a text.
std::int64_t text_bytes(const TextWindows& windows, std::int64_t length, const TextVocabulary& vocabulary) {
  if (vocabulary.tokenizer == nullptr) return 0;
  if (vocabulary.name == "byte") return windows.tokens();
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length)), targets(tokens.size());
  std::map<std::int32_t, std::int64_t> bytes_of_token;
  std::int64_t bytes = 0;
  for (std::int64_t window = 0; window < windows.count(); ++window) {
    windows.read(window, tokens, targets);
    for (const std::int32_t target : targets) {
      if (target < 0 || target >= vocabulary.text_tokens()) continue;
      const auto [known, is_new] = bytes_of_token.try_emplace(target);
      if (is_new) known->second = std::ssize(vocabulary.tokenizer->decode({&target, 1}));
      bytes += known->second;
    }
  }
  return bytes;
}

// The configuration with a global batch no larger than the text needs.
Config for_windows(Config config, std::int64_t windows) {
  const std::int64_t of_microbatch = config.training.microbatch_size * config.parallelism.data();
  const std::int64_t needed = (windows + of_microbatch - 1) / of_microbatch;
  config.training.global_batch_size = std::min(config.microbatches(), needed) * of_microbatch;
  return config;
}

}  // namespace

EvaluationResult evaluate(const Config& trained, const std::vector<std::string>& files, const FillWeights& fill_weights,
                          const BackendFactory& make_backend, const OnWindows& on_windows) {
  const TextVocabulary vocabulary = open_vocabulary(trained);
  require_fit(trained, vocabulary);
  const TextWindows windows(files, trained.training.sequence_length, vocabulary);
  const Config config = for_windows(without_training(trained), windows.count());
  const Mesh mesh(config.parallelism);
  const std::int64_t batch = config.training.global_batch_size;
  const int first_rank = first_rank_of_process(config);
  EvaluationResult result;
  run_ranks(config, make_backend ? make_backend : backend_of(config), [&](const RankSeat& seat) {
    const int rank = seat.world.rank();
    ForwardRun run(config, mesh, plan_forward(config, mesh, mesh.coordinates(rank)), fill_weights, seat);
    PassText text(config, mesh, rank, run);
    StepSums sums(run.kernels().stream, run.ledger(), config.model.blocks.size(),
                  static_cast<std::size_t>(config.model.moe.num_experts), static_cast<std::size_t>(mesh.world()));
    const auto begin = std::chrono::steady_clock::now();
    run.ledger().reset_peak();
    sums.begin_step();
    for (std::int64_t pass = 0; pass * batch < windows.count(); ++pass) {
      run.pass(text.read(windows, pass), sums.report());
      if (on_windows && rank == first_rank) on_windows(std::min((pass + 1) * batch, windows.count()), windows.count());
    }
    const CommunicationCounters none;
    const BucketBytes at_peak = run.ledger().at_peak();
    const StepTotals totals = sums.total(run.world(), {none, at_peak, /*system_allocations=*/0});
    const std::vector<BucketBytes> predicted = gather_buckets(run.world(), run.plan().predicted.bytes);
    const std::vector<BucketBytes> measured = gather_buckets(run.world(), at_peak);
    if (rank != first_rank) return;
    result.tokens = windows.tokens();
    result.bytes = text_bytes(windows, trained.training.sequence_length, vocabulary);
    result.windows = windows.count();
    result.loss = totals.loss_sum / static_cast<double>(windows.tokens());
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    result.predicted = predicted;
    result.measured = measured;
  });
  return result;
}

}  // namespace weft
