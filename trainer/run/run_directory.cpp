#include "trainer/run/run_directory.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/rank/metrics.h"

namespace weft {
namespace {

// Creates all folders of `path`, or none: if one is refused, the folders created before it are removed.
std::error_code create_folders(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> missing;  // deepest first
  std::error_code error, ignored;
  for (auto folder = std::filesystem::absolute(path);
       !std::filesystem::exists(folder, ignored) && folder.has_relative_path(); folder = folder.parent_path()) {
    missing.push_back(folder);
  }
  std::filesystem::create_directories(path, error);
  if (error) {
    for (const auto& folder : missing) std::filesystem::remove(folder, ignored);
  }
  return error;
}

// "process 4711 on node3 since 2026-01-31 12:00:00 UTC"
std::string own_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return fmt::format("process {} on {} since {:%F %T} UTC", getpid(), host.data(), fmt::gmtime(std::time(nullptr)));
}

std::string content_of(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t count = pread(descriptor, text.data(), text.size(), 0);
  // The file is empty between a holder's lock and the write of its name.
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : "another process";
}

constexpr const char* config_name = "config.toml";
constexpr const char *trace_prefix = "trace_rank", *trace_suffix = ".json";

void write_whole(const std::filesystem::path& directory, const std::string& name, const std::string& text) {
  replace_file(directory / name, text);
  flush_folder(directory);
}

template <typename Selects>
void remove_files(const std::filesystem::path& directory, Selects selects) {
  std::error_code error;
  std::vector<std::filesystem::path> left;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (selects(entry->path().filename().string())) left.push_back(entry->path());
  }
  for (const std::filesystem::path& path : left) std::filesystem::remove(path, error);
}

// Whether this is a temporary file of a killed run. The next run would not replace all of them, for example with fewer
// ranks.
bool is_partial(const std::string& name) {
  return name == partial_path(config_name) || name == partial_path(metrics_file) ||
         name == partial_path(summary_file) ||
         (name.starts_with(trace_prefix) && name.ends_with(partial_path(trace_suffix).string()));
}

nlohmann::ordered_json time_json(const RunTimer& timer) {
  nlohmann::ordered_json time = {{"wall", timer.wall_seconds()}};
  for (const RunPart part : all_values<RunPart>) time[std::string(name_of(part))] = timer.seconds(part);
  return time;
}

nlohmann::ordered_json rank_json(std::size_t rank, const RunFigures& figures) {
  const BucketBytes &predicted = figures.predicted[rank], &measured = figures.measured[rank];
  nlohmann::ordered_json json = {{"rank", rank}, {"peak_bytes", measured.total()}};
  if (!figures.compute.empty()) {
    const RankCompute& compute = figures.compute[rank];
    json["compute_seconds"] = compute.seconds;
    json["over_peers"] = compute.over_peers;
    json["slow"] = compute.is_slow();
  }
  for (const Bucket bucket : all_values<Bucket>) {
    json["buckets"][std::string(name_of(bucket))] = {{"predicted", predicted[bucket]}, {"measured", measured[bucket]}};
  }
  json["host_memory_bytes"] = {{"predicted", figures.host[rank].predicted}, {"measured", figures.host[rank].measured}};
  for (const Bucket bucket : unit_buckets) {
    json["byte_steps"][std::string(name_of(bucket))] = figures.byte_steps[rank][bucket];
  }
  return json;
}

}  // namespace

void RunTimer::add(RunPart part) {
  const Clock::time_point before = std::exchange(last_, Clock::now());
  seconds_[static_cast<std::size_t>(part)] += std::chrono::duration<double>(last_ - before).count();
}

void RunTimer::take_from_steps(RunPart part, double seconds) {
  double& steps = seconds_[static_cast<std::size_t>(RunPart::steps)];
  const double taken = std::min(seconds, steps);
  steps -= taken;
  seconds_[static_cast<std::size_t>(part)] += taken;
}

double RunTimer::goodput() const {
  return wall_seconds() > 0.0 ? seconds(RunPart::steps) / wall_seconds() : 0.0;
}

std::string RunTimer::text() const {
  constexpr double noticeable = 1e-3;
  std::string text = fmt::format("{:.1f} s", wall_seconds());
  const char* mark = ": ";
  for (const RunPart part : all_values<RunPart>) {
    if (seconds(part) < noticeable * wall_seconds()) continue;
    std::string name(name_of(part));
    std::ranges::replace(name, '_', part == RunPart::start_up ? '-' : ' ');
    text += fmt::format("{}{} {:.1f} s", std::exchange(mark, ", "), name, seconds(part));
  }
  return fmt::format("{}; goodput {:.1f} %", text, 100.0 * goodput());
}

RunLock::RunLock(const std::filesystem::path& directory, const char* key) {
  if (const std::error_code error = create_folders(directory)) {
    fail_request("{} {} cannot be created: {}", key, directory.string(), error.message());
  }
  const std::string file = (directory / run_lock_name).string();
  // Opened for writing: over NFS an exclusive flock is a byte-range lock, which requires write access.
  descriptor_ = FileDescriptor(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!descriptor_) fail_request("{} {}: {}: {}", key, directory.string(), file, std::strerror(errno));
  if (flock(descriptor_.get(), LOCK_EX | LOCK_NB) == 0) {
    held_ = true;
    const std::string name = own_name();
    // If the name cannot be written the lock is still valid; only messages lack the name.
    [[maybe_unused]] const bool named =
        ftruncate(descriptor_.get(), 0) == 0 && pwrite(descriptor_.get(), name.data(), name.size(), 0) > 0;
  } else if (errno == EWOULDBLOCK) {
    const std::string holder = content_of(descriptor_.get());
    fail_request("{} {} is in use by {}, which holds {}: end that run first, or give this one a directory of its own",
                 key, directory.string(), holder, file);
  }
}

