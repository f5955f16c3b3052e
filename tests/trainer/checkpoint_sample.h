// A small checkpoint with everything that a manifest can say. It has states of an optimizer, a file without tensors,
// and tensors of every dtype. These are cut into boxes of uneven sizes, spread over files. Bytes are random, from a
// seed.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/tensor_file.h"

namespace weft {

struct SampleTensor {
  std::string name, state;
  std::int64_t columns = 1;
  DType dtype = DType::float32;
  std::vector<std::int64_t> cuts;   // where boxes begin, and the number of rows
  std::vector<std::uint8_t> bytes;  // of all rows
  std::int64_t rows() const { return cuts.back(); }
};

inline std::vector<SampleTensor> sample_tensors(unsigned seed) {
  std::vector<SampleTensor> tensors = {
      {"blocks.0.attention.q_proj.weight", "", 3, DType::float32, {0, 1, 4, 9}, {}},
      {"blocks.0.attention.q_proj.weight", "exp_avg", 3, DType::float32, {0, 7, 9}, {}},
      {"blocks.0.attention.q_proj.weight", "exp_avg_sq", 3, DType::bfloat16, {0, 9}, {}},
      {"blocks.1.experts.5.gate_proj.weight", "", 2, DType::float16, {0, 2, 3, 5}, {}},
      {"embedding.weight", "", 5, DType::bfloat16, {0, 3, 4}, {}},
      {"head.weight", "", 1, DType::float64, {0, 1, 2, 3}, {}},
      {"router.loads", "", 1, DType::int32, {0, 4}, {}},
  };
  std::mt19937 engine(seed);
  for (SampleTensor& tensor : tensors) {
    tensor.bytes.resize(static_cast<std::size_t>(tensor.rows() * tensor.columns * size_of(tensor.dtype)));
    for (std::uint8_t& byte : tensor.bytes) byte = static_cast<std::uint8_t>(engine());
  }
  return tensors;
}

// Boxes are dealt to `file_count` files in turn, beginning with file `first`.
inline Manifest write_sample(const std::filesystem::path& folder, const std::vector<SampleTensor>& tensors,
                             int file_count, int first = 0) {
  struct Piece {
    std::size_t tensor;
    std::int64_t begin, end;
  };
  std::vector<std::vector<Piece>> files(static_cast<std::size_t>(file_count));
  auto dealt = static_cast<std::size_t>(first);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::size_t c = 0; c + 1 < tensors[t].cuts.size(); ++c) {
      files[dealt++ % files.size()].push_back({t, tensors[t].cuts[c], tensors[t].cuts[c + 1]});
    }
  }
  Manifest manifest;
  manifest.progress = {.step = 40,
                       .samples = 640,
                       .tokens = 81'920,
                       .good_steps = 39,
                       .good_in_a_row = 3,
                       .loss_scale = 1024.5,
                       .loss_trend = LossTrend{38, 2.5, 0.125},
                       .norm_trend = NormTrend{37, 1.5}};
  manifest.mesh = {.pipeline = 2, .data_shard = file_count};
  manifest.model = {{"model.hidden_size", "3"}, {"model.layers", "\"d \\\"e*3\\\" é\""}};
  manifest.data = {{"data.seed", "1234"}};
  for (const SampleTensor& tensor : tensors) {
    manifest.tensors.push_back({tensor.name, tensor.state, tensor.rows(), tensor.columns, tensor.dtype, {}});
  }
  const FileCalls calls = FileCalls::of_system();
  for (std::size_t f = 0; f < files.size(); ++f) {
    std::vector<SafetensorsTensor> headers;
    const auto name_of_piece = [&](const Piece& piece) {
      return fmt::format("{} {} {}", tensors[piece.tensor].name, tensors[piece.tensor].state, piece.begin);
    };
    for (const Piece& piece : files[f]) {
      const SampleTensor& tensor = tensors[piece.tensor];
      headers.push_back({name_of_piece(piece),
                         std::string(safetensors_dtype(tensor.dtype)),
                         {piece.end - piece.begin, tensor.columns},
                         0,
                         0});
    }
    const std::string name = fmt::format("part-{:05}.safetensors", f);
    TensorFile file(folder / name, arrange_safetensors(headers), calls);
    const auto piece_of = [&](const SafetensorsTensor& written) {
      return *std::ranges::find_if(files[f], [&](const Piece& piece) { return name_of_piece(piece) == written.name; });
    };
    for (const SafetensorsTensor& written : file.header().tensors) {
      const Piece piece = piece_of(written);
      const SampleTensor& tensor = tensors[piece.tensor];
      const auto row_bytes = static_cast<std::size_t>(tensor.columns * size_of(tensor.dtype));
      file.write(std::span(tensor.bytes)
                     .subspan(static_cast<std::size_t>(piece.begin) * row_bytes,
                              static_cast<std::size_t>(piece.end - piece.begin) * row_bytes));
    }
    file.finish();
    manifest.files.push_back(file.saved());
    for (std::size_t i = 0; i < file.header().tensors.size(); ++i) {
      const Piece piece = piece_of(file.header().tensors[i]);
      manifest.tensors[piece.tensor].boxes.push_back(
          file.box(i, piece.begin, piece.end - piece.begin, static_cast<int>(f)));
    }
  }
  for (SavedTensor& tensor : manifest.tensors) std::ranges::sort(tensor.boxes, {}, &SavedBox::row_begin);
  const std::string config = "[run]\nname = \"sample\"\n";
  write_file(folder / checkpoint_config_name, config);
  const auto bytes = static_cast<std::int64_t>(config.size());
  manifest.files.push_back({checkpoint_config_name, bytes, bytes, checksum(config)});
  write_file(folder / manifest_name, to_json(manifest));
  return manifest;
}

// A manifest's text with the checksum that it should have.
inline std::string signed_again(const std::string& text) {
  const std::string key = ",\n\"checksum\": \"";
  const std::size_t at = text.rfind(key);
  if (at == std::string::npos) return text;
  const std::string before = text.substr(0, at);
  return fmt::format("{}{}{:016x}\"\n}}\n", before, key, checksum(before));
}

}  // namespace weft
