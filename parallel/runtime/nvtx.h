// Named ranges for Nsight: one domain ("weft"), scoped, about a nanosecond when nobody listens. Where the NVTX headers
// are absent the same calls do nothing (nvtx.cpp).
#pragma once

#include <cstdint>

namespace weft {

class NvtxRange {
 public:
  // `name` is copied by the tool that listens; `payload` is shown beside it (the microbatch, for example).
  explicit NvtxRange(const char* name, std::int64_t payload = 0);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace weft
