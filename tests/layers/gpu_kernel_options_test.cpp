#include "layers/kernels/gpu_kernel_options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

TEST(AttentionChoice, IsReadWholeOrNotAtAll) {
  using Kernel = AttentionChoice::Kernel;
  EXPECT_EQ(parse_attention_choice("auto"), AttentionChoice{Kernel::automatic});
  EXPECT_EQ(parse_attention_choice("own"), AttentionChoice{Kernel::own});
  EXPECT_EQ(parse_attention_choice("cudnn"), AttentionChoice{Kernel::cudnn});
  EXPECT_EQ(parse_attention_choice("cudnn:12"), (AttentionChoice{Kernel::cudnn, 12}));
  for (const char* text : {"auto", "own", "cudnn", "cudnn:0", "cudnn:12"}) {
    EXPECT_EQ(to_string(parse_attention_choice(text)), text);
  }
  for (const char* text : {"", "Auto", "own ", "cudnn:", "cudnn:-1", "cudnn:+1", "cudnn:1x", "cudnn: 1",
                           "cudnn:99999999999", "cudnn1", "flash"}) {
    EXPECT_THROW(parse_attention_choice(text), Error) << text;
  }
}

// An A100 has 8.0, an L40S 8.9, an H100 9.0.
TEST(GpuKernelOptions, RefuseFloat8WhereNothingMultipliesIt) {
  for (const int capability : {80, 86}) {
    EXPECT_NO_THROW(require_kernels({}, capability));
    try {
      require_kernels({.float8 = true}, capability);
      ADD_FAILURE() << "taken by " << capability;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      EXPECT_NE(std::string(error.what()).find(fmt::format("this one has 8.{}", capability % 10)), std::string::npos);
    }
  }
  for (const int capability : {89, 90, 100}) EXPECT_NO_THROW(require_kernels({.float8 = true}, capability));
  EXPECT_NO_THROW(require_kernels({.float8_blocks = true}, 90));
  for (const int capability : {80, 89, 100}) EXPECT_THROW(require_kernels({.float8_blocks = true}, capability), Error);
}

}  // namespace
}  // namespace weft
