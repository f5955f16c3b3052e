// Named ranges for Nsight, in the domain "weft": registered names and a category for each lane. The payload holds the
// values that would multiply the names (step, microbatch, bytes) and the keys for sums in tools (stage, phase, family).
// A range costs a few nanoseconds if no tool listens. Without the NVTX headers the same calls do nothing (nvtx.cpp).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "parallel/runtime/lane.h"

namespace weft {

// The domain's categories: `step`, then the lanes by their own names.
constexpr std::uint32_t nvtx_step_category = 1;
constexpr std::uint32_t nvtx_category(Lane lane) {
  return nvtx_step_category + 1 + static_cast<std::uint32_t>(lane);
}

// The domain, its names and its schema. One per process, because a domain's name is unique in a process; the code that
// starts the ranks owns the domain. Thread-safe. Ranges refer to the domain and are closed before its destruction.
class NvtxDomain {
 public:
  NvtxDomain();
  ~NvtxDomain();
  NvtxDomain(const NvtxDomain&) = delete;
  NvtxDomain& operator=(const NvtxDomain&) = delete;

  // A name that tools know by a number. Each text is registered once.
  class Name {
    friend class NvtxDomain;
    friend class NvtxRange;
    void* handle_ = nullptr;
  };
  Name registered(const std::string& text);

 private:
  friend class NvtxRange;
  void* domain_ = nullptr;
  std::uint64_t schema_ = 0;
  std::mutex mutex_;
  std::map<std::string, Name> names_;  // the texts keep their addresses: tools may keep the pointers
};

// Shown beside a range, by the schema "weft.range".
struct NvtxPayload {
  std::int64_t bytes = 0;
  std::int32_t microbatch = -1;  // -1: none
  std::int32_t step = 0;
  std::int32_t stage = -1;                   // -1: none
  NvtxDomain::Name phase = {}, family = {};  // keys for sums in tools
};

// A range from construction to destruction, on the calling thread; ranges of a thread nest.
class NvtxRange {
 public:
  NvtxRange(const NvtxDomain& domain, NvtxDomain::Name name, std::uint32_t category, const NvtxPayload& payload);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  const NvtxDomain& domain_;
};

// Sets the name of the calling thread in tools.
void nvtx_name_thread(const std::string& name);

}  // namespace weft
