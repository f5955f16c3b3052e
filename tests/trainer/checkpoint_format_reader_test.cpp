// Rows across boxes against plain vectors, and files that are damaged, cut, missing or too long.
#include <gtest/gtest.h>
#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "tests/trainer/checkpoint_sample.h"
#include "trainer/checkpoint/reader.h"

namespace weft {
namespace {

constexpr std::uint8_t poison = 0xdb;

class CheckpointReading : public testing::Test {
 protected:
  void SetUp() override { manifest_ = write_sample(folder_.path(), tensors_, 3); }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path file_of(const SavedBox& box) const {
    return path() / manifest_.files[static_cast<std::size_t>(box.file)].name;
  }
  // Another value of one byte.
  static void damage(const std::filesystem::path& file, std::int64_t offset) {
    std::string text = read_file(file);
    text.at(static_cast<std::size_t>(offset)) ^= 0x10;
    write_file(file, text);
  }
  static std::string refusal(const CheckpointReader& reader, const SavedTensor& tensor, std::int64_t begin,
                             std::int64_t rows) {
    std::vector<std::uint8_t> to(static_cast<std::size_t>(rows * tensor.row_bytes()));
    try {
      reader.read_rows(tensor, begin, rows, to);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "";
  }
  std::string refusal_to_open() const {
    try {
      const CheckpointReader reader(path());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  const std::vector<SampleTensor> tensors_ = sample_tensors(11);
  Manifest manifest_;
};

TEST_F(CheckpointReading, EveryRunOfRowsOfEveryTensor) {
  const CheckpointReader reader(path());
  EXPECT_EQ(reader.manifest(), manifest_);
  EXPECT_EQ(reader.find_faults(), std::vector<std::string>{});
  EXPECT_EQ(find_checkpoint_faults(path()), std::vector<std::string>{});
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const SampleTensor& expected = tensors_[t];
    const SavedTensor& saved = *reader.manifest().find(expected.name, expected.state);
    const std::int64_t row_bytes = saved.row_bytes();
    ASSERT_EQ(saved.boxes.size(), expected.cuts.size() - 1);
    for (std::int64_t begin = 0; begin <= expected.rows(); ++begin) {
      for (std::int64_t rows = 0; begin + rows <= expected.rows(); ++rows) {
        std::vector<std::uint8_t> read(static_cast<std::size_t>(rows * row_bytes) + 2, poison);
        reader.read_rows(saved, begin, rows, std::span(read).subspan(1, read.size() - 2));
        const auto first = expected.bytes.begin() + begin * row_bytes;
        const std::vector<std::uint8_t> part(first, first + rows * row_bytes);
        EXPECT_EQ(std::vector<std::uint8_t>(read.begin() + 1, read.end() - 1), part) << saved.name << " " << begin;
        EXPECT_EQ(read.front(), poison);
        EXPECT_EQ(read.back(), poison);
      }
    }
  }
}

TEST_F(CheckpointReading, RowsThatAreNotThereAreAFaultOfTheCaller) {
  const CheckpointReader reader(path());
  const SavedTensor& tensor = reader.manifest().tensors.front();
  std::vector<std::uint8_t> to(24);
  for (const auto& [begin, rows] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 2}, {8, 2}, {0, 1}, {10, 0}, {0, -2}, {2, INT64_MAX}, {INT64_MAX, 2}}) {
    EXPECT_THROW(reader.read_rows(tensor, begin, rows, to), Error) << begin << " " << rows;
  }
}

// One box at a time is damaged: reading stumbles over it just where rows of it are asked for.
TEST_F(CheckpointReading, BoxesThatAreNotAskedForAreNotRead) {
  for (const SavedTensor& tensor : manifest_.tensors) {
    for (const SavedBox& box : tensor.boxes) {
      damage(file_of(box), box.offset + box.bytes - 1);
      const CheckpointReader reader(path());
      for (const SavedTensor& other : reader.manifest().tensors) {
        const bool same = other.name == tensor.name && other.state == tensor.state;
        for (std::int64_t begin = 0; begin <= other.rows; ++begin) {
          for (std::int64_t rows = 0; begin + rows <= other.rows; ++rows) {
            const bool touched = same && rows > 0 && begin < box.row_begin + box.rows && begin + rows > box.row_begin;
            EXPECT_EQ(refusal(reader, other, begin, rows) != "", touched) << other.name << " " << begin << " " << rows;
          }
        }
      }
      const std::string said = refusal(reader, tensor, box.row_begin, box.rows);
      EXPECT_EQ(said, fmt::format("{}: rows {} to {} of {}{}{} (bytes {} to {}) are not those that were written: their "
                                  "checksum is not {}",
                                  file_of(box).string(), box.row_begin, box.row_begin + box.rows - 1, tensor.name,
                                  tensor.state.empty() ? "" : " ", tensor.state, box.offset, box.offset + box.bytes - 1,
                                  checksum_text(box.checksum)));
      EXPECT_EQ(reader.find_faults(), std::vector<std::string>{said});
      EXPECT_EQ(find_checkpoint_faults(path()), std::vector<std::string>{said});
      damage(file_of(box), box.offset + box.bytes - 1);
    }
  }
  EXPECT_EQ(CheckpointReader(path()).find_faults(), std::vector<std::string>{});
}

TEST_F(CheckpointReading, ADamagedHeaderKeepsItsFileFromBeingRead) {
  damage(path() / "part-00001.safetensors", 30);
  const CheckpointReader reader(path());
  for (const SavedTensor& tensor : reader.manifest().tensors) {
    for (const SavedBox& box : tensor.boxes) {
      const std::string said = refusal(reader, tensor, box.row_begin, box.rows);
      EXPECT_EQ(said.find("part-00001.safetensors: its first") != std::string::npos, box.file == 1) << said;
    }
  }
  EXPECT_EQ(reader.find_faults().size(), 1u);
}

// A file that was written wrong, checksums and all: its header is no header.
TEST_F(CheckpointReading, HeadersAreHeldAgainstTheFormat) {
  std::string text = read_file(path() / "part-00002.safetensors");
  text[8] = '[';
  write_file(path() / "part-00002.safetensors", text);
  manifest_.files[2].checksum = checksum(std::string_view(text).substr(0, manifest_.files[2].prefix_bytes));
  write_file(path() / manifest_name, to_json(manifest_));
  const auto faults = find_checkpoint_faults(path());
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("part-00002.safetensors: the header does not begin with {"), std::string::npos);
}

TEST_F(CheckpointReading, EverythingWrongWithSizesIsSaidAtOnce) {
  const std::string whole = read_file(path() / "part-00000.safetensors");
  write_file(path() / "part-00000.safetensors", whole.substr(0, whole.size() - 1));
  std::filesystem::remove(path() / "part-00001.safetensors");
  const std::string longer = read_file(path() / "part-00002.safetensors") + "x";
  write_file(path() / "part-00002.safetensors", longer);
  damage(path() / checkpoint_config_name, 3);
  const std::string expected = fmt::format(
      "{0}/part-00000.safetensors has {1} bytes where {2} were written\n"
      "{0}/part-00001.safetensors: No such file or directory\n"
      "{0}/part-00002.safetensors has {3} bytes where {4} were written",
      path().string(), whole.size() - 1, whole.size(), longer.size(), longer.size() - 1);
  EXPECT_EQ(refusal_to_open(), expected);
  // The others are looked at besides.
  const auto faults = find_checkpoint_faults(path());
  ASSERT_EQ(faults.size(), 4u);
  EXPECT_EQ(fmt::format("{}\n{}\n{}", faults[0], faults[1], faults[2]), expected);
  EXPECT_NE(faults[3].find("config.toml: its first 22 bytes are not those that were written"), std::string::npos);
}

TEST_F(CheckpointReading, EmptiedFilesAndFoldersInTheirPlace) {
  write_file(path() / "part-00000.safetensors", "");
  std::filesystem::remove(path() / "part-00001.safetensors");
  std::filesystem::create_directory(path() / "part-00001.safetensors");
  const std::string said = refusal_to_open();
  EXPECT_NE(said.find("part-00000.safetensors has 0 bytes where"), std::string::npos) << said;
  EXPECT_NE(said.find("part-00001.safetensors: Is a directory"), std::string::npos) << said;
  write_file(path() / manifest_name, "");
  EXPECT_NE(refusal_to_open().find("manifest.json\": the file is empty"), std::string::npos) << refusal_to_open();
  std::filesystem::remove(path() / manifest_name);
  EXPECT_NE(refusal_to_open().find("manifest.json\": No such file"), std::string::npos) << refusal_to_open();
  EXPECT_EQ(find_checkpoint_faults(path()).size(), 1u);
}

// As a chat template beside the tokenizer of a run may be.
TEST_F(CheckpointReading, AnEmptyFileThatWasSavedEmptyIsSound) {
  manifest_.files.push_back({"chat_template.jinja", 0, 0, checksum("")});
  write_file(path() / manifest_name, to_json(manifest_));
  write_file(path() / "chat_template.jinja", "");
  EXPECT_EQ(find_checkpoint_faults(path()), std::vector<std::string>{});
  CheckpointReader(path()).require_unchanged("chat_template.jinja");
  CheckpointReader(path()).require_texts_unchanged();
  write_file(path() / "chat_template.jinja", "x");
  EXPECT_EQ(refusal_to_open(), path().string() + "/chat_template.jinja has 1 bytes where 0 were written");
}

TEST_F(CheckpointReading, ProgressOfTheCheckReachesTheEnd) {
  damage(path() / "part-00001.safetensors", 30);
  std::int64_t all = 0, last = 0;
  for (const SavedFile& file : manifest_.files) all += file.bytes;
  find_checkpoint_faults(path(), [&](std::int64_t done, std::int64_t of) {
    EXPECT_EQ(of, all);
    EXPECT_GE(done, last);
    last = done;
  });
  EXPECT_EQ(last, all);
}

}  // namespace
}  // namespace weft
