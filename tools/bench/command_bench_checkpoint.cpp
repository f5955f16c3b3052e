// `weft bench checkpoint`: times of saving and loading, beside times of the machine for the same bytes. The latter are
// a copy in memory, and dd writing and reading files in the same place.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>

#include "parallel/runtime/error.h"
#include "parallel/runtime/file_descriptor.h"
#include "parallel/runtime/medians.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/phase_clock.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

// Seconds of one round; for ranks, of the slowest.
struct Round {
  double copy = 0;                                     // copy of a rank's saved bytes in memory, all ranks at once
  double blocked = 0;                                  // training blocked by a save
  double saved = 0;                                    // until the checkpoint is complete
  double loaded = 0, loaded_cold = 0;                  // cold: the system has no part of the files in memory
  double dd_write = 0, dd_read = 0, dd_read_cold = 0;  // files with the same bytes
};

struct Measured {
  std::int64_t bytes = 0;  // bytes of a checkpoint's tensors
  std::int64_t files = 0;  // files that hold the tensors
  std::vector<Round> rounds;
};

// A folder that is gone with this, whatever failed in it.
struct RemovedFolder {
  fs::path path;
  ~RemovedFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// Asks the system to drop all files below a folder from memory.
void forget_files(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const FileDescriptor file(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!file || posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) != 0) {
      fail("{} cannot be forgotten", entry.path().string());
    }
  }
}

// Seconds for a copy of all `rows`, into memory that was written before.
double copy_seconds(const std::vector<CheckpointRows>& rows, std::vector<std::byte>& to) {
  const auto begin = Clock::now();
  std::size_t end = 0;
  for (const CheckpointRows& held : rows) {
    const auto bytes = static_cast<std::size_t>(held.values.bytes());
    std::copy_n(held.values.data(), bytes, to.data() + end);
    end += bytes;
  }
  return seconds_since(begin);
}

// `rounds` times: a copy, a save and a load, by all ranks.
Measured measure(Config config, const fs::path& directory, int rounds) {
  config.checkpoint.directory = directory.string();
  config.checkpoint.keep_latest = 1;
  config.checkpoint.weights_only = config.checkpoint.at_end = false;
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  const KeyValues identity = data_keys(config, data);
  NvtxDomain domain;
  const CheckpointSetup setup;
  Measured measured;
  // The first round is left out, because it allocates memory and creates files.
  measured.rounds.resize(static_cast<std::size_t>(rounds) + 1);
  std::mutex mutex;
  const auto take_slowest = [&](double& round, double seconds) {
    const std::scoped_lock lock(mutex);
    round = std::max(round, seconds);
  };
  run_ranks(config, backend_of(config), [&](const RankContext& context) {
    RankRun run(resolved, data, domain, context);
    Communicator& world = run.world();
    std::vector<CheckpointRows> saved = run.checkpoint_rows();
    std::erase_if(saved, [](const CheckpointRows& held) { return !held.saved; });
    std::int64_t bytes = 0;
    for (const CheckpointRows& held : saved) bytes += held.values.bytes();
    std::vector<std::byte> copy(static_cast<std::size_t>(bytes));
    RankCheckpoints checkpoints(config, identity, run.checkpoint_rows(), world, run.stream(), setup);
    for (std::size_t r = 0; r < measured.rounds.size(); ++r) {
      Round& round = measured.rounds[r];
      world.barrier();
      take_slowest(round.copy, copy_seconds(saved, copy));
      world.barrier();
      auto begin = Clock::now();
      Progress progress;
      progress.step = static_cast<std::int64_t>(r) + 1;
      RunVotes asked;
      asked.save_requests = 1;
      checkpoints.end_step(progress, asked);
      run.stream().synchronize();
      take_slowest(round.blocked, seconds_since(begin));
      checkpoints.finish();
      world.barrier();
      take_slowest(round.saved, seconds_since(begin));
      begin = Clock::now();
      checkpoints.load();
      take_slowest(round.loaded, seconds_since(begin));
      world.barrier();
      if (world.rank() == 0) forget_files(directory);
      world.barrier();
      begin = Clock::now();
      checkpoints.load();
      take_slowest(round.loaded_cold, seconds_since(begin));
    }
  });
  const CheckpointReader reader(find_checkpoints(directory).at(0).path);
  for (const SavedTensor& tensor : reader.manifest().tensors) measured.bytes += tensor.rows * tensor.row_bytes();
  measured.files = std::ranges::count_if(reader.manifest().files,
                                         [](const SavedFile& file) { return file.bytes > file.prefix_bytes; });
  return measured;
}

