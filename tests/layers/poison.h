// Memory in which what was never written shows: all bits set, which is NaN in every floating type and -1 in int32.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "parallel/runtime/staging.h"

namespace weft {

// Sets every byte of a tensor.
inline void write_bytes(Stream& stream, TensorView tensor, unsigned char byte) {
  // The narrowest dtype can stand for any other.
  bfloat16 element;
  element.bits = static_cast<std::uint16_t>(byte * 0x0101);
  const std::vector<bfloat16> elements(static_cast<std::size_t>(tensor.bytes()) / sizeof(element), element);
  write<bfloat16>(stream, elements, TensorView(tensor.data(), DType::bfloat16, std::ssize(elements), 1));
}
inline void poison(Stream& stream, TensorView tensor) {
  write_bytes(stream, tensor, 0xff);
}

// A device whose memory is handed out poisoned, so that a kernel that reads workspace before it writes it is found. The
// streams are those of the inner device, which outlives this one.
class PoisoningDevice final : public Device {
 public:
  explicit PoisoningDevice(Device& inner) : inner_(inner), poison_(inner.allocate_staging(poison_bytes)) {
    std::memset(poison_, 0xff, poison_bytes);
  }
  ~PoisoningDevice() override {
    for (const auto& [stream, copied] : last_copies_) {
      if (copied) copied->synchronize();
    }
    inner_.release_staging(poison_, poison_bytes);
  }

  std::unique_ptr<Stream> create_stream(std::string_view lane) override { return inner_.create_stream(lane); }
  void* allocate(std::int64_t bytes, Stream& stream) override {
    void* data = inner_.allocate(bytes, stream);
    for (std::int64_t done = 0; done < bytes; done += poison_bytes) {
      inner_.copy(stream, poison_, static_cast<std::byte*>(data) + done, std::min(poison_bytes, bytes - done));
    }
    last_copies_[&stream] = stream.record();
    return data;
  }
  void release(void* data, std::int64_t bytes, Stream& stream) override { inner_.release(data, bytes, stream); }
  std::int64_t system_allocations() const override { return inner_.system_allocations(); }
  void* allocate_staging(std::int64_t bytes) override { return inner_.allocate_staging(bytes); }
  void release_staging(void* data, std::int64_t bytes) override { inner_.release_staging(data, bytes); }
  void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) override {
    inner_.copy(stream, from, to, bytes);
  }
  const ElementwiseKernels& elementwise() const override { return inner_.elementwise(); }

 private:
  static constexpr std::int64_t poison_bytes = 1 << 20;

  Device& inner_;
  void* poison_;
  std::unordered_map<const Stream*, Fence> last_copies_;
};

}  // namespace weft
