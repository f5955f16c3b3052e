#include "trainer/checkpoint/rank_checkpoints.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <ranges>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/checkpoint/start.h"
#include "trainer/config/config_schema.h"

namespace weft {
namespace {

// Whether a changed key, as changed_values() tells it, makes losses of held-out text other figures.
// `same_text`: the files hold what they held, whatever their names.
bool decides_validation(std::string_view changed, const ValidationConfig& validation, bool same_text) {
  constexpr std::array keys = {"validation.split ", "validation.batches ", "data.tokenizer ", "data.documents ",
                               "training.sequence_length "};
  const auto names = [&](std::string_view key) { return changed.starts_with(key); };
  return std::ranges::any_of(keys, names) || (validation.batches > 0 && names("training.global_batch_size ")) ||
         (validation.split && names("data.split ")) ||
         (!same_text && names(validation.split ? "data.train " : "validation.data "));
}

// The file with which a rank tries whether a checkpoint could be saved. It is there until the end of the scope.
class TrialFile {
 public:
  TrialFile(const std::filesystem::path& directory, int rank)
      : directory_(directory), path_(trial_path(directory, rank)) {}
  TrialFile(const TrialFile&) = delete;
  TrialFile& operator=(const TrialFile&) = delete;
  ~TrialFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  // Returns the reason if the system refuses.
  std::optional<std::string> write() const {
    // Too many bytes for a file system to store beside the file's name.
    constexpr std::size_t tried_bytes = 4096;
    try {
      make_folder(directory_);
      replace_file(path_, std::string(tried_bytes, ' '));
    } catch (const Error& error) {
      return error.what();
    }
    return std::nullopt;
  }