// Files of the same bytes, written with fsync and read again by as many processes as there are ranks.
void measure_dd(const fs::path& directory, int ranks, std::int64_t bytes, Round& round) {
  const std::int64_t each = (bytes + ranks - 1) / ranks;
  const auto seconds_of_all = [&](std::string_view dd) {
    const std::string command = fmt::format(
        "cd -- {} && for rank in `seq {}`; do {} & all=\"$all $!\"; done; for one in $all; do wait $one || exit; done",
        shell_text({directory.string()}), ranks, dd);
    const auto begin = Clock::now();
    if (std::system(command.c_str()) != 0) fail("it did not work: {}", command);
    return seconds_since(begin);
  };
  round.dd_write = seconds_of_all(
      fmt::format("dd if=/dev/zero of=dd-$rank bs=8M count={} iflag=count_bytes conv=fsync status=none", each));
  constexpr std::string_view read = "dd if=dd-$rank of=/dev/null bs=8M status=none";
  round.dd_read = seconds_of_all(read);
  forget_files(directory);
  round.dd_read_cold = seconds_of_all(read);
  for (int rank = 1; rank <= ranks; ++rank) fs::remove(directory / fmt::format("dd-{}", rank));
}

template <typename Field>
double median(const Measured& measured, Field field) {
  std::vector<double> values;
  for (std::size_t r = 1; r < measured.rounds.size(); ++r) values.push_back(measured.rounds[r].*field);
  return median_of(std::move(values));
}

struct Line {
  const char* name;
  const char* what;
  double Round::*seconds;
};
constexpr Line lines[] = {{"copy", "copying as many bytes in memory", &Round::copy},
                          {"blocked", "training waits for a save", &Round::blocked},
                          {"saved", "until the checkpoint is complete", &Round::saved},
                          {"dd_write", "dd writes as many bytes, with fsync", &Round::dd_write},
                          {"loaded", "loading it from memory", &Round::loaded},
                          {"dd_read", "dd reads as many bytes", &Round::dd_read},
                          {"loaded_cold", "loading it from disk", &Round::loaded_cold},
                          {"dd_read_cold", "dd reads as many bytes", &Round::dd_read_cold}};

void print(const Measured& measured, int ranks, bool json) {
  if (json) {
    Json document = {{"bytes", measured.bytes}, {"files", measured.files}, {"ranks", ranks}};
    for (const Line& line : lines) document["seconds"][line.name] = median(measured, line.seconds);
    return fmt::print("{}\n", document.dump());
  }
  fmt::print("{} bytes in {} files of {} ranks; medians of {} rounds\n", measured.bytes, measured.files, ranks,
             measured.rounds.size() - 1);
  BenchTable table{{"", "ms", "GB/s"}};
  for (const Line& line : lines) {
    const double seconds = median(measured, line.seconds);
    table.add(line.what, decimals(1e3 * seconds, 1), decimals(static_cast<double>(measured.bytes) / seconds / 1e9, 2));
  }
  fmt::print("{}", aligned_text(table));
}

struct Request {
  std::string file, directory;
  int rounds = 7;
  bool json = false;
};

void bench_checkpoint(const CLI::App& command, const Request& request) {
  const Config config = read_config_given_to(command, request.file).config;
  if (config.run.launch == LaunchKind::processes) fail_request("weft bench checkpoint runs ranks that are threads");
  const fs::path directory =
      request.directory.empty() ? fs::path(config.run.directory) / "bench-checkpoint" : fs::path(request.directory);
  if (fs::exists(directory)) fail_request("{} is there already; it would be removed at the end", directory.string());
  fs::create_directories(directory);
  const RemovedFolder removed{directory};
  Measured measured = measure(config, directory, request.rounds);
  for (Round& round : measured.rounds) measure_dd(directory, config.parallelism.world(), measured.bytes, round);
  print(measured, config.parallelism.world(), request.json);
}

}  // namespace

void add_bench_checkpoint_command(CLI::App& bench) {
  const auto [command, request] = add_command<Request>(
      bench, "checkpoint", "seconds to save and load CONFIG's state, beside copies in memory and dd", bench_checkpoint);
  add_config_arguments(command, request.file)->required();
  command.add_option("--directory", request.directory, "where to write; default: a folder of run.directory");
  command.add_option("--rounds", request.rounds, "rounds to take the median of")->check(CLI::Range(1, 1000));
  command.add_flag("--json", request.json, "one JSON document");
}

}  // namespace weft
