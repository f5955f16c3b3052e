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
  // Reads index and headers. Throws Error (request) where there is neither index nor single file, where a file is
  // missing or no safetensors, and listing every tensor that index and files do not agree on.
  explicit WeightFolder(const std::filesystem::path& folder);

  const SafetensorsTensor* find(const std::string& name) const;
  // Bytes of a tensor from `offset` on. Throws as InputFile::read.
  void read(const std::string& name, std::int64_t offset, std::span<std::uint8_t> to) const;
  std::vector<std::string> names() const;

  // What keeps these from being the weights of such a model: every tensor that is missing, that nobody knows, or that
  // has another shape or a dtype that Weft does not read.
  std::vector<std::string> find_faults(const std::vector<FolderTensor>& expected) const;

 private:
  struct Entry {
    SafetensorsTensor tensor;
    std::size_t place = 0;    // of its file among files_
    std::int64_t offset = 0;  // in it
    std::string file;
  };
  void read_file(const std::filesystem::path& path);

  std::vector<InputFile> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace weft
