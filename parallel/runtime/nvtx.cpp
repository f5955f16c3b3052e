#include "parallel/runtime/nvtx.h"

#ifdef WEFT_HAVE_NVTX
#include <nvtx3/nvtx3.hpp>

namespace weft {
namespace {
struct Domain {
  static constexpr const char* name = "weft";
};
}  // namespace

NvtxRange::NvtxRange(const char* name, std::int64_t payload) {
  const nvtx3::event_attributes attributes{nvtx3::message{name}, nvtx3::payload{payload}};
  nvtxDomainRangePushEx(nvtx3::domain::get<Domain>(), attributes.get());
}
NvtxRange::~NvtxRange() { nvtxDomainRangePop(nvtx3::domain::get<Domain>()); }
}  // namespace weft

#else

namespace weft {
NvtxRange::NvtxRange(const char*, std::int64_t) {}
NvtxRange::~NvtxRange() = default;
}  // namespace weft

#endif