 private:
  std::filesystem::path directory_, path_;
};

}  // namespace

RankCheckpoints::RankCheckpoints(const Config& config, const KeyValues& data, std::vector<CheckpointRows> rows,
                                 Communicator& world, Stream& compute, const CheckpointSetup& setup)
    : config_(config),
      data_(data),
      directory_(config.checkpoint_directory()),
      rows_(std::move(rows)),
      world_(world),
      compute_(compute),
      setup_(setup) {}

Progress RankCheckpoints::load() {
  const bool speaks = world_.rank() == 0;
  const std::vector<std::filesystem::path> unfinished = find_unfinished(directory_);
  const StartingPoint start = starting_point(config_);
  const std::vector<CheckpointFolder>& candidates = start.candidates;
  // All ranks must see the same newest checkpoint and the same data.
  const double newest = candidates.empty() ? 0.0 : static_cast<double>(candidates.front().step) + 1.0;
  std::string keys;
  for (const auto& [key, value] : data_) keys += fmt::format("{} = {}\n", key, value);
  const auto data = static_cast<double>(checksum(keys) >> 32);  // exact in a sum over any world
  const std::vector<double> sums = sum_numbers(world_, std::array{newest, data});
  if (sums[1] != data * world_.size()) {
    fail("rank {} does not read what others read: the files of data.train, of which it sees\n{}differ between machines",
         world_.rank(), keys);
  }
  if (sums[0] != newest * world_.size()) {
    fail("rank {} sees {} in {}, others see something else: all ranks must share this directory", world_.rank(),
         start.own ? checkpoint_name(candidates.front().step) : "no checkpoint", directory_.string());
  }
  Progress progress;
  const CheckpointFolder* loaded = nullptr;
  for (const CheckpointFolder& candidate : candidates) {
    const std::optional<PlannedStart> planned = try_load(candidate, start);
    if (!planned) {
      if (speaks) setup_.say(0, fmt::format("{} IS DAMAGED and is passed over", candidate.path.string()));
      continue;
    }
    loaded = &candidate;
    progress = planned->progress;
    if (start.own) saved_ = progress.step;
    if (speaks && !planned->new_data.empty()) {
      setup_.say(0,
                 "its data is not that of this run, which reads its own from the first sample:\n" + planned->new_data);
    }
    if (speaks) {
      setup_.say(0, start.weights_only ? fmt::format("begins with the weights of {}", candidate.path.string())
                                       : fmt::format("goes on from {}: {} steps, {} samples", candidate.path.string(),
                                                     progress.step, progress.samples));
      if (!start.weights_only && progress.step < config_.run.steps) tell_changes(candidate);
    }
    break;
  }
  if (loaded == nullptr && !candidates.empty()) fail_unreadable(start);
  // Unfinished folders of an earlier run are removed after all ranks have listed the directory, and before any rank
  // writes.
  world_.barrier();
  if (speaks) tidy_up(unfinished, start.own ? loaded : nullptr);
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const bool may_stop = config_.spikes.watched() && config_.spikes.action == SpikeAction::stop;
  const bool may_save = checkpoint.interval > 0 || checkpoint.at_end || config_.validation.keep_best || may_stop;
  const TrialFile trial(directory_, world_.rank());
  std::optional<std::string> refused;
  if (may_save && speaks) refused = trial.write();
  world_.barrier();
  if (may_save && !speaks) refused = trial.write();
  if (may_save) require_place_for_saves(refused);
  if (config_.validation.keep_best) best_ = saved_best_ = best_until(progress.step);
  return progress;
}

std::optional<BestCheckpoint> RankCheckpoints::best_until(std::int64_t step) {
  std::optional<BestCheckpoint> best;
  if (world_.rank() == 0) best = find_best(directory_, step);
  if (best) {
    const std::filesystem::path folder = directory_ / checkpoint_name(best->step);
    std::vector<std::string> changed = changes_since(folder);
    const bool text_is_known = !best->held_out.empty(), same_text = best->held_out == setup_.held_out;
    std::erase_if(changed, [&](const std::string& key) {
      return !decides_validation(key, config_.validation, text_is_known && same_text);
    });
    // Files of the same names may hold other text now.
    if (changed.empty() && text_is_known && !same_text) changed.emplace_back("the contents of its files");
    if (!changed.empty()) {
      setup_.say(0, fmt::format("the best so far, {}, was told by other validation: {}. The best is sought anew",
                                folder.string(), fmt::join(changed, ", ")));
      best.reset();
    }
  }
  const std::vector<double> all = sum_numbers(
      world_, std::array{best ? static_cast<double>(best->step) : 0.0, best ? best->loss : 0.0, best ? 1.0 : 0.0});
  if (all[2] == 0.0) return std::nullopt;
  return BestCheckpoint{std::llround(all[0]), all[1], setup_.held_out};
}

void RankCheckpoints::validated(std::int64_t step, double loss) {
  if (!config_.validation.keep_best || !std::isfinite(loss)) return;
  if (!best_ || loss < best_->loss) best_ = {step, loss, setup_.held_out};
}

std::vector<std::string> RankCheckpoints::changes_since(const std::filesystem::path& from) const {
  const std::string file = (from / checkpoint_config_name).string();
  std::error_code unreadable;
  if (!std::filesystem::exists(file, unreadable)) return {};
  const auto now = std::ranges::find(setup_.texts, checkpoint_config_name, &CheckpointSetup::Text::name);
  if (now == setup_.texts.end()) return {};
  return changed_values(read_whole_file(file), now->text);
}

void RankCheckpoints::tell_changes(const CheckpointFolder& from) const {
  constexpr std::ptrdiff_t most = 12;
  std::vector<std::string> changed = changes_since(from.path);
  if (changed.empty()) return;
  // What training does stands in front of where and how long it runs.
  std::ranges::stable_partition(changed, [](const std::string& key) {
    return std::ranges::none_of(std::array{"run.", "checkpoint.", "metrics.", "profiling.", "hardware."},
                                [&](const char* section) { return key.starts_with(section); });
  });
  const auto shown = changed | std::views::take(most);
  const std::string rest = std::ssize(changed) > most ? fmt::format(", and {} more", std::ssize(changed) - most) : "";
  setup_.say(0, fmt::format("changed since then: {}{}", fmt::join(shown, ", "), rest));
}

void RankCheckpoints::require_place_for_saves(const std::optional<std::string>& refused) {
  std::error_code ignored;
  const bool apart = !std::filesystem::exists(trial_path(directory_, 0), ignored);
  double saved = 0.0;
  for (const CheckpointRows& held : rows_) saved += held.saved ? static_cast<double>(held.values.bytes()) : 0.0;
  const std::vector<double> told = gather_numbers(world_, std::array{refused ? 1.0 : 0.0, apart ? 1.0 : 0.0, saved});
  double refusals = 0.0, needed = 0.0;
  std::optional<int> first_apart;
  for (int rank = 0; rank < world_.size(); ++rank) {
    refusals += told[3 * rank];
    if (told[3 * rank + 1] > 0.0 && !first_apart) first_apart = rank;
    needed += told[3 * rank + 2];
  }
  if (refused) fail_request("no checkpoint could be saved: {}", *refused);
  if (refusals > 0.0) {
    fail_request("no checkpoint could be saved: {} ranks cannot write to {}", refusals, directory_.string());
  }
  if (first_apart) {
    fail_request(
        "no checkpoint could be saved: rank {} does not see the file that rank 0 has just written. All ranks must "
        "share one folder of checkpoints; here it is {}",
        *first_apart, std::filesystem::absolute(directory_).string());
  }
  const std::filesystem::space_info space = std::filesystem::space(directory_, ignored);
  if (world_.rank() == 0 && !ignored && static_cast<double>(space.available) < needed) {
    setup_.say(0, fmt::format("WARNING: a checkpoint takes {:.3f} GiB, and {} has {:.3f} GiB left", needed / 0x1p30,
                              directory_.string(), static_cast<double>(space.available) / 0x1p30));
  }
}

void RankCheckpoints::tidy_up(const std::vector<std::filesystem::path>& unfinished,
                              const CheckpointFolder* resumed) const {
  for (const std::filesystem::path& path : unfinished) {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    setup_.say(0, fmt::format("{} was never finished and is {}", path.string(),
                              error ? "NOT removed: " + error.message() : "removed"));
  }
  // A name that a save left without its checkpoint, or of one that was passed over, must not become that of another.
  forget_best_after(directory_, resumed == nullptr ? -1 : resumed->step);
  if (resumed == nullptr) return;
  if (point_latest_at(*resumed)) {
    setup_.say(0, fmt::format("latest named another and names {} now", checkpoint_name(resumed->step)));
  }
  // A run that ended behind its last save may have left one too many, and this one may take no step.
  remove_superseded(resumed->step);
}

void RankCheckpoints::remove_superseded(std::int64_t newest) const {
  const std::optional<BestCheckpoint> best = find_best(directory_, newest);
  std::vector<CheckpointFolder> complete = find_checkpoints(directory_);
  // A newer one was passed over as damaged.
  std::erase_if(complete, [&](const CheckpointFolder& other) { return other.step > newest; });
  for (const CheckpointFolder& old : superseded(complete, config_.checkpoint.keep_latest, config_.checkpoint.keep_every,
                                                best ? std::optional(best->step) : std::nullopt)) {
    remove_checkpoint(old.path);
  }
}

std::optional<PlannedStart> RankCheckpoints::try_load(const CheckpointFolder& candidate, const StartingPoint& from) {
  PlannedStart start;
  std::optional<CheckpointReader> reader;
  bool damaged = false;
  std::optional<Error> refused;  // the checkpoint may be sound: an older one would take its place
  const auto attempt = [&](const auto& read) {
    try {
      read();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::request) damaged = true;
      if (error.kind() != ErrorKind::request) refused = error;
      setup_.say(world_.rank(), error.what());
    }
  };
  attempt([&] {
    reader.emplace(candidate.path);
    const bool checks = world_.rank() == 0 && reader->lists(checkpoint_config_name);
    if (checks) reader->require_unchanged(checkpoint_config_name);
  });
  if (!damaged && !refused) {
    start = plan_start(config_, data_, *reader, from);
    attempt([&] { load_rows(*reader, start.load, rows_, compute_); });
  }
  const auto step = static_cast<double>(candidate.step);
  const auto totals = sum_numbers(world_, std::array{damaged ? 1.0 : 0.0, step, refused ? 1.0 : 0.0});
  if (totals[1] != step * world_.size()) {
    fail("rank {} would go on from {}, others from another checkpoint: do all ranks see the same directory?",
         world_.rank(), candidate.path.string());
  }
  if (refused) throw Error(*refused);
  if (totals[2] > 0.0) fail("{} cannot be read by {} of {} ranks", candidate.path.string(), totals[2], world_.size());
  if (totals[0] > 0.0) return std::nullopt;
  start.load.clear();  // it points to tensors of the reader
  return start;
}

