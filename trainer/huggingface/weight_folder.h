// The weights of a Hugging Face folder: one model.safetensors, or many files with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/input_file.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/huggingface/names.h"

namespace weft {

class WeightFolder {
 public:
  // Reads index and headers. Throws Error (request) if there is neither index nor single file, if a file is missing or
  // no safetensors file, or listing every tensor on which index and files disagree.
  explicit WeightFolder(const std::filesystem::path& folder);

  const SafetensorsTensor* find(const std::string& name) const;
  // Reads bytes of a tensor from `offset` on. Throws as InputFile::read.
  void read(const std::string& name, std::int64_t offset, std::span<std::uint8_t> to) const;
  std::vector<std::string> names() const;

  // Faults of these weights for a model with the expected tensors: every tensor that is missing, unknown, or of another
  // shape, or has a dtype that Weft does not read.
  std::vector<std::string> find_faults(const std::vector<FolderTensor>& expected) const;

 private:
  struct Entry {
    SafetensorsTensor tensor;
    std::size_t place = 0;    // index into files_
    std::int64_t offset = 0;  // in the file
    std::string file;
  };
  void read_file(const std::filesystem::path& path);

  std::vector<InputFile> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace weft
