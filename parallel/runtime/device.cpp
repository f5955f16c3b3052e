#include "parallel/runtime/device.h"

#include <sys/mman.h>

#include <cstdlib>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

class CpuEvent final : public Event {};

class CpuStream final : public Stream {
 public:
  std::unique_ptr<Event> record() override { return std::make_unique<CpuEvent>(); }
  void wait(const Event&) override {}
  void synchronize() override {}
};

class CpuDevice final : public Device {
 public:
  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Stream> create_stream(std::string_view) override { return std::make_unique<CpuStream>(); }
  void* allocate(std::int64_t bytes) override {
    // Weight gradients walk down columns of tall matrices, a page a row: huge pages make a step 1 to 2 % faster.
    constexpr std::int64_t alignment = 64, huge_page = 2 << 20;
    const bool large = bytes >= huge_page;
    const std::int64_t unit = large ? huge_page : alignment;
    const auto padded = static_cast<std::size_t>((bytes + unit - 1) / unit * unit);
    void* data = std::aligned_alloc(static_cast<std::size_t>(unit), padded);
    if (data == nullptr) fail("the system refused {} bytes of host memory", bytes);
    if (large) madvise(data, padded, MADV_HUGEPAGE);
    return data;
  }
  void release(void* data) override { std::free(data); }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace weft
