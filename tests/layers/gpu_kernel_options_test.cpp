#include "layers/kernels/gpu_kernel_options.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(AttentionChoice, IsReadWholeOrNotAtAll) {
  using Kernel = AttentionChoice::Kernel;
  EXPECT_EQ(parse_attention_choice("auto"), AttentionChoice{Kernel::automatic});
  EXPECT_EQ(parse_attention_choice("own"), AttentionChoice{Kernel::own});
  EXPECT_EQ(parse_attention_choice("cudnn"), AttentionChoice{Kernel::cudnn});
  EXPECT_EQ(parse_attention_choice("cudnn:12"), (AttentionChoice{Kernel::cudnn, 12}));
  for (const char* text : {"", "Auto", "own ", "cudnn:", "cudnn:-1", "cudnn:+1", "cudnn:1x", "cudnn: 1",
                           "cudnn:99999999999", "cudnn1", "flash"}) {
    EXPECT_EQ(parse_attention_choice(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace weft
