#include "trainer/checkpoint/rank_writer.h"

#include <algorithm>
#include <map>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/tensor_file.h"

namespace weft {
namespace {

// Size of the pieces that are copied and written; smaller if the allowed host memory is smaller.
constexpr std::int64_t staged_piece_bytes = std::int64_t{8} << 20;

// The tensor of a safetensors file for these rows. Its name gives the rows if they are only a part of the tensor.
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

std::int64_t staging_bytes(std::int64_t bytes, std::int64_t most) {
  if (bytes <= most) return bytes;
  const std::int64_t piece = std::min(staged_piece_bytes, most);
  return most / piece * piece;
}

RankWriter::RankWriter(Device& device, int rank, int world, std::vector<CheckpointRows> rows, std::int64_t host_memory,
                       const FileCalls& calls)
    : device_(device), rank_(rank), world_(world), rows_(std::move(rows)), calls_(calls), host_memory_(host_memory) {
  for (const CheckpointRows& held : rows_) require(held.saved, "a rank writes what it saves");
  add_file("weights", false);
  add_file("optimizer", true);
  divide();
  lane_ = device.create_stream("checkpoint");
  thread_ = std::thread([this] { work(); });
}

RankWriter::~RankWriter() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    abandoned_ = copies_.size() < pieces_.size();
  }
  changed_.notify_all();
  thread_.join();
  if (staging_ != nullptr) device_.release_staging(staging_, staging_bytes_);
}

void RankWriter::add_file(const std::string& name, bool states) {
  File file;
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

void RankWriter::divide() {
  staging_bytes_ = staging_bytes(bytes_, host_memory_);
  const std::int64_t size = std::min(staged_piece_bytes, staging_bytes_);
  std::int64_t offset = 0;
  for (std::size_t f = 0; f < files_.size(); ++f) {
    const std::int64_t end = files_[f].header.data_bytes();
    for (std::int64_t begin = 0; begin < end; begin += size) {
      if (offset + size > staging_bytes_ && staging_bytes_ < bytes_) offset = 0;
      pieces_.push_back({f, begin, std::min(size, end - begin), offset});
      offset += staging_bytes_ < bytes_ ? size : pieces_.back().size;
    }
  }
  room_ = staging_bytes_ < bytes_ ? static_cast<std::size_t>(staging_bytes_ / size) : pieces_.size();
}

void RankWriter::begin(const std::filesystem::path& folder, const Manifest& part, Stream& compute) {
  require(done(), "one checkpoint is under way at a time");
  if (staging_ == nullptr && bytes_ > 0) {
    staging_ = static_cast<std::uint8_t*>(device_.allocate_staging(staging_bytes_));
  }
  lane_->wait_for(compute);
  copies_.clear();
  written_ = 0;
  abandoned_ = false;
  if (!pieces_.empty()) copy_some();
  also([this, folder, part] { write(folder, part); });
}

bool RankWriter::copy_some() {
  std::size_t end = 0;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return abandoned_ || copies_.size() < written_ + room_; });
    if (abandoned_) return false;
    end = std::min(pieces_.size(), written_ + room_);
  }
  for (std::size_t p = copies_.size(); p < end; ++p) copy(pieces_[p]);
  Fence fence = lane_->record();
  {
    const std::scoped_lock lock(mutex_);
    copies_.resize(end, fence);
  }
  changed_.notify_all();
  return true;
}

void RankWriter::copy(const FileChunk& piece) {
  const File& file = files_[piece.file];
  const std::vector<SafetensorsTensor>& tensors = file.header.tensors;
  const auto ends_behind = [](std::int64_t at, const SafetensorsTensor& tensor) { return at < tensor.end; };
  auto tensor = std::upper_bound(tensors.begin(), tensors.end(), piece.begin, ends_behind);
  for (std::int64_t at = piece.begin; at < piece.begin + piece.size; at = tensor++->end) {
    const std::int64_t bytes = std::min(tensor->end, piece.begin + piece.size) - at;
    const ConstTensorView values = rows_[file.rows[static_cast<std::size_t>(tensor - tensors.begin())]].values;
    device_.copy(*lane_, values.data() + (at - tensor->begin), staging_ + piece.offset + (at - piece.begin), bytes);
  }
}

Fence RankWriter::copied() {
  while (copies_.size() < pieces_.size() && copy_some()) {
  }
  return copies_.empty() ? nullptr : copies_.back();
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
  copied();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  return std::exchange(failure_, std::nullopt);
}

std::span<const std::uint8_t> RankWriter::await(std::size_t piece) {
  Fence fence;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return abandoned_ || copies_.size() > piece; });
    if (abandoned_) fail("the run ended while it was saved");
    fence = copies_[piece];
  }
  if (fence) fence->synchronize();
  return {staging_ + pieces_[piece].offset, static_cast<std::size_t>(pieces_[piece].size)};
}

void RankWriter::write(const std::filesystem::path& folder, Manifest part) {
  make_folder(folder);
  std::size_t piece = 0;
  for (std::size_t f = 0; f < files_.size(); ++f) {
    const File& file = files_[f];
    TensorFile out(folder / file.name, file.header, calls_);
    for (; piece < pieces_.size() && pieces_[piece].file == f; ++piece) {
      out.write(await(piece));
      {
        const std::scoped_lock lock(mutex_);
        ++written_;
      }
      changed_.notify_all();
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
  device_.make_current();
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
      failure = error_text(error);
    }
    lock.lock();
    abandoned_ |= failure.has_value();
    if (failure && !failure_) failure_ = failure;
    busy_ = !jobs_.empty();
    changed_.notify_all();
  }
}

}  // namespace weft
