#include "parallel/runtime/ledger.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {

std::string to_text(const BucketBytes& bytes) {
  std::vector<std::string> parts;
  for (std::size_t b = 0; b < bucket_count; ++b) {
    if (bytes.bytes[b] != 0) parts.push_back(fmt::format("{} {}", name_of(static_cast<Bucket>(b)), bytes.bytes[b]));
  }
  return parts.empty() ? "nothing" : fmt::format("{} bytes", fmt::join(parts, ", "));
}

Tensor::~Tensor() {
  if (ledger_ != nullptr) ledger_->release(*stream_, bucket_, view_.data(), view_.bytes(), capacity_);
}

void Tensor::swap(Tensor& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(stream_, other.stream_);
  std::swap(view_, other.view_);
  std::swap(bucket_, other.bucket_);
  std::swap(capacity_, other.capacity_);
}

Tensor MemoryLedger::allocate_on(Stream& stream, Bucket bucket, DType dtype, std::int64_t rows, std::int64_t columns,
                                 std::int64_t reserve_rows) {
  require(rows >= 0 && columns >= 0, "sizes are not negative");
  const std::int64_t bytes = rows * columns * size_of(dtype);
  const std::int64_t capacity = std::max<std::int64_t>(64, std::max(rows, reserve_rows) * columns * size_of(dtype));
  void* data = nullptr;
  try {
    data = place_ == MemoryPlace::host ? device_.allocate_host(capacity) : device_.allocate(capacity, stream);
  } catch (const Error& error) {
    throw Error(error.kind(),
                fmt::format("{}; asked for {}, beside {}", error.what(), name_of(bucket), to_text(live_)));
  }

  live_[bucket] += bytes;
  live_total_ += bytes;
  peak_by_bucket_[bucket] = std::max(peak_by_bucket_[bucket], live_[bucket]);
  if (live_total_ > peak_total_) {
    at_peak_ = live_;
    peak_total_ = live_total_;
  }
  if (observer_ != nullptr) observer_->allocated(data, bucket, bytes);

  Tensor tensor;
  tensor.ledger_ = this;
  tensor.stream_ = &stream;
  tensor.view_ = TensorView(data, dtype, rows, columns);
  tensor.bucket_ = bucket;
  tensor.capacity_ = capacity;
  return tensor;
}

void MemoryLedger::release(Stream& stream, Bucket bucket, void* data, std::int64_t bytes, std::int64_t capacity) {
  live_[bucket] -= bytes;
  live_total_ -= bytes;
  if (observer_ != nullptr) observer_->released(data, bucket, bytes);
  place_ == MemoryPlace::host ? device_.release_host(data, capacity) : device_.release(data, capacity, stream);
}

void MemoryLedger::reset_peak() {
  at_peak_ = live_;
  peak_total_ = live_total_;
  peak_by_bucket_ = live_;
}

}  // namespace weft