std::string folder_fault(const std::filesystem::path& path, std::string_view key) {
  std::error_code unknown;
  if (std::filesystem::exists(path / manifest_name, unknown)) {
    return fmt::format(
        "{0} {1} is a checkpoint, and a run would write over its files: name another, and to begin "
        "with these weights checkpoint.start_from = \"{1}\"",
        key, path.string());
  }
  std::vector<const char*> files = {run_lock_name};
  if (key == "run.directory") files.insert(files.end(), {config_name, metrics_file, summary_file});
  for (const char* file : files) {
    if (!std::filesystem::is_directory(path / file, unknown)) continue;
    return fmt::format("{} {}: {} is a folder, and a run writes a file of that name", key, path.string(), file);
  }
  const auto text = [&](const std::string& why) {
    return fmt::format("{} {} cannot be created: {}", key, path.string(), why);
  };
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(path);
  std::size_t longest = 0;  // length of the longest name to create, in bytes
  for (;; there = there.parent_path()) {
    const std::filesystem::file_status status = std::filesystem::status(there, error);
    if (status.type() == std::filesystem::file_type::none) return text(error.message());
    if (std::filesystem::exists(status) || !there.has_relative_path()) break;
    longest = std::max(longest, there.filename().native().size());
  }
  if (!std::filesystem::is_directory(there, error)) return text(std::strerror(ENOTDIR));
  if (longest == 0) {
    if (access(there.c_str(), W_OK | X_OK) != 0) return text(std::strerror(errno));
  } else {
    // Permissions are not all: nobody makes a folder in /proc.
    std::string trial = (there / ".weft-XXXXXX").string();
    if (mkdtemp(trial.data()) == nullptr) return text(std::strerror(errno));
    rmdir(trial.c_str());
  }
  const long most = pathconf(there.c_str(), _PC_NAME_MAX);
  if (most > 0 && longest > static_cast<std::size_t>(most)) return text(std::strerror(ENAMETOOLONG));
  return {};
}

RunDirectory::RunDirectory(const std::filesystem::path& path) : path_(path), lock_(path, "run.directory") {
  remove_files(path_, is_partial);
}

void RunDirectory::remove_traces() const {
  remove_files(path_,
               [](const std::string& name) { return name.starts_with(trace_prefix) && name.ends_with(trace_suffix); });
}

std::optional<std::string> RunDirectory::begin_after(std::int64_t step, const std::string& resolved_toml, bool events) {
  const std::string file = (path_ / metrics_file).string();
  std::string kept;
  std::int64_t number = 0, unreadable = 0, first_unreadable = 0;
  if (step > 0 && std::filesystem::exists(file)) {
    std::istringstream metrics(read_whole_file(file));  // refused before anything is replaced
    for (std::string line; std::getline(metrics, line);) {
      ++number;
      const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
      const auto own = entry.find("step");
      if (own == entry.end() || !own->is_number_integer()) {
        if (++unreadable == 1) first_unreadable = number;
      } else if (own->get<std::int64_t>() <= step) {
        kept += line + "\n";
      }
    }
  }
  write_whole(path_, config_name, resolved_toml);
  configuration_ = checksum_text(checksum(resolved_toml));
  write_whole(path_, metrics_file, kept);
  metrics_.emplace(file);
  const std::filesystem::path folder = path_ / events_folder;
  if (step == 0) remove_files(folder, [](const std::string& name) { return name.starts_with(events_prefix); });
  if (events) events_.emplace(folder, step);
  // A killed run may have left a part of its last line.
  if (unreadable == 0 || first_unreadable == number) return std::nullopt;
  return fmt::format("WARNING: {} lines of {} cannot be read and are left out, the first is line {}", unreadable, file,
                     first_unreadable);
}

std::optional<std::string> RunDirectory::append(const StepMetrics& metrics) {
  return metrics_->append(to_json(metrics) + "\n");
}

std::optional<std::string> RunDirectory::report(const StepMetrics& reported) {
  return events_ ? events_->append(reported) : std::nullopt;
}

void RunDirectory::summary(const RunFigures& figures, const RunRecord& record) {
  const RunTotals& totals = figures.totals;
  nlohmann::ordered_json summary = {
      {"command_line", record.command_line}, {"versions", record.versions}, {"configuration", configuration_}};
  if (!record.card.empty()) summary["card"] = record.card;
  if (!record.attention.empty()) summary["attention"] = record.attention;
  if (record.forced_balance) summary["forced_balance"] = true;
  if (record.hashes) summary["hashes"] = record.hashes->named();
  summary["time"] = time_json(figures.timer);
  summary["goodput"] = figures.timer.goodput();
  summary["steps"] = totals.steps;
  summary["tokens"] = totals.tokens;
  summary["seconds"] = totals.seconds;
  summary["first_loss"] = totals.first_loss;
  summary["last_loss"] = totals.last_loss;
  for (std::size_t rank = 0; rank < figures.measured.size(); ++rank) {
    summary["ranks"].push_back(rank_json(rank, figures));
  }
  write_whole(path_, summary_file, summary.dump(2) + "\n");
  if (metrics_) metrics_->finish();
  if (events_) events_->finish();
}

void write_trace(const std::filesystem::path& directory, int rank, std::span<const TraceSpan> spans,
                 std::span<const TraceSpan> work, const std::map<std::string, std::string>& hashes) {
  write_whole(directory, fmt::format("{}{}{}", trace_prefix, rank, trace_suffix),
              to_chrome_trace(rank, spans, work, hashes));
}

}  // namespace weft
