// Lines of plain and packed files: every frame is read, and damage never counts as the end.
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/data/unpacked_file.h"

namespace weft {
namespace {

std::string gzip(std::string_view text) {
  z_stream stream{};
  constexpr int gzip_format = 16, memory = 8;
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + gzip_format, memory, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(std::string_view text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

// As `zstd --long=LOG` does of a text whose size it does not know.
std::string zstd_of_long_window(std::string_view text, int log) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, log);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_outBuffer out{packed.data(), packed.size(), 0};
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush);
  EXPECT_EQ(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  packed.resize(out.pos);
  return packed;
}

class UnpackedFileTest : public testing::Test {
 protected:
  std::vector<std::string> lines_of(const std::string& bytes) {
    write_file(folder_ / "file", bytes);
    const std::vector<std::string> lines = lines_of(bytes, std::size_t{1} << 20);
    for (const std::size_t most : {1, 3, 6}) EXPECT_EQ(lines_of(bytes, most), lines) << most;
    rest_ = UnpackedFile((folder_ / "file").string()).rest();
    return lines;
  }
  std::vector<std::string> lines_of(const std::string& bytes, std::size_t most) {
    UnpackedFile file((folder_ / "file").string());
    std::vector<std::string> lines;
    std::string read;
    for (std::vector<std::string_view> next; file.next_lines(most, read, next);) {
      EXPECT_TRUE(read.ends_with(std::string(UnpackedFile::padding, '\0')));
      EXPECT_TRUE(next.size() == 1 || read.size() <= most + UnpackedFile::padding) << next.size();
      lines.insert(lines.end(), next.begin(), next.end());
      EXPECT_EQ(file.lines(), std::ssize(lines));
    }
    EXPECT_EQ(file.position(), std::ssize(bytes));
    return lines;
  }
  std::string refusal(const std::string& bytes) {
    return refusal_of([&] { lines_of(bytes); }).value_or("");
  }

  TemporaryFolder folder_;
  std::string rest_;
};

TEST_F(UnpackedFileTest, ALongWindowIsNoDamage) {
  EXPECT_EQ(lines_of(zstd_of_long_window("one\ntwo\n", 28)), (std::vector<std::string>{"one", "two"}));
  std::string larger = zstd_of_long_window("one\ntwo\n", 28);
  larger[5] = static_cast<char>((31 - 10) << 3);  // the byte of the window: 2^(10 + exponent)
  const auto refusal = refusal_of([&] { lines_of(larger); });
  EXPECT_NE(refusal.value_or("").find("a window of more than 1 GiB"), std::string::npos)
      << refusal.value_or("accepted");
}

TEST_F(UnpackedFileTest, HasTheLinesOfAllMembersAndFrames) {
  const std::vector<std::string> lines = {"One", "", "Two", "Three"};
  EXPECT_EQ(lines_of("One\r\n\nTwo\nThree"), lines);
  for (const auto pack : {gzip, zstd}) {
    EXPECT_EQ(lines_of(pack("One\n\nTwo\nThree\n")), lines);
    EXPECT_EQ(lines_of(pack("One\n\nT") + pack("") + pack("wo\nThree")), lines);
    EXPECT_EQ(rest_, "One\n\nTwo\nThree");
    EXPECT_EQ(lines_of(pack("")), std::vector<std::string>());
  }
  // Padding of tapes, and the frame of sizes with which pzstd begins.
  EXPECT_EQ(lines_of(gzip("One\n") + std::string(512, '\0')), std::vector<std::string>{"One"});
  EXPECT_EQ(lines_of(std::string("\x50\x2a\x4d\x18\x04\x00\x00\x00size", 12) + zstd("One\n")),
            std::vector<std::string>{"One"});
  EXPECT_EQ(lines_of("\x1f"), std::vector<std::string>{"\x1f"});
}

TEST_F(UnpackedFileTest, RefusesWhatIsCutShort) {
  for (const auto pack : {gzip, zstd}) {
    const std::string first = pack("One\n"), all = first + pack("Two\n");
    for (std::size_t size = 4; size < all.size(); ++size) {
      const std::string message = refusal(all.substr(0, size));
      if (size == first.size()) {
        EXPECT_EQ(message, "");
      } else {
        EXPECT_NE(message.find("cut short"), std::string::npos) << size << message;
      }
    }
  }
}

// zlib's gzread() ends at bytes that do not begin as a member.
TEST_F(UnpackedFileTest, RefusesDamageBehindTheFirstMember) {
  for (const auto pack : {gzip, zstd}) {
    const std::string first = pack("One\n");
    std::string second = pack("Two\n");
    second[0] ^= 1;
    EXPECT_NE(refusal(first + second).find("damaged"), std::string::npos);
    EXPECT_NE(refusal(first + "garbage").find("damaged"), std::string::npos);
  }
}

}  // namespace
}  // namespace weft
