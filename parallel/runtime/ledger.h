// The memory of one rank. Every tensor is allocated here, under a bucket. Live and peak bytes are thus known at any
// time and can be compared with the program's prediction. The bytes follow the order of the program. If a stream runs
// behind the host, its device keeps a block until the work queued before the release is done. One ledger per rank; not
// thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "parallel/runtime/device.h"
#include "parallel/runtime/tensor.h"

namespace weft {

enum class Bucket : std::uint8_t {
  sharded_parameters,
  replicated_parameters,
  unsharded_parameters,
  sharded_gradients,
  unsharded_gradients,
  optimizer_state,
  activations,
  moe_routing,
  communication,
  workspace,
};
constexpr auto enum_names(Bucket) {
  return name_list("sharded_parameters", "replicated_parameters", "unsharded_parameters", "sharded_gradients",
                   "unsharded_gradients", "optimizer_state", "activations", "moe_routing", "communication",
                   "workspace");
}
inline constexpr std::size_t bucket_count = all_values<Bucket>.size();
// Whether the bucket's bytes live during the whole run: parameters at rest, their reduced gradients, optimizer state.
constexpr bool is_static(Bucket bucket) {
  return bucket == Bucket::sharded_parameters || bucket == Bucket::replicated_parameters ||
         bucket == Bucket::sharded_gradients || bucket == Bucket::optimizer_state;
}

// What shard units hold beside their shards: full parameters, accumulators, and the copies of reductions.
inline constexpr std::array unit_buckets = {Bucket::unsharded_parameters, Bucket::unsharded_gradients,
                                            Bucket::communication};

// Bytes, or their integrals, by bucket; indexed by Bucket.
template <typename Number>
struct ByBucket {
  std::array<Number, bucket_count> bytes{};

  Number& operator[](Bucket bucket) { return bytes[static_cast<std::size_t>(bucket)]; }
  Number operator[](Bucket bucket) const { return bytes[static_cast<std::size_t>(bucket)]; }
  Number total() const { return std::accumulate(bytes.begin(), bytes.end(), Number{}); }
  ByBucket& operator+=(const ByBucket& more) {
    std::ranges::transform(bytes, more.bytes, bytes.begin(), std::plus{});
    return *this;
  }
  ByBucket& operator-=(const ByBucket& less) {
    std::ranges::transform(bytes, less.bytes, bytes.begin(), std::minus{});
    return *this;
  }
  bool operator==(const ByBucket&) const = default;
};
using BucketBytes = ByBucket<std::int64_t>;

// "sharded_parameters 1024, activations 64 bytes": the buckets that are not zero.
std::string to_text(const BucketBytes& bytes);

class MemoryLedger;

// Owned storage, returned to its ledger on destruction. Must not outlive the ledger.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor(std::move(other)).swap(*this);
    return *this;
  }
  ~Tensor();

  bool allocated() const { return ledger_ != nullptr; }
  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  operator TensorView() { return view_; }             // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  std::int64_t rows() const { return view_.rows(); }
  std::int64_t columns() const { return view_.columns(); }
  DType dtype() const { return view_.dtype(); }
  std::int64_t bytes() const { return view_.bytes(); }
  template <typename T>
  std::span<T> as() {
    return view_.as<T>();
  }
  template <typename T>
  std::span<const T> as() const {
    return ConstTensorView(view_).as<T>();
  }
  void reset() { Tensor().swap(*this); }
  // Orders the release after the work queued on `stream` until then, instead of the stream of the allocation. The
  // stream outlives the tensor.
  void release_on(Stream& stream) { stream_ = &stream; }

 private:
  friend class MemoryLedger;
  void swap(Tensor& other) noexcept;

  MemoryLedger* ledger_ = nullptr;
  Stream* stream_ = nullptr;
  TensorView view_;
  Bucket bucket_ = Bucket::workspace;
  std::int64_t capacity_ = 0;
};

// Is told of every allocation and release, by the address of the storage. Addresses are reused after a release.
class MemoryObserver {
 public:
  virtual ~MemoryObserver() = default;
  virtual void allocated(const void* data, Bucket bucket, std::int64_t bytes) = 0;
  virtual void released(const void* data, Bucket bucket, std::int64_t bytes) = 0;
};

// The memory that a ledger counts. Memory on the host is released only after the work that was queued on it is done.
enum class MemoryPlace : std::uint8_t { device, host };

class MemoryLedger {
 public:
  // Tensors are first used on `stream` unless an allocation says otherwise. Device and stream outlive the ledger.
  MemoryLedger(Device& device, Stream& stream, MemoryPlace place = MemoryPlace::device)
      : device_(device), stream_(stream), place_(place) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  // Contents are undefined. `reserve_rows` makes the block large enough for that many rows, while only `rows` are
  // counted. A tensor with a size that varies from step to step (routed tokens) then always fits its previous block.
  Tensor allocate(Bucket bucket, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t reserve_rows = 0) {
    return allocate_on(stream_, bucket, dtype, rows, columns, reserve_rows);
  }
  // For first use on `stream`; `stream` need not wait for work queued on other streams.
  Tensor allocate_on(Stream& stream, Bucket bucket, DType dtype, std::int64_t rows, std::int64_t columns,
                     std::int64_t reserve_rows = 0);

  const BucketBytes& live() const { return live_; }
  // Bytes by bucket at the instant of the largest sum since the last reset.
  const BucketBytes& at_peak() const { return at_peak_; }
  // The largest bytes of each bucket since the last reset, each at its own instant.
  const BucketBytes& peak_by_bucket() const { return peak_by_bucket_; }
  void reset_peak();
  // `observer` is told of everything from here on, and outlives the ledger.
  void observe(MemoryObserver& observer) { observer_ = &observer; }

 private:
  friend class Tensor;
  void release(Stream& stream, Bucket bucket, void* data, std::int64_t bytes, std::int64_t capacity);

  Device& device_;
  Stream& stream_;
  MemoryPlace place_;
  BucketBytes live_, at_peak_, peak_by_bucket_;
  std::int64_t live_total_ = 0, peak_total_ = 0;  // of live_ and at_peak_
  MemoryObserver* observer_ = nullptr;
};

}  // namespace weft