bool RankCheckpoints::saves_after(std::int64_t step, const RunVotes& votes) const {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const bool by_interval =
      checkpoint.interval > 0 && (step % checkpoint.interval == 0 || (checkpoint.at_first_step && step == 1));
  const bool is_best = best_ && best_->step == step;
  return by_interval || (checkpoint.at_end && step == config_.run.steps) || votes.save_requests > 0 ||
         votes.stop_requests > 0 || is_best;
}

RunVotes RankCheckpoints::votes() {
  RunVotes votes;
  votes.saves_unpublished = unpublished_ ? 1 : 0;
  if (!under_way_) return votes;
  if (writer_->done()) finish_own_part();
  if (own_part_) ++(*own_part_ ? votes.saves_written : votes.saves_failed);
  return votes;
}

void RankCheckpoints::finish_own_part() {
  if (own_part_) return;
  const auto failure = writer_->wait();
  own_part_ = !failure;
  if (failure) setup_.say(world_.rank(), *failure);
}

void RankCheckpoints::end_step(const Progress& progress, const RunVotes& votes) {
  settle(votes.saves_written, votes.saves_failed);
  if (publishing_ && writer_->done()) report(writer_->wait());
  if (saves_after(progress.step, votes)) save(progress);
}

void RankCheckpoints::save(const Progress& progress) {
  conclude();
  // Rank 0 may still publish that folder.
  if (saved_ == progress.step) return;
  if (writer_ == nullptr) {
    std::vector<CheckpointRows> saved;
    std::ranges::copy_if(rows_, std::back_inserter(saved), &CheckpointRows::saved);
    writer_ = std::make_unique<RankWriter>(compute_.device(), world_.rank(), world_.size(), std::move(saved),
                                           config_.checkpoint.host_memory, setup_.calls);
    part_.mesh = config_.parallelism;
    part_.model = model_keys(config_);
    part_.rules = rules_by_group(config_);
    part_.data = data_;
  }
  part_.progress = progress;
  writer_->begin(unfinished_path(directory_, progress.step), part_, compute_);
  under_way_ = progress;
  best_under_way_ = best_ && best_->step == progress.step ? best_ : std::nullopt;
  own_part_.reset();
  if (!config_.checkpoint.asynchronous) conclude();
}

