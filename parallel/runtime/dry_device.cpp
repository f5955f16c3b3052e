#include "parallel/runtime/dry_device.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr ElementwiseKernels dry_elementwise = {
    .cast = DryKernel<"cast">(),
    .add = DryKernel<"add", Writes::onto>(),
    .combine = DryKernel<"combine", Writes::onto>(),
    .divide_by_root = DryKernel<"divide_by_root", Writes::onto>(),
    .fill = DryKernel<"fill">(),
    .square_sum = DryKernel<"square_sum">(),
    .count_nonfinite = DryKernel<"count_nonfinite">(),
    .copy_columns =
        [](Stream& stream, ConstTensorView source, std::int64_t, TensorView, std::int64_t, std::int64_t columns) {
          const std::int64_t bytes = source.rows() * columns * size_of(source.dtype());
          tell(stream, {.name = "copy_columns", .read = bytes, .written = bytes});
        },
    .reduce_elements = [](Stream&, DType, Reduce, std::span<const std::byte* const>, std::int64_t, std::int64_t,
                          std::span<std::byte* const>) {},
};

// Addresses of blocks count up from here. No processor accepts them: bits 48 to 63 of a usable address are equal.
constexpr std::uintptr_t first_address = std::uintptr_t{1} << 62;

class NumberedDevice final : public DryDevice {
 public:
  explicit NumberedDevice(DryDownload download) : download_(std::move(download)) {}
  ~NumberedDevice() override { free_staging_.release_all(std::free); }

  std::unique_ptr<Stream> create_stream(std::string_view) override { return std::make_unique<ImmediateStream>(*this); }

  void* allocate(std::int64_t bytes, Stream&) override { return allocate_numbered(bytes); }
  void release(void* data, std::int64_t bytes, Stream&) override { free_blocks_.put(data, bytes); }
  std::int64_t system_allocations() const override { return 0; }

  void count_host_blocks() override {
    for (auto& [bytes, count] : host_) count = {};
  }
  std::map<std::int64_t, std::int64_t> host_blocks() const override {
    std::map<std::int64_t, std::int64_t> most;
    for (const auto& [bytes, count] : host_) {
      if (count.most > 0) most[bytes] = count.most;
    }
    return most;
  }
  void* allocate_staging(std::int64_t bytes) override {
    host_[bytes].come();
    if (void* data = free_staging_.take(bytes)) return data;
    void* data = std::calloc(1, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (data == nullptr) fail("the system refused {} bytes of host memory", bytes);
    return data;
  }
  // Kept for the next request of this size: every MoE block requests it once for each microbatch.
  void release_staging(void* data, std::int64_t bytes) override {
    --host_[bytes].live;
    free_staging_.put(data, bytes);
  }
  void* allocate_host(std::int64_t bytes) override {
    host_[bytes].come();
    return allocate_numbered(bytes);
  }
  void release_host(void* data, std::int64_t bytes) override {
    --host_[bytes].live;
    free_blocks_.put(data, bytes);
  }
  void copy(Stream&, const void*, void* to, std::int64_t bytes) override {
    const bool to_device = reinterpret_cast<std::uintptr_t>(to) >= first_address;
    if (!to_device && download_) download_({static_cast<std::byte*>(to), static_cast<std::size_t>(bytes)});
  }

  const ElementwiseKernels& elementwise() const override { return dry_elementwise; }

 private:
  void* allocate_numbered(std::int64_t bytes) {
    if (void* data = free_blocks_.take(bytes)) return data;
    constexpr std::int64_t alignment = 64;
    void* data = reinterpret_cast<void*>(next_);
    next_ += static_cast<std::uintptr_t>((bytes + alignment - 1) / alignment * alignment);
    return data;
  }

  DryDownload download_;
  std::uintptr_t next_ = first_address;
  FreeBlocks free_blocks_, free_staging_;
  struct Count {
    std::int64_t live = 0, most = 0;  // beside the blocks that were there when counting began
    void come() { most = std::max(most, ++live); }
  };
  std::map<std::int64_t, Count> host_;  // by bytes
};

}  // namespace

std::unique_ptr<DryDevice> make_dry_device(DryDownload download) {
  return std::make_unique<NumberedDevice>(std::move(download));
}

}  // namespace weft
