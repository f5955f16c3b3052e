#include "trainer/huggingface/weight_files.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "trainer/checkpoint/output_file.h"
#include "trainer/checkpoint/tensor_file.h"
#include "trainer/huggingface/model_folder.h"

namespace weft {

std::size_t write_weights(const std::filesystem::path& folder, std::span<const NewWeight> weights,
                          std::int64_t largest_file, Manifest& manifest) {
  const FileCalls calls = FileCalls::of_system();
  std::vector<NamedBytes> sizes;
  std::map<std::string_view, const NewWeight*> by_name;
  for (const NewWeight& weight : weights) {
    sizes.push_back({weight.name, weight.bytes()});
    by_name[weight.name] = &weight;
  }
  const auto files = deal_to_files(sizes, largest_file);
  for (std::size_t file = 0; file < files.size(); ++file) {
    std::vector<SafetensorsTensor> tensors;
    for (const std::size_t w : files[file]) {
      const NewWeight& weight = weights[w];
      std::vector<std::int64_t> shape = {weight.rows};
      if (weight.columns > 1) shape.push_back(weight.columns);
      tensors.push_back({weight.name, std::string(safetensors_dtype(weight.dtype)), std::move(shape)});
    }
    TensorFile out(folder / shard_name("weights", file, files.size()), arrange_safetensors(std::move(tensors)), calls);
    for (const SafetensorsTensor& entry : out.header().tensors) {
      by_name.at(entry.name)->put([&](std::span<const std::uint8_t> bytes) { out.write(bytes); });
    }
    out.finish();
    for (std::size_t t = 0; t < out.header().tensors.size(); ++t) {
      const NewWeight& weight = *by_name.at(out.header().tensors[t].name);
      const auto place = static_cast<int>(manifest.files.size());
      manifest.tensors.push_back(
          {weight.name, "", weight.rows, weight.columns, weight.dtype, {out.box(t, 0, weight.rows, place)}});
    }
    manifest.files.push_back(out.saved());
  }
  std::ranges::sort(manifest.tensors, {}, &SavedTensor::name);
  return files.size();
}

void write_text_file(const std::filesystem::path& path, const std::string& text, Manifest& manifest) {
  write_new_file(path, text);
  manifest.files.push_back({path.filename().string(), std::ssize(text), std::ssize(text), checksum(text)});
}

}  // namespace weft
