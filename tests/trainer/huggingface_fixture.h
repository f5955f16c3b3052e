// Tiny models of every architecture, their weights, and checkpoints of them as a run of two ranks would leave them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "parallel/runtime/error.h"
#include "tests/layers/model_reference.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/huggingface/architecture.h"
#include "trainer/huggingface/export.h"

namespace weft::huggingface_test {

// No two sizes are the same, so that no turned or swapped matrix has the shape of the right one; but gate and up.
ModelConfig tiny_model(Architecture architecture, bool tied);

// Of every parameter, each a bfloat16, so that no dtype that is tested rounds it.
NamedValues random_weights(const ModelConfig& model, unsigned seed);

// Rows of every tensor in two boxes of two files, and a state of the optimizer beside each. `dtype_of_router` may
// differ from that of the others.
void write_checkpoint(const std::filesystem::path& folder, const ModelConfig& model, const NamedValues& weights,
                      DType dtype = DType::float32, DType dtype_of_router = DType::float32);
// The weights of a checkpoint.
NamedValues read_checkpoint(const std::filesystem::path& folder);

// Both in bytes; the message names the first difference.
testing::AssertionResult same_files(const std::filesystem::path& a, const std::filesystem::path& b);

std::string read_bytes(const std::filesystem::path& file);
void write_bytes(const std::filesystem::path& file, const std::string& bytes);

// What a request error says, or "done".
template <typename Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request) << error.what();
    return error.what();
  }
  return "done";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A folder of its own for each test.
class HuggingFace : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The checkpoint folder_/from as folder_/to.
  void export_to(const std::string& from, const std::string& to, Architecture architecture, const ModelConfig& model,
                 std::optional<DType> dtype = {}, std::int64_t largest_file = 5'000'000'000) const;

  std::filesystem::path folder_;
};

}  // namespace weft::huggingface_test
