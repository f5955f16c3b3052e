#include "trainer/huggingface/weight_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "parallel/runtime/element_type.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/checkpoint/tensor_file.h"
#include "trainer/huggingface/model_folder.h"

namespace weft {
namespace {

constexpr std::int64_t strip_bytes = std::int64_t{1} << 20;

// Writes columns [begin, begin + count) of the matrix as rows. Bytes within an element keep their order.
void gather_columns(const MatrixBytes& matrix, std::int64_t begin, std::int64_t count, std::uint8_t* to) {
  const auto element = static_cast<std::size_t>(size_of(matrix.dtype));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::uint8_t* from = matrix.bytes.data() + static_cast<std::size_t>(row * matrix.columns + begin) * element;
    for (std::int64_t column = 0; column < count; ++column) {
      std::memcpy(to + static_cast<std::size_t>(column * matrix.rows + row) * element,
                  from + static_cast<std::size_t>(column) * element, element);
    }
  }
}

template <typename From, typename To>
void convert(std::span<const std::uint8_t> from, std::vector<std::uint8_t>& to, const std::string& name) {
  const std::size_t count = from.size() / sizeof(From);
  to.resize(count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof(From), sizeof(From));
    const To rounded(static_cast<float>(value));
    if (std::isfinite(static_cast<float>(value)) && !std::isfinite(static_cast<float>(rounded))) {
      fail_request("{} has the value {}, which {} cannot hold; choose another dtype", name, static_cast<float>(value),
                   name_of(dtype_of<To>));
    }
    std::memcpy(to.data() + i * sizeof(To), &rounded, sizeof(To));
  }
}

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

}  // namespace

void stream_matrix(const MatrixBytes& matrix, bool turned, DType to, const std::string& name, const ByteSink& sink) {
  const std::int64_t rows = turned ? matrix.columns : matrix.rows, columns = turned ? matrix.rows : matrix.columns;
  const std::int64_t row_bytes = columns * size_of(matrix.dtype);
  require(std::ssize(matrix.bytes) == rows * row_bytes, "a matrix has as many bytes as elements");
  const std::int64_t strip = std::clamp<std::int64_t>(strip_bytes / std::max<std::int64_t>(row_bytes, 1), 1, 256);
  std::vector<std::uint8_t> gathered, converted;
  for (std::int64_t row = 0; row < rows; row += strip) {
    const std::int64_t count = std::min(strip, rows - row);
    auto bytes = matrix.bytes;
    if (turned) {
      gathered.resize(static_cast<std::size_t>(count * row_bytes));
      gather_columns(matrix, row, count, gathered.data());
      bytes = gathered;
    } else {
      bytes = bytes.subspan(static_cast<std::size_t>(row * row_bytes), static_cast<std::size_t>(count * row_bytes));
    }
    if (to == matrix.dtype) {
      sink(bytes);
      continue;
    }
    with_element_type(matrix.dtype, [&](auto from_element) {
      with_element_type(
          to, [&](auto to_element) { convert<decltype(from_element), decltype(to_element)>(bytes, converted, name); });
    });
    sink(converted);
  }
}

std::size_t write_weights_checkpoint(const std::filesystem::path& to, std::span<const NewWeight> weights,
                                     std::span<const std::pair<std::string, std::string>> texts,
                                     const std::map<std::string, std::string>& model_keys, std::int64_t largest_file) {
  NewFolder folder(to);
  Manifest manifest;
  manifest.model = model_keys;
  const std::size_t files = write_weights(folder.path(), weights, largest_file, manifest);
  for (const auto& [name, text] : texts) {
    write_new_file(folder.path() / name, text);
    manifest.files.push_back({name, std::ssize(text), std::ssize(text), checksum(text)});
  }
  write_new_file(folder.path() / manifest_name, to_json(manifest));
  folder.publish();
  return files;
}

}  // namespace weft
