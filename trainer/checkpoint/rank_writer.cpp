#include "trainer/checkpoint/rank_writer.h"

#include <algorithm>
#include <map>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/tensor_file.h"

namespace weft {
namespace {

// What a file is written in.
constexpr std::int64_t piece_bytes = std::int64_t{8} << 20;

// Under the names of whole tensors; those of parts say which rows they are.
SafetensorsTensor described(const CheckpointRows& held) {
  SafetensorsTensor tensor;
  tensor.name = held.state.empty() ? held.name : fmt::format("{}.{}", held.name, held.state);
  if (held.rows() != held.tensor_rows) {
    tensor.name += fmt::format("[{}:{}]", held.row_begin, held.row_begin + held.rows());
  }
  tensor.dtype = safetensors_dtype(held.values.dtype());
  tensor.shape = {held.rows()};
  if (held.columns > 1) tensor.shape.push_back(held.columns);
  return tensor;
}

}  // namespace

std::string part_name(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

RankWriter::RankWriter(Device& device, int rank, int world, std::vector<CheckpointRows> rows, const FileCalls& calls)
    : device_(device), rank_(rank), world_(world), rows_(std::move(rows)), calls_(calls) {
  for (const CheckpointRows& held : rows_) require(held.saved, "a rank writes what it saves");
  add_file("weights", false);
  add_file("optimizer", true);
  lane_ = device.create_stream("checkpoint");
  thread_ = std::thread([this] { work(); });
}

RankWriter::~RankWriter() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (staging_ != nullptr) device_.release_staging(staging_, bytes_);
}

void RankWriter::add_file(const std::string& name, bool states) {
  File file;
  file.offset = bytes_;
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].state.empty() == states) continue;
    tensors.push_back(described(rows_[i]));
    const bool fresh = place.emplace(tensors.back().name, i).second;
    require(fresh, "a rank saves rows of a tensor once");
  }
  if (tensors.empty()) return;
  file.name = fmt::format("{}-{:05}-of-{:05}.safetensors", name, rank_, world_);
  file.header = arrange_safetensors(std::move(tensors), {{"format", "weft"}});
  for (const SafetensorsTensor& tensor : file.header.tensors) file.rows.push_back(place.at(tensor.name));
  bytes_ += file.header.data_bytes();
  files_.push_back(std::move(file));
}

void RankWriter::begin(const std::filesystem::path& folder, const Manifest& part, Stream& compute) {
  require(done(), "one checkpoint is under way at a time");
  if (staging_ == nullptr && bytes_ > 0) staging_ = static_cast<std::uint8_t*>(device_.allocate_staging(bytes_));
  lane_->wait_for(compute);
  for (const File& file : files_) {
    for (std::size_t t = 0; t < file.rows.size(); ++t) {
      const ConstTensorView values = rows_[file.rows[t]].values;
      device_.copy(*lane_, values.data(), staging_ + file.offset + file.header.tensors[t].begin, values.bytes());
    }
  }
  copied_ = lane_->record();
  also([this, folder, part] { write(folder, part); });
}

void RankWriter::also(std::function<void()> job) {
  {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    busy_ = true;
  }
  changed_.notify_all();
}

std::optional<std::string> RankWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  return std::exchange(failure_, std::nullopt);
}

void RankWriter::write(const std::filesystem::path& folder, Manifest part) const {
  if (copied_) copied_->synchronize();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("the folder {} cannot be made: {}", folder.string(), error.message());
  for (const File& file : files_) {
    TensorFile out(folder / file.name, file.header, calls_);
    for (std::int64_t begin = 0; begin < file.header.data_bytes(); begin += piece_bytes) {
      const auto size = std::min(piece_bytes, file.header.data_bytes() - begin);
      out.write({staging_ + file.offset + begin, static_cast<std::size_t>(size)});
    }
    out.finish();
    for (std::size_t t = 0; t < file.rows.size(); ++t) {
      const CheckpointRows& held = rows_[file.rows[t]];
      part.tensors.push_back({held.name,
                              held.state,
                              held.tensor_rows,
                              held.columns,
                              held.values.dtype(),
                              {out.box(t, held.row_begin, held.rows(), static_cast<int>(part.files.size()))}});
    }
    part.files.push_back(out.saved());
  }
  replace_file(folder / part_name(rank_), part_json(part), calls_);
}

void RankWriter::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.erase(jobs_.begin());
    lock.unlock();
    std::optional<std::string> failure;
    try {
      job();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    busy_ = !jobs_.empty();
    if (!busy_) changed_.notify_all();
  }
}

}  // namespace weft
