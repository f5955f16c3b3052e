#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/layout/sweep_report.h"
#include "tools/report/layout_sweep.h"

namespace weft {
namespace {

constexpr const char* sweep_command = "weft layout sweep";

struct SweepRequest {
  std::string file, csv, svg, costs, hardware;
  SweepLists lists;
  std::size_t top = 20;
};

// Progress on standard error: a terminal gets one line that is overwritten, elsewhere a line appears now and then.
class SweepCounter {
 public:
  explicit SweepCounter(std::size_t all) : all_(all), terminal_(isatty(STDERR_FILENO) != 0) {}
  ~SweepCounter() {
    if (shown_ && terminal_) fmt::print(stderr, "\r\x1b[K");
  }
  SweepCounter(const SweepCounter&) = delete;
  SweepCounter& operator=(const SweepCounter&) = delete;

  void done(std::size_t count) {
    const auto now = Clock::now();
    const bool due = now - last_ >= (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10));
    if (!due || count == all_) return;
    last_ = now;
    shown_ = true;
    const double spent = std::chrono::duration<double>(now - begin_).count();
    const double left = spent * static_cast<double>(all_ - count) / static_cast<double>(count);
    fmt::print(stderr, "{}{}/{} combinations, {:.0f} s left{}", terminal_ ? "\r\x1b[K" : "", count, all_, left,
               terminal_ ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t all_;
  bool terminal_, shown_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

void sweep_layouts(const CLI::App& command, const SweepRequest& request) {
  const Overrides common = overrides_given_to(command);
  const std::vector<SweepChoice> choices = sweep_choices(request.lists);
  const CostSource costs(sweep_command, request.costs, request.hardware);
  // Prints the warnings on the configuration, once.
  const Config config = read_config_given_to(command, request.file).config;
  Sweep sweep;
  {
    SweepCounter progress(choices.size());
    sweep = run_sweep(request.file, common, choices, costs, [&](std::size_t count) { progress.done(count); });
  }
  const std::string title = fmt::format("{}, costs {}", request.file, costs.text(config));
  if (!request.csv.empty()) write_result(sweep_command, sweep_csv(sweep, common, costs.certainty(config)), request.csv);
  if (!request.svg.empty()) write_result(sweep_command, sweep_svg(sweep, title, costs.unit_time()), request.svg);
  fmt::print("{}\n{} combinations, {} can be run, {} programs simulated\n\n{}", title, sweep.choices,
             sweep.points.size(), sweep.simulated,
             sweep_table(sweep, request.top, costs.unit_time(), costs.certainty(config)));
  if (sweep.points.empty()) fail_request("{}: error: none of the combinations can be run", sweep_command);
}

}  // namespace

void add_layout_sweep_command(CLI::App& layout) {
  CLI::App* command = layout.add_subcommand(
      "sweep", "every combination of schedules, layouts, residencies, ...: ranked by time, and time against memory");
  const auto request = std::make_shared<SweepRequest>();
  add_config_arguments(*command, request->file)->required();
  const auto add_list = [&](const char* option, std::vector<std::string>& list, const char* help) {
    command->add_option(option, list, help)->expected(1)->take_all()->allow_extra_args(false);
  };
  add_list("--schedules", request->lists.schedules, "values of pipeline.schedule, separated by commas");
  add_list("--chunks", request->lists.chunks, "of pipeline.chunks");
  add_list("--layouts", request->lists.layouts,
           "of pipeline.layout: auto,\"Ed|e*3L\",[1, 3]; a layout that holds commas itself in quotes");
  add_list("--residencies", request->lists.residencies,
           "of shard.residency: reshard_after_use,while_on_stage,window 2,step,auto");
  add_list("--budgets", request->lists.budgets, "of shard.memory_budget, for residency auto");
  add_list("--microbatches", request->lists.microbatches,
           "microbatches a step, of one batch: more of them are smaller ones");
  command->add_option("--costs", request->costs,
                      "a table FILE.toml, the directory of a run with traces, or words: \"forward=1 gather=0.5\"");
  command->add_option(
      "--hardware", request->hardware,
      "costs modelled for a card that weft hardware lists; without --costs either, as pipeline.costs says");
  command->add_option("--csv", request->csv, "write every figure of every combination to this file");
  command->add_option("--svg", request->svg, "draw time against memory to this file");
  command->add_option("--top", request->top, "how many to print")->capture_default_str();
  command->callback([command, request] { sweep_layouts(*command, *request); });
}

}  // namespace weft
