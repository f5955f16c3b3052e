#include "trainer/data/unpacked_file.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"

namespace weft {
namespace {

constexpr std::size_t unpacked_piece = std::size_t{1} << 20, longest_line = std::size_t{1} << 30;

}  // namespace

struct UnpackedFile::Stream {
  virtual ~Stream() = default;
  // Bytes read into `to`; 0 at the end.
  virtual std::size_t read(char* to, std::size_t bytes) = 0;
  virtual std::int64_t position() const = 0;
};

// zlib reads files that are not packed as they are.
struct UnpackedFile::Gzip final : Stream {
  explicit Gzip(const std::string& file) : name(file), handle(gzopen(file.c_str(), "rb")) {
    if (handle == nullptr) fail_request("\"{}\": the file cannot be opened", name);
    gzbuffer(handle, unpacked_piece);
  }
  ~Gzip() override { gzclose(handle); }
  std::size_t read(char* to, std::size_t bytes) override {
    const int count = gzread(handle, to, static_cast<unsigned>(bytes));
    int error = Z_OK;
    const char* message = gzerror(handle, &error);
    if (count < 0 || error == Z_BUF_ERROR) {
      fail_request("\"{}\": packed by gzip, and damaged or cut short: {}", name, message);
    }
    return static_cast<std::size_t>(count);
  }
  std::int64_t position() const override { return gzoffset(handle); }

  std::string name;
  gzFile handle;
};

struct UnpackedFile::Zstd final : Stream {
  explicit Zstd(const std::string& file) : source(file), context(ZSTD_createDStream()), packed(ZSTD_DStreamInSize()) {}
  ~Zstd() override { ZSTD_freeDStream(context); }
  std::size_t read(char* to, std::size_t bytes) override {
    ZSTD_outBuffer out{to, bytes, 0};
    while (out.pos == 0) {
      if (in.pos == in.size && offset < source.size()) {
        const auto count = std::min<std::int64_t>(std::ssize(packed), source.size() - offset);
        source.read(offset, {packed.data(), static_cast<std::size_t>(count)});
        offset += count;
        in = {packed.data(), static_cast<std::size_t>(count), 0};
      }
      const bool at_end = in.pos == in.size && offset == source.size();
      if (at_end && wanted == 0) return 0;
      const std::size_t before = in.pos;
      wanted = ZSTD_decompressStream(context, &out, &in);
      if (ZSTD_isError(wanted)) {
        fail_request("\"{}\": packed by zstd, and damaged: {}", source.name(), ZSTD_getErrorName(wanted));
      }
      if (at_end && out.pos == 0 && in.pos == before) {
        fail_request("\"{}\": packed by zstd, and cut short", source.name());
      }
    }
    return out.pos;
  }
  std::int64_t position() const override { return offset; }

  InputFile source;
  ZSTD_DStream* context;
  std::vector<std::uint8_t> packed;
  ZSTD_inBuffer in{nullptr, 0, 0};
  std::int64_t offset = 0;
  std::size_t wanted = 0;  // 0: a frame has ended
};

UnpackedFile::UnpackedFile(const std::string& name) : name_(name) {
  const InputFile file(name);
  constexpr std::array<std::uint8_t, 4> magic = {0x28, 0xb5, 0x2f, 0xfd};
  std::array<std::uint8_t, 4> head{};
  if (file.size() >= std::ssize(head)) file.read(0, head);
  if (head == magic) {
    stream_ = std::make_unique<Zstd>(name);
  } else {
    stream_ = std::make_unique<Gzip>(name);
  }
}

UnpackedFile::~UnpackedFile() = default;

std::int64_t UnpackedFile::position() const {
  return stream_->position();
}

bool UnpackedFile::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t had = buffer_.size();
  if (had > longest_line) fail_request("\"{}\": line {} has more than 1 GiB", name_, lines_ + 1);
  buffer_.resize(had + unpacked_piece);
  buffer_.resize(had + stream_->read(buffer_.data() + had, unpacked_piece));
  return buffer_.size() > had;
}

bool UnpackedFile::next_line(std::string& line) {
  std::size_t looked = begin_, end = 0;
  while ((end = buffer_.find('\n', looked)) == std::string::npos) {
    looked = buffer_.size() - begin_;  // fill() moves the rest to the front
    if (fill()) continue;
    if (begin_ == buffer_.size()) return false;
    end = buffer_.size();
    break;
  }
  line.assign(buffer_, begin_, end - begin_);
  begin_ = std::min(end + 1, buffer_.size());
  if (line.ends_with('\r')) line.pop_back();
  ++lines_;
  return true;
}

std::string UnpackedFile::rest() {
  while (fill()) {
  }
  begin_ = 0;
  return std::move(buffer_);
}

}  // namespace weft
