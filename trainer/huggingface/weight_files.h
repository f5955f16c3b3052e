// The files of a checkpoint of weights that are made from something else: a folder of Hugging Face, or the weights of
// another model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"

namespace weft {

// A tensor of the checkpoint, of rows and columns as SavedTensor.
struct NewWeight {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::float32;
  // Calls `write` with the tensor's bytes, row after row, in pieces of any size.
  using Write = std::function<void(std::span<const std::uint8_t>)>;
  std::function<void(const Write& write)> put;

  std::int64_t bytes() const { return rows * columns * size_of(dtype); }
};

// Writes files of at most `largest_file` bytes, unless a single tensor has more, and records them and the tensors in
// the manifest. Returns their number. Throws as OutputFile.
std::size_t write_weights(const std::filesystem::path& folder, std::span<const NewWeight> weights,
                          std::int64_t largest_file, Manifest& manifest);
// Writes the file and records it in the manifest.
void write_text_file(const std::filesystem::path& path, const std::string& text, Manifest& manifest);

}  // namespace weft
