#include "trainer/run/train.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "layers/kernels/cpu/kernels.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/standard_error.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/config.h"
#include "trainer/rank/backend.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/console.h"
#include "trainer/run/start_check.h"

namespace weft {
namespace {

// The folder without symbolic links, as far as it exists. A folder has one such path.
std::filesystem::path real_folder(const std::filesystem::path& path) {
  std::error_code unknown;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path), unknown) / "";
}

// Whether another dtype than the default is multiplied faster on this processor. The default is float32 on every CPU:
// the dtype of a run does not depend on its machine.
bool leaves_products_slow(const ResolvedConfig& resolved) {
  const Config& config = resolved.config;
  return config.run.device == DeviceKind::cpu && config.precision_of(Family::dense).compute == DType::float32 &&
         !resolved.said.contains("precision.compute") && has_bfloat16_products();
}

// The console belongs to rank 0.
void note_of_rank(Console& console, int rank, const char* name, const std::string& text) {
  if (rank == 0) return console.note(name, text);
  say("rank {}: {}\n", rank, text);
}

CheckpointSetup checkpoint_setup(const ResolvedConfig& resolved, Console& console) {
  CheckpointSetup setup;
  setup.texts.push_back({checkpoint_config_name, resolved.toml});
  for (const TokenizerPart& part : tokenizer_parts(resolved.config.data.tokenizer)) {
    setup.texts.push_back({part.kept_name, read_whole_file(part.path)});
  }
  setup.say = [&console](int rank, const std::string& text) { note_of_rank(console, rank, "checkpoint", text); };
  return setup;
}

// Empty if nothing stays in host memory.
std::string host_text(std::span<const HostBytes> ranks) {
  const auto fullest = std::ranges::max_element(ranks, {}, &HostBytes::measured);
  if (fullest == ranks.end() || *fullest == HostBytes{}) return {};
  const bool exact = std::ranges::all_of(ranks, [](const HostBytes& rank) { return rank.predicted == rank.measured; });
  return fmt::format("{:.2f} MiB of optimizer states and activations on the rank with most, {}",
                     mebibytes(fullest->measured),
                     exact ? "on every rank as predicted" : "not as predicted (summary.json)");
}

// The directory and the console of a run. Rank 0 admits, begins and tells; other ranks write their traces alone.
class TrainOutput {
 public:
  TrainOutput(const ResolvedConfig& resolved, const RunRecord& record, Console& console,
              const std::optional<CheckedStart>& start)
      : resolved_(resolved),
        config_(resolved.config),
        console_(console),
        start_(start),
        reports_(config_.metrics.interval, config_.run.steps),
        record_(record) {
    record_.forced_balance = forces_balance(config_.model);
    if (config_.run.device == DeviceKind::cuda) record_.card = cuda_card().value_or("");
  }

  // The output outlives the observer.
  RunObserver observer() {
    return {.before_first_step = [this](RankRun& run) { begin(run); },
            .after_step = [this](RankRun& run, const StepMetrics& metrics) { tell(run, metrics); },
            .admit = [this] { admit(); },
            .identified = [this](const RunHashes& hashes) { record_.hashes = hashes; }};
  }

  // The last lines, and the summary, of a run that has ended.
  void end(const TrainResult& result, const RunRequests& requests) {
    if (result.totals.steps == 0) {
      if (!result.stopping_spike.empty()) return;  // in the first step, and told by it
      const std::string taken =
          result.steps_taken == config_.run.steps
              ? fmt::format("all {} steps of the run had been taken", config_.run.steps)
              : fmt::format("{} steps had been taken, and run.steps is {}", result.steps_taken, config_.run.steps);
      console_.note("checkpoint", fmt::format("{}. To train further give more, as --run.steps={}; to begin anew name "
                                              "another run.directory",
                                              taken, 2 * result.steps_taken));
      return;
    }
    if (const auto rest = reports_.rest()) report(*rest);
    console_.memory_table(result.predicted, result.measured);
    directory_->summary(result, record_);
    if (const std::string text = host_text(result.host); !text.empty()) console_.note("host memory", text);
    console_.note("time", result.timer.text());
    if (const std::string slow = slow_ranks_text(result.compute); !slow.empty()) console_.note("slow ranks", slow);
    console_.finished(result.totals, directory_->path());
    if (!result.stopped) return;
    console_.stopped(requests.stopped_by(), result.steps_taken, config_.run.steps,
                     checkpoint_after(config_, result.steps_taken));
  }

  // Called by each process. Throws Error (failure) if a trace of its ranks is missing.
  void require_traces() const {
    if (!lost_trace_.empty()) fail("a trace was not kept: {}", lost_trace_);
  }