void RankCheckpoints::settle(std::int64_t written, std::int64_t failed) {
  if (!under_way_ || written + failed < world_.size()) return;
  const Progress progress = *std::exchange(under_way_, std::nullopt);
  failure_.reset();
  const std::optional<BestCheckpoint> best = std::exchange(best_under_way_, std::nullopt);
  if (failed == 0) {
    saved_ = progress.step;
    best_before_ = saved_best_;
    if (best) saved_best_ = best;
  } else {
    // A later loss need not be less than that of a checkpoint that is not there.
    if (best && best_->step == best->step) best_ = saved_best_;
    failure_ = fmt::format("checkpoint {} was NOT saved: {} of {} ranks could not write their parts",
                           checkpoint_name(progress.step), failed, world_.size());
    if (world_.rank() != 0) return;
    // An incomplete checkpoint is useless, and the next one may need its disk space.
    std::error_code ignored;
    std::filesystem::remove_all(unfinished_path(directory_, progress.step), ignored);
    setup_.say(0, *failure_ + "; the one before stays the newest");
    return;
  }
  if (world_.rank() != 0) return;
  publishing_ = progress;
  writer_->also([this, step = progress.step, best] { publish(step, best); });
}

void RankCheckpoints::publish(std::int64_t step, const std::optional<BestCheckpoint>& best) const {
  const std::filesystem::path folder = unfinished_path(directory_, step);
  std::vector<Manifest> parts;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const std::string name = (folder / part_name(rank)).string();
    parts.push_back(parse_part(read_whole_file(name), name));
  }
  Manifest manifest = join_parts(parts);
  manifest.hashes = setup_.hashes;
  for (const auto& [name, text] : setup_.texts) {
    replace_file(folder / name, text, setup_.calls);
    manifest.files.push_back({name, std::ssize(text), std::ssize(text), checksum(text)});
  }
  replace_file(folder / manifest_name, to_json(manifest), setup_.calls);
  for (int rank = 0; rank < world_.size(); ++rank) std::filesystem::remove(folder / part_name(rank));
  // Named before it is there: a run that ends between the two has a best all the same, this one or the one before.
  std::error_code ignored;
  const bool replaces = std::filesystem::exists(directory_ / checkpoint_name(step), ignored);
  if (best && !replaces) name_best(directory_, *best);
  publish_checkpoint(directory_, step);
  if (best && replaces) name_best(directory_, *best);
  remove_superseded(step);
}

void RankCheckpoints::conclude() {
  if (under_way_) {
    finish_own_part();
    const auto totals = sum_numbers(world_, std::array{*own_part_ ? 1.0 : 0.0, *own_part_ ? 0.0 : 1.0});
    settle(std::llround(totals[0]), std::llround(totals[1]));
  }
  if (!publishing_) return;
  report(writer_->wait());
}

void RankCheckpoints::report(const std::optional<std::string>& failure) {
  const Progress progress = *std::exchange(publishing_, std::nullopt);
  std::error_code ignored;
  if (failure && std::filesystem::exists(directory_ / checkpoint_name(progress.step) / manifest_name, ignored)) {
    failure_ = fmt::format("checkpoint {} is saved, but not all behind it was done: {}", checkpoint_name(progress.step),
                           *failure);
    setup_.say(0, *failure_);
  } else if (failure) {
    unpublished_ = true;
    failure_ = fmt::format("checkpoint {} was NOT saved: {}", checkpoint_name(progress.step), *failure);
    std::filesystem::remove_all(unfinished_path(directory_, progress.step), ignored);
    setup_.say(0, *failure_ + "; the one before stays the newest");
  } else {
    setup_.say(0, fmt::format("saved {}", (directory_ / checkpoint_name(progress.step)).string()));
  }
}

void RankCheckpoints::heard(const RunVotes& votes) {
  if (votes.saves_unpublished == 0) return;
  unpublished_ = false;
  saved_.reset();
  if (best_ && saved_best_ && best_->step == saved_best_->step) best_ = best_before_;
  saved_best_ = best_before_;
}

void RankCheckpoints::finish() {
  conclude();
  if (failure_) fail("{}", *failure_);
}

}  // namespace weft
