// Files are whole on disk or an error: systems that write little, are interrupted, are full, or cannot flush.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/tensor_file.h"

namespace weft {
namespace {

template <typename Call>
std::string said(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure) << error.what();
    return error.what();
  }
  return "";
}

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

class OutputFiles : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "file";
  FileCalls calls_ = FileCalls::of_system();
};

TEST_F(OutputFiles, WrittenInPiecesAndFlushedOnce) {
  int flushed = 0;
  const auto flush = calls_.flush;
  calls_.flush = [&](int descriptor) {
    ++flushed;
    return flush(descriptor);
  };
  OutputFile file(path_, calls_);
  file.write("ab");
  file.write("");
  file.write(bytes_of("cde"));
  EXPECT_EQ(file.bytes(), 5);
  EXPECT_EQ(flushed, 0);
  file.finish();
  EXPECT_EQ(flushed, 1);
  EXPECT_EQ(read_file(path_), "abcde");
  EXPECT_NE(said([&] { file.write("more"); }), "");
  EXPECT_EQ(read_file(path_), "abcde");
}

TEST_F(OutputFiles, SystemsThatTakeLittleOrAreInterrupted) {
  std::mt19937 engine(5);
  int calls = 0;
  const auto write = calls_.write;
  calls_.write = [&](int descriptor, const void* data, std::size_t bytes) -> ssize_t {
    if (++calls % 3 == 0) {
      errno = EINTR;
      return -1;
    }
    return write(descriptor, data, std::min<std::size_t>(bytes, 1 + engine() % 7));
  };
  int interruptions = 2;
  calls_.flush = [&](int) {
    errno = EINTR;
    return interruptions-- > 0 ? -1 : 0;
  };
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(engine());
  OutputFile file(path_, calls_);
  file.write(text);
  file.finish();
  EXPECT_EQ(file.bytes(), 1000);
  EXPECT_EQ(read_file(path_), text);
  EXPECT_GT(calls, 1000 / 7);
  EXPECT_EQ(interruptions, -1);
}

TEST_F(OutputFiles, FullDisks) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "there is no /dev/full";
  calls_.write = [&](int, const void* data, std::size_t bytes) { return ::write(full, data, bytes); };
  OutputFile file(path_, calls_);
  EXPECT_EQ(said([&] { file.write("x"); }),
            fmt::format("{} cannot be written: {}", path_.string(), std::strerror(ENOSPC)));
  EXPECT_EQ(file.bytes(), 0);
  close(full);
}

TEST_F(OutputFiles, DisksThatBecomeFullOrTakeNothing) {
  const auto write = calls_.write;
  std::size_t room = 10;
  calls_.write = [&](int descriptor, const void* data, std::size_t bytes) -> ssize_t {
    if (room == 0) {
      errno = ENOSPC;
      return -1;
    }
    const std::size_t taken = std::min(bytes, room);
    room -= taken;
    return write(descriptor, data, taken);
  };
  OutputFile file(path_, calls_);
  file.write("1234567");
  EXPECT_NE(said([&] { file.write("89abc"); }).find(std::strerror(ENOSPC)), std::string::npos);
  EXPECT_EQ(file.bytes(), 10);
  calls_.write = [](int, const void*, std::size_t) -> ssize_t { return 0; };
  EXPECT_NE(said([&] { file.write("x"); }).find("takes no more bytes"), std::string::npos);
}

TEST_F(OutputFiles, WhatCannotBeFlushedIsNotFinished) {
  calls_.flush = [](int) {
    errno = EIO;
    return -1;
  };
  OutputFile file(path_, calls_);
  file.write("x");
  EXPECT_EQ(said([&] { file.finish(); }),
            fmt::format("{} cannot be flushed to disk: {}", path_.string(), std::strerror(EIO)));
}

TEST_F(OutputFiles, NothingIsWrittenOver) {
  write_file(path_, "mine");
  EXPECT_EQ(said([&] { OutputFile(path_, calls_); }),
            fmt::format("{} cannot be created: {}", path_.string(), std::strerror(EEXIST)));
  EXPECT_EQ(read_file(path_), "mine");
  EXPECT_NE(said([&] { OutputFile(folder_.path() / "no" / "file", calls_); }), "");
}

TEST_F(OutputFiles, DescriptorsAreClosedWhateverHappens) {
  const auto next = [] {
    const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(descriptor);
    return descriptor;
  };
  const int before = next();
  { OutputFile file(folder_.path() / "a", calls_); }
  OutputFile finished(folder_.path() / "b", calls_);
  finished.finish();
  flush_folder(folder_.path());
  replace_file(folder_.path() / "c", "x", calls_);
  EXPECT_EQ(next(), before);
}

