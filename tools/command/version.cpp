#include <fmt/format.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "tools/command/commands.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

#if defined(__clang__)
constexpr const char* compiler = "clang " __clang_version__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

}  // namespace

std::string version_text(DeviceKind device) {
  const dnnl_version_t* dnnl = dnnl_version();
  return fmt::format("weft {}\ncompiler: {}\noneDNN: {}.{}.{}\n{}", WEFT_VERSION, compiler, dnnl->major, dnnl->minor,
                     dnnl->patch, device == DeviceKind::cuda ? cuda_versions() : "cpu");
}

}  // namespace weft
