// A folder of Hugging Face read and run in plain double loops, by the conventions of transformers. Matrices are
// [out, in], the rotary embedding is half-rotate, and the softmax over all experts comes before the choice. It shares
// nothing with Weft but the folder, so that a matrix turned or swapped on the way out shows here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace weft::huggingface_test {

struct FolderMatrix {
  std::vector<std::int64_t> shape;
  std::string dtype;
  std::vector<double> values;
};

// All tensors of a folder's files, widened.
std::map<std::string, FolderMatrix> read_tensors(const std::filesystem::path& folder);
// One file with these tensors, in float32.
void write_tensors(const std::filesystem::path& file, const std::map<std::string, FolderMatrix>& tensors);

// Logarithms of the probabilities of every token after each position: [tokens, vocabulary].
std::vector<double> log_probabilities(const nlohmann::json& config, const std::map<std::string, FolderMatrix>& tensors,
                                      std::span<const std::int32_t> tokens);
// Those of the first predictor, of the token after the following one of each position.
std::vector<double> predictor_log_probabilities(const nlohmann::json& config,
                                                const std::map<std::string, FolderMatrix>& tensors,
                                                std::span<const std::int32_t> tokens,
                                                std::span<const std::int32_t> following);

}  // namespace weft::huggingface_test