TEST_F(OutputFiles, ReplacingIsAllOrNothing) {
  replace_file(path_, "first", calls_);
  EXPECT_EQ(read_file(path_), "first");
  write_file(path_.string() + ".partial", "left by a run that was ended");
  replace_file(path_, "second", calls_);
  EXPECT_EQ(read_file(path_), "second");
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
  FileCalls broken = calls_;
  broken.flush = [](int) {
    errno = EIO;
    return -1;
  };
  EXPECT_NE(said([&] { replace_file(path_, "third", broken); }).find("flushed"), std::string::npos);
  EXPECT_EQ(read_file(path_), "second");
  std::filesystem::create_directories(folder_.path() / "folder" / "x");
  EXPECT_NE(said([&] { replace_file(folder_.path() / "folder", "x", calls_); }).find("cannot be put in place"),
            std::string::npos);
  EXPECT_NE(said([&] { flush_folder(folder_.path() / "nowhere"); }).find("cannot be opened"), std::string::npos);
  EXPECT_NE(said([&] { flush_folder(path_); }).find("cannot be opened"), std::string::npos);
}

// --- tensors --------------------------------------------------------------------------------------------------------

SafetensorsHeader header() {
  return arrange_safetensors({{"a", "F32", {0, 3}, 0, 0},
                              {"b", "F32", {2, 2}, 0, 0},
                              {"c", "F32", {0}, 0, 0},
                              {"d", "BF16", {3}, 0, 0},
                              {"e", "U8", {0, 0}, 0, 0}});
}
const std::string data = "0123456789abcdefABCDEF";  // 16 bytes of b, 6 of d

TEST_F(OutputFiles, TensorsInPiecesOfAnySize) {
  for (std::size_t piece = 1; piece <= data.size() + 1; ++piece) {
    const auto path = folder_.path() / fmt::format("{}.safetensors", piece);
    TensorFile file(path, header(), calls_);
    for (std::size_t at = 0; at < data.size(); at += piece)
      file.write(bytes_of(data).subspan(at).first(std::min(piece, data.size() - at)));
    file.finish();
    const std::string text = read_file(path), prefix = safetensors_prefix(header());
    EXPECT_EQ(text, prefix + data);
    EXPECT_EQ(parse_safetensors(bytes_of(text), std::ssize(text), "FILE"), file.header());
    const auto begin = std::ssize(prefix);
    EXPECT_EQ(file.saved(), (SavedFile{path.filename(), begin + 22, begin, checksum(prefix)}));
    EXPECT_EQ(file.box(1, 40, 2, 7), (SavedBox{40, 2, 7, begin, 16, checksum("0123456789abcdef")}));
    EXPECT_EQ(file.box(3, 0, 3, 0), (SavedBox{0, 3, 0, begin + 16, 6, checksum("ABCDEF")}));
    for (const std::size_t empty : {0, 2, 4}) {
      EXPECT_EQ(file.box(empty, 5, 0, 1).bytes, 0);
      EXPECT_EQ(file.box(empty, 5, 0, 1).checksum, checksum(std::string_view()));
    }
  }
}

TEST_F(OutputFiles, TooManyAndTooFewBytesOfTensors) {
  TensorFile many(folder_.path() / "many", header(), calls_);
  many.write(bytes_of(data));
  many.write({});
  EXPECT_NE(said([&] { many.write(bytes_of("x")); }).find("more bytes than its header has tensors for"),
            std::string::npos);
  TensorFile at_once(folder_.path() / "at_once", header(), calls_);
  EXPECT_NE(said([&] { at_once.write(bytes_of(data + "x")); }), "");
  TensorFile few(folder_.path() / "few", header(), calls_);
  few.write(bytes_of(data.substr(0, 20)));
  EXPECT_NE(said([&] { few.finish(); }).find("2 bytes of d are missing"), std::string::npos);
  TensorFile none(folder_.path() / "none", header(), calls_);
  EXPECT_NE(said([&] { none.finish(); }).find("16 bytes of b are missing"), std::string::npos);
}

TEST_F(OutputFiles, FilesWithoutTensorsAndTensorsWithoutBytes) {
  TensorFile bare(folder_.path() / "bare", arrange_safetensors({}), calls_);
  bare.finish();
  EXPECT_EQ(bare.saved().bytes, bare.saved().prefix_bytes);
  EXPECT_EQ(read_file(folder_.path() / "bare"), safetensors_prefix(arrange_safetensors({})));
  TensorFile empty(folder_.path() / "empty", arrange_safetensors({{"a", "F32", {0}, 0, 0}}), calls_);
  EXPECT_NE(said([&] { empty.write(bytes_of("x")); }).find("more bytes"), std::string::npos);
  empty.finish();
  EXPECT_EQ(empty.box(0, 0, 0, 0).bytes, 0);
}

}  // namespace
}  // namespace weft