 private:
  void admit() {
    // Neither folder is made for a run that the other refuses: run.directory is asked first if there, and made last.
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::path(config_.run.directory) / run_lock_name, ignored)) {
      const RunLock asked(config_.run.directory, "run.directory");
    }
    lock_checkpoints();
    directory_.emplace(config_.run.directory);
    console_.banner(config_, start_->program, start_->predicted);
    console_.note("data", start_->reading);
    if (!directory_->locked()) {
      console_.note("lock", "none on this file system: see to it that no other run has this run.directory");
    }
  }

  // Other runs may have the same folder, by whatever name.
  void lock_checkpoints() {
    const std::string folder = config_.checkpoint_directory();
    if (real_folder(folder) != real_folder(config_.run.directory))
      checkpoint_lock_.emplace(folder, "checkpoint.directory");
  }

  void begin(RankRun& run) {
    const std::int64_t taken = run.progress().step;
    if (run.rank() != 0 || taken >= config_.run.steps) return;
    // Steps before the state of another run are not of this one.
    const bool own = !find_checkpoints(config_.checkpoint_directory()).empty();
    const std::int64_t own_steps = own ? taken : 0;
    if (!own) tell_passed_over();
    const auto left_out = directory_->begin_after(own_steps, resolved_.toml, config_.metrics.tensorboard);
    if (left_out) console_.note("metrics", *left_out);
    const ProfilingConfig& profiling = config_.profiling;
    if (profiling.first_step > 0 && profiling.last() <= taken) {
      console_.note("profiling", fmt::format("WARNING: nothing is recorded: the last step to record is {}, and the run "
                                             "goes on behind step {}. Name later steps, or another run.directory",
                                             profiling.last(), taken));
    } else if (own_steps == 0 || (profiling.first_step > 0 && profiling.trace)) {
      directory_->remove_traces();  // those of a run before would count as this one's
    }
    record_.attention = run.attention();
    console_.note("attention", record_.attention);
    if (!run.products().empty()) console_.note("products", run.products());
    if (leaves_products_slow(resolved_)) {
      console_.note("products", "float32; this processor multiplies bfloat16 faster: precision.compute = \"bfloat16\"");
    }
  }

  // A run that names another checkpoint.directory than before.
  void tell_passed_over() {
    const std::filesystem::path usual = std::filesystem::path(config_.run.directory) / "checkpoints";
    const std::vector<CheckpointFolder> passed_over = find_checkpoints(usual);
    if (passed_over.empty()) return;
    console_.note(
        "checkpoint",
        fmt::format("WARNING: {} has {} checkpoints, the newest {}. The run does not go on from them, because "
                    "checkpoint.directory is {}; its metrics replace those in {}",
                    usual.string(), passed_over.size(), checkpoint_name(passed_over.front().step),
                    config_.checkpoint.directory, config_.run.directory));
  }

  // A run goes on without its trace, as on a full disk.
  void keep_trace(int rank, const StepTrace& trace) {
    std::map<std::string, std::string> hashes = record_.hashes->named();
    hashes["work"] = work_hash(config_);
    try {
      write_trace(config_.run.directory, rank, trace.spans(), trace.work(), hashes);
    } catch (const Error& error) {
      note_of_rank(console_, rank, "profiling", error.what());
      const std::lock_guard lock(trace_mutex_);
      lost_trace_ = error.what();
    }
  }

  void tell(RankRun& run, const StepMetrics& metrics) {
    const ProfilingConfig& profiling = config_.profiling;
    const bool run_ends = !metrics.taken() || run.votes().stop_requests > 0;
    const bool recorded = metrics.step == profiling.last() || (run_ends && profiling.includes(metrics.step));
    if (const StepTrace* trace = run.profiler().trace(); recorded && trace != nullptr) keep_trace(run.rank(), *trace);
    if (run.rank() != 0) return;
    if (metrics.has_no_target() && std::exchange(first_without_target_, false)) {
      console_.note("data",
                    fmt::format("WARNING: no target of step {} counts: it is taken without an update, as is each "
                                "such step after it. A larger training.global_batch_size, or data.documents = "
                                "\"pack\", makes them rare",
                                metrics.step));
    }
    StepMetrics line = metrics;
    if (std::exchange(first_of_process_, false)) line.hashes = record_.hashes;
    if (const auto trouble = directory_->append(line)) console_.note("metrics", *trouble);
    if (const auto reported = reports_.add(metrics)) report(*reported);
    console_.progress(metrics.step, config_.run.steps);
  }

  void report(const StepMetrics& reported) {
    if (const auto trouble = directory_->report(reported)) console_.note("metrics", *trouble);
    console_.step(reported, config_.run.steps);
  }

  const ResolvedConfig& resolved_;
  const Config& config_;
  Console& console_;
  const std::optional<CheckedStart>& start_;
  std::optional<RunDirectory> directory_;
  std::optional<RunLock> checkpoint_lock_;
  ReportedSteps reports_;  // used on the thread of rank 0
  RunRecord record_;
  std::mutex trace_mutex_;
  std::string lost_trace_;  // why a rank of this process has none, or empty
  bool first_of_process_ = true, first_without_target_ = true;
};

}  // namespace

TrainResult train(const ResolvedConfig& resolved, const RunRecord& record, Console& console,
                  const RunRequests& requests) {
  const RunTimer timer;
  const Config& config = resolved.config;
  // Only the process of rank 0 writes to run.directory and to the console.
  const bool speaks = first_rank_of_process(config) == 0;
  // All checks of the request come before any write.
  std::optional<CheckedStart> start;
  if (speaks) start = check_start(resolved);
  if (config.run.device == DeviceKind::cuda) {
    if (const auto reason = why_no_cuda())
      fail_request("run.device is \"cuda\", which cannot be used here: {}", *reason);
  }
  TrainOutput output(resolved, record, console, start);
  RunRequests polled = requests;
  // The run also stops if the reader of the console's pipe has gone.
  polled.stop = [&] { return requests.stop() || console.closed(); };
  TrainResult result = run_steps(config, output.observer(), {}, checkpoint_setup(resolved, console), polled, timer);
  if (speaks) output.end(result, requests);
  output.require_traces();
  return result;
}

}  // namespace weft
