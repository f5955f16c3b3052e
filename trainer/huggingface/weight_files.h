// The files of a checkpoint of weights that are made from something else: a folder of Hugging Face, or the weights of
// another model. Matrices go from file to file in small strips.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "trainer/checkpoint/manifest.h"

namespace weft {

// float32, bfloat16 or float16; the bytes need not be aligned.
struct MatrixBytes {
  std::span<const std::uint8_t> bytes;
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::float32;
};

using ByteSink = std::function<void(std::span<const std::uint8_t> bytes)>;

// Streams all rows of the matrix, or of its transpose if `turned`, in order and rounded to `to`. Throws Error (request)
// naming `name` if a finite value is out of the range of `to`.
void stream_matrix(const MatrixBytes& matrix, bool turned, DType to, const std::string& name, const ByteSink& sink);

// A tensor of the checkpoint, of rows and columns as SavedTensor.
struct NewWeight {
  std::string name;
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::float32;
  // Calls `sink` with the tensor's bytes, row after row, in pieces of any size.
  std::function<void(const ByteSink& sink)> put;

  std::int64_t bytes() const { return rows * columns * size_of(dtype); }
};

// Writes the checkpoint `to`, which must not exist. It has safetensors files of at most `largest_file` bytes, unless a
// single tensor has more, and `texts` by the names of their files. `model_keys` are the manifest's entries for the
// model. Returns the number of safetensors files. Throws as NewFolder and OutputFile.
std::size_t write_weights_checkpoint(const std::filesystem::path& to, std::span<const NewWeight> weights,
                                     std::span<const std::pair<std::string, std::string>> texts,
                                     const std::map<std::string, std::string>& model_keys, std::int64_t largest_file);

}  // namespace weft
