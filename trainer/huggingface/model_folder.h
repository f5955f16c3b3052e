// The files of a Hugging Face folder: its weights, their companions, and a folder in the making.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/input_file.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/huggingface/names.h"

namespace weft {

// Weights in a folder: one model.safetensors, or many files with an index.
class WeightFolder {
 public:
  // Reads index and headers. Throws Error (request) if there is neither index nor single file, or if a file is missing
  // or no safetensors file. If index and files disagree, it lists every tensor.
  explicit WeightFolder(const std::filesystem::path& folder);

  const SafetensorsTensor* find(const std::string& name) const;
  // Reads bytes of a tensor from `offset` on. Throws as InputFile::read.
  void read(const std::string& name, std::int64_t offset, std::span<std::uint8_t> to) const;
  std::vector<std::string> names() const;

  // Faults of these weights for a model with the expected tensors. A tensor may be missing, unknown, or of another
  // shape, or have a dtype that Weft does not read.
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

// The distribution of a folder's tensors to files: in order, each file up to a size, with an index from tensors to
// files (weight_folder.cpp).
struct NamedBytes {
  std::string name;
  std::int64_t bytes = 0;
};

// Indices into `tensors`, by file. A tensor larger than the largest file has a file of its own.
std::vector<std::vector<std::size_t>> deal_to_files(std::span<const NamedBytes> tensors, std::int64_t largest_file);
// "model-00001-of-00003.safetensors" for the first of three files called "model".
std::string shard_name(std::string_view stem, std::size_t file, std::size_t files);
inline constexpr const char* index_name = "model.safetensors.index.json";
// The content of the index.
std::string index_json(std::span<const NamedBytes> tensors, std::span<const std::vector<std::size_t>> files);

// As parse_bytes. Throws Error (request) for other texts.
std::int64_t parse_file_size(const std::string& text);

// The companion files of a model's weights: tokenizer, config.json and generation_config.json. They are copied
// unchanged. Only the tokenizer's ids, and those that begin and end a text, are read (tokenizer_files.cpp).
struct TokenizerFiles {
  std::vector<std::filesystem::path> files;
  std::optional<std::int64_t> largest_id;  // in tokenizer.json, if there is one
  std::optional<std::int64_t> bos_token_id, eos_token_id, pad_token_id;
};

// No files if the folder has none. Throws Error (request) for a file that cannot be read.
TokenizerFiles find_tokenizer_files(const std::filesystem::path& folder);
// tokenizer_config.json of a tokenizer that came without one, by which transformers takes the class that does what the
// file says. Otherwise it would take that of the architecture, with another rule for words.
struct TokenizerSettings {
  std::string json;
  // Where Weft knows them.
  std::optional<std::int64_t> largest_id = {}, bos_token_id = {}, eos_token_id = {}, pad_token_id = {};
  bool leaves_out_normalizer = false;  // of a tokenizer.model: fast tokenizers of that class have none
};
// `name` as open_tokenizer takes it.
TokenizerSettings settings_of(const std::string& name);
// An import keeps these files in its checkpoint under the same names, for a later export.
std::vector<std::filesystem::path> find_companions(const std::filesystem::path& folder);
inline constexpr const char* model_json_name = "config.json";
inline constexpr const char* generation_json_name = "generation_config.json";
// Throws Error (request) if an id of a tokenizer, called `name` if it is told, has no row in a model of this size.
void expect_vocabulary(std::optional<std::int64_t> largest_id, std::int64_t vocab_size, const std::string& name = "");

// A folder that appears complete or not at all: filled under a temporary name beside its place, flushed and renamed.
class NewFolder {
 public:
  // Throws Error (request) if the name or the temporary name is taken: another program may be at work there. Throws
  // Error (failure) if the folder cannot be created.
  explicit NewFolder(const std::filesystem::path& place);
  // Removes the folder unless it was published.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  // The temporary folder for files before publish().
  const std::filesystem::path& path() const { return partial_; }
  // Its files must be on disk already. Throws Error (request) if the name was taken meanwhile.
  void publish();

 private:
  std::filesystem::path place_, partial_;
  bool published_ = false;
};

}  // namespace weft
