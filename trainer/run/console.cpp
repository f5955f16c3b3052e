#include "trainer/run/console.h"

#include <fmt/ostream.h>
#include <fmt/ranges.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "parallel/runtime/quantities.h"
#include "parallel/runtime/standard_error.h"
#include "trainer/plan/configured_schedule.h"

namespace weft {
namespace {

constexpr const char* erase_line = "\r\x1b[K";

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// Three digits at least: "0.0123", "1.23", "412", "41234".
std::string short_number(double value) {
  return value < 99.95 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

// Without the sign of a NaN, which says nothing.
std::string four_places(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.4f}", value);
}

// "3.00e-04", or if groups differ "3.00e-04 (dense, vectors), 1.00e-04 (experts)".
std::string rates_text(std::span<const GroupRate> rates) {
  if (rates.empty()) return "none";
  if (rates.size() == 1) return fmt::format("{:.2e}", rates.front().rate);
  std::vector<std::string> texts;
  for (const GroupRate& rate : rates) {
    std::vector<std::string_view> names;
    for (const UpdateGroup group : rate.groups) names.push_back(name_of(group));
    texts.push_back(fmt::format("{:.2e} ({})", rate.rate, fmt::join(names, ", ")));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

bool PatientOutput::write_some(int wait) {
  std::string text(view());
  std::size_t written = 0;
  while (written < text.size()) {
    pollfd output{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    const int ready = poll(&output, 1, wait);
    if (ready == 0) break;
    // A pipe that can be written to takes so many bytes at once.
    const std::size_t piece = std::min<std::size_t>(text.size() - written, PIPE_BUF);
    const ssize_t count = ready < 0 ? -1 : ::write(descriptor_, &text[written], piece);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count < 0) {
      refused_ = errno;
      str({});
      return false;
    }
    written += static_cast<std::size_t>(count);
  }
  text.erase(0, written);
  if (text.size() > most_waiting_) text.erase(0, text.find('\n', text.size() - most_waiting_) + 1);
  str(std::move(text));
  return true;
}

bool PatientOutput::finish(const std::function<bool()>& gives_up) {
  constexpr int tick = 100, least_ticks = 10;
  for (int ticks = 0; write_some(tick) && waiting() > 0; ++ticks) {
    if (ticks >= least_ticks && gives_up()) break;
  }
  return refused_ == 0;
}

void Console::flush() {
  errno = 0;
  if (out_.flush()) return;
  const int reason = errno;
  out_.clear();
  closed_ |= reason == EPIPE;
  if (std::exchange(lost_, true)) return;
  say("weft: standard output cannot be written: {}\n", std::strerror(reason));
}

void Console::banner(const Config& config, const Program& program, const RoutedBytes& predicted) {
  const Degrees& d = config.parallelism;
  const ParameterCount count = count_parameters(config.model);
  const auto microbatches = config.microbatches();
  fmt::print(out_, "weft: {} on {} ranks ({}, {})\n", config.run.name, d.world(), name_of(config.run.launch),
             name_of(config.run.device));
  fmt::print(
      out_, "  mesh        pp {} x dp_replicate {} x dp_shard {} x cp {} x tp {}; experts edp {} x ep {} x etp {}\n",
      d.pipeline, d.data_replicate, d.data_shard, d.context, d.tensor, d.expert_data(), d.expert, d.expert_tensor);
  fmt::print(out_, "  model       {} blocks ({}), {:L} parameters, {:L} active per token\n", config.model.blocks.size(),
             config.layers_text, count.total, count.active);
  fmt::print(out_, "  step        {} sequences of {} tokens, {} microbatches a rank, {}, {} shard units\n",
             config.training.global_batch_size, config.training.sequence_length, microbatches, config.pipeline.schedule,
             program.units.size());
  fmt::print(
      out_, "  predicted   {:.3f} GiB on the fullest rank{}, bubble {:.1f} %\n", gibibytes(predicted.even),
      predicted.worst ? fmt::format(" with even routing, at most {:.3f}", gibibytes(*predicted.worst)) : std::string(),
      100.0 * even_bubble(program));
  flush();
  begin_ = std::chrono::steady_clock::now();
}

void Console::note(std::string_view name, std::string_view text) {
  fmt::print(out_, "  {:<11} {}\n", name, text);
  flush();
}

void Console::step(const StepMetrics& reported, std::int64_t steps) {
  constexpr double noticeable = 0.01;  // share of the time that was spent reading data
  const int width = static_cast<int>(std::to_string(steps).size());
  if (terminal_) out_ << erase_line;
  const std::string loss = reported.has_no_target() ? "none" : four_places(reported.loss);
  fmt::print(out_, "step {:{}}/{}  loss {}  grad_norm {}  lr {}  {:.0f} tok/s  {} ms  {} TFLOP/s", reported.step, width,
             steps, loss, four_places(reported.gradient_norm), rates_text(reported.learning_rates),
             reported.tokens_per_second(), short_number(1e3 * reported.seconds / static_cast<double>(reported.steps)),
             short_number(reported.tflops()));
  if (const auto mfu = reported.mfu()) fmt::print(out_, "  {:.1f} % MFU", 100.0 * *mfu);
  fmt::print(out_, "  {:.3f} GiB", gibibytes(reported.peak_bytes));
  if (reported.forced_balance) out_ << "  experts dealt in turn";
  if (reported.data_seconds > noticeable * reported.seconds) {
    fmt::print(out_, "  data {:.0f} %", 100.0 * reported.data_seconds / reported.seconds);
  }
  if (reported.spike) {
    const bool skipped = reported.spike->action != SpikeAction::log;
    fmt::print(out_, "  spike: {}{}", reported.spike->text(), skipped ? ", skipped" : "");
  } else if (reported.has_no_target()) {
    out_ << "  skipped: no target counts";
  } else if (reported.skipped) {
    fmt::print(out_, "  skipped: gradients overflowed at loss scale {}", reported.loss_scale.value_or(1.0));
  }
  if (reported.warning) fmt::print(out_, "  WARNING: {}", reported.warning->text());
  out_ << '\n';
  if (const auto& held_out = reported.validation) {
    fmt::print(out_, "validation{:{}}  loss {:.4f}  perplexity {:.2f}", "", 2 * width, held_out->loss,
               held_out->perplexity());
    if (held_out->bytes > 0) fmt::print(out_, "  {:.4f} bits a byte", held_out->bits_per_byte());
    fmt::print(out_, "  {} tokens in {:.1f} s\n", held_out->tokens, held_out->seconds);
  }
  flush();
}

void Console::progress(std::int64_t step, std::int64_t steps) {
  ++taken_;
  if (!terminal_ || step >= steps) return;
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const double left = spent / static_cast<double>(taken_) * static_cast<double>(steps - step);
  fmt::print(out_, "{}{:3.0f} %, {} left", erase_line, 100.0 * static_cast<double>(step) / static_cast<double>(steps),
             clock_time(left));
  flush();
}

void Console::memory_table(std::span<const BucketBytes> predicted, std::span<const BucketBytes> measured) {
  fmt::print(out_, "\nmemory at the peak, MiB: predicted by the program / measured ({} exact to the byte)\n",
             "parameters, sharded gradients and optimizer state are");
  fmt::print(out_, "{:<22}", "");
  for (std::size_t rank = 0; rank < measured.size(); ++rank) fmt::print(out_, "{:>16}", fmt::format("rank {}", rank));
  fmt::print(out_, "\n");
  for (const Bucket bucket : all_values<Bucket>) {
    fmt::print(out_, "{:<22}", name_of(bucket));
    for (std::size_t rank = 0; rank < measured.size(); ++rank) {
      const double want = mebibytes(predicted[rank][bucket]);
      const double have = mebibytes(measured[rank][bucket]);
      fmt::print(out_, "{:>16}", fmt::format("{:.2f} / {:.2f}", want, have));
    }
    fmt::print(out_, "\n");
  }
  std::size_t differing = 0;
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    differing += differing_static_buckets(predicted[rank], measured[rank]).size();
  }
  fmt::print(out_, "static buckets that differ from their prediction: {}\n", differing);
  flush();
}

void Console::finished(const RunTotals& totals, const std::filesystem::path& directory) {
  const std::string without =
      totals.without_target == 0 ? "" : fmt::format(" ({} without a target)", totals.without_target);
  const std::string losses =
      totals.without_target == totals.steps
          ? std::string("no loss")
          : fmt::format("loss {} -> {}", four_places(totals.first_loss), four_places(totals.last_loss));
  fmt::print(out_, "{} steps{}, {}, {} tokens in {} ({:.0f} tok/s); see {}\n", totals.steps, without, losses,
             totals.tokens, clock_time(totals.seconds), static_cast<double>(totals.tokens) / totals.seconds,
             directory.string());
  flush();
}

void Console::stopped(std::string_view by, std::int64_t step, std::int64_t steps,
                      const std::filesystem::path& checkpoint) {
  fmt::print(out_, "stopped by {} after step {} of {}, saved as {}; the same command goes on\n", by, step, steps,
             checkpoint.string());
  flush();
}

}  // namespace weft
