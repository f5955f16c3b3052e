#include "trainer/data/unpacked_file.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"

namespace weft {
namespace {

constexpr std::size_t unpacked_piece = std::size_t{1} << 16, longest_unpacked_line = std::size_t{1} << 30;

// The bytes of the file, piece by piece.
class PackedBytes {
 public:
  explicit PackedBytes(InputFile file)
      : file_(std::move(file)),
        piece_(static_cast<std::size_t>(std::min<std::int64_t>(file_.size(), std::int64_t{1} << 16))) {}

  bool at_end() const { return offset_ == file_.size(); }
  // Bytes read into `to`; 0 at the end.
  std::size_t read(std::span<std::uint8_t> to) {
    const std::int64_t count = std::min(std::ssize(to), file_.size() - offset_);
    file_.read(offset_, to.first(static_cast<std::size_t>(count)));
    offset_ += count;
    return static_cast<std::size_t>(count);
  }
  // Valid until the next call.
  std::span<std::uint8_t> next() { return std::span(piece_).first(read(piece_)); }
  const std::string& name() const { return file_.name(); }
  std::int64_t offset() const { return offset_; }

 private:
  InputFile file_;
  std::vector<std::uint8_t> piece_;
  std::int64_t offset_ = 0;
};

}  // namespace

struct UnpackedFile::Stream {
  explicit Stream(InputFile file) : source(std::move(file)) {}
  virtual ~Stream() = default;
  // Bytes read into `to`; 0 at the end.
  virtual std::size_t read(char* to, std::size_t bytes) = 0;

  PackedBytes source;
};

struct UnpackedFile::Plain final : Stream {
  using Stream::Stream;
  std::size_t read(char* to, std::size_t bytes) override {
    return source.read({reinterpret_cast<std::uint8_t*>(to), bytes});
  }
};

// gzread() of zlib would take a damaged member behind the first one for the end of the file.
struct UnpackedFile::Gzip final : Stream {
  explicit Gzip(InputFile file) : Stream(std::move(file)) {
    constexpr int gzip_format = 16;
    require(inflateInit2(&stream, MAX_WBITS + gzip_format) == Z_OK, "zlib has memory for a stream");
  }
  ~Gzip() override { inflateEnd(&stream); }
  std::size_t read(char* to, std::size_t bytes) override {
    stream.next_out = reinterpret_cast<Bytef*>(to);
    stream.avail_out = static_cast<uInt>(bytes);
    while (stream.avail_out == bytes) {
      if (stream.avail_in == 0) {
        if (source.at_end() && !in_member) return 0;
        if (source.at_end()) fail_request("\"{}\": packed by gzip, and cut short", source.name());
        const std::span<std::uint8_t> packed = source.next();
        stream.next_in = packed.data();
        stream.avail_in = static_cast<uInt>(packed.size());
      }
      if (!in_member && *stream.next_in == 0) {  // tapes and blocks are filled up with zeros, which gzip skips too
        ++stream.next_in;
        --stream.avail_in;
        continue;
      }
      if (!std::exchange(in_member, true)) inflateReset(&stream);
      const int status = inflate(&stream, Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END) {
        fail_request("\"{}\": packed by gzip, and damaged before byte {}: {}", source.name(),
                     source.offset() - stream.avail_in, stream.msg == nullptr ? zError(status) : stream.msg);
      }
      in_member = status != Z_STREAM_END;
    }
    return bytes - stream.avail_out;
  }

  z_stream stream{};
  bool in_member = true;  // a file has one or more members, each packed by itself
};

struct UnpackedFile::Zstd final : Stream {
  explicit Zstd(InputFile file) : Stream(std::move(file)), context(ZSTD_createDStream()) {
    // The windows of `zstd --long=30`, 1 GiB of memory.
    ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, 30);
  }
  ~Zstd() override { ZSTD_freeDStream(context); }
  std::size_t read(char* to, std::size_t bytes) override {
    ZSTD_outBuffer out{to, bytes, 0};
    while (out.pos == 0) {
      if (in.pos == in.size && !source.at_end()) {
        const std::span<std::uint8_t> packed = source.next();
        in = {packed.data(), packed.size(), 0};
      }
      const bool at_end = in.pos == in.size;
      if (at_end && wanted == 0) return 0;
      wanted = ZSTD_decompressStream(context, &out, &in);
      if (ZSTD_getErrorCode(wanted) == ZSTD_error_frameParameter_windowTooLarge) {
        fail_request("\"{}\": packed by zstd with a window of more than 1 GiB; pack it again with --long=30 or less",
                     source.name());
      }
      if (ZSTD_isError(wanted)) {
        fail_request("\"{}\": packed by zstd, and damaged: {}", source.name(), ZSTD_getErrorName(wanted));
      }
      if (at_end && out.pos == 0) fail_request("\"{}\": packed by zstd, and cut short", source.name());
    }
    return out.pos;
  }

  ZSTD_DStream* context;
  ZSTD_inBuffer in{nullptr, 0, 0};
  std::size_t wanted = 0;  // 0: a frame has ended
};

UnpackedFile::UnpackedFile(const std::string& name) : name_(name) {
  InputFile file(name);
  std::array<std::uint8_t, 4> head{};
  file.read(0, std::span(head).first(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), std::ssize(head)))));
  const bool zstd = head == std::array<std::uint8_t, 4>{0x28, 0xb5, 0x2f, 0xfd};
  // pzstd begins with a frame that is no data (RFC 8878, 3.1.2).
  const bool skippable = head[0] >> 4 == 0x5 && head[1] == 0x2a && head[2] == 0x4d && head[3] == 0x18;
  if (head[0] == 0x1f && head[1] == 0x8b) {
    stream_ = std::make_unique<Gzip>(std::move(file));
  } else if (zstd || skippable) {
    stream_ = std::make_unique<Zstd>(std::move(file));
  } else {
    stream_ = std::make_unique<Plain>(std::move(file));
  }
}

UnpackedFile::~UnpackedFile() = default;

std::int64_t UnpackedFile::position() const {
  return stream_->source.offset();
}

// Bytes that were read; fewer than asked for only at the end of the file.
std::size_t UnpackedFile::fill(std::size_t bytes) {
  const std::size_t had = buffer_.size();
  // At this size the buffer would grow to twice as much, and be there twice meanwhile.
  if (had >= longest_unpacked_line) fail_request("\"{}\": line {} has 1 GiB or more", name_, lines_ + 1);
  buffer_.resize(had + bytes + padding);  // room for what next_lines() appends
  std::size_t done = 0;
  for (std::size_t count = 1; count > 0 && done < bytes; done += count) {
    count = stream_->read(buffer_.data() + had + done, bytes - done);
  }
  buffer_.resize(had + done);
  return done;
}

std::string_view UnpackedFile::beginning(std::size_t most) {
  require(lines_ == 0, "the beginning of a file is read first");
  if (buffer_.size() < most) fill(most - buffer_.size());
  return std::string_view(buffer_).substr(0, most);
}

// Where the next lines end in the buffer, into which they are read.
std::size_t UnpackedFile::end_of_lines(std::size_t most) {
  if (buffer_.size() < most) fill(most - buffer_.size());
  if (buffer_.size() < most) return buffer_.size();
  const std::size_t last = std::string_view(buffer_).substr(0, most).rfind('\n');
  if (last != std::string::npos) return last + 1;
  for (std::size_t looked = most;;) {
    const std::size_t end = buffer_.find('\n', looked);
    if (end != std::string::npos) return end + 1;
    looked = buffer_.size();
    if (fill(unpacked_piece) == 0) return buffer_.size();
  }
}

bool UnpackedFile::next_lines(std::size_t most, std::string& bytes, std::vector<std::string_view>& lines) {
  const std::size_t end = end_of_lines(most);
  lines.clear();
  bytes = std::exchange(buffer_, {});
  buffer_.assign(bytes, end, std::string::npos);
  bytes.resize(end);
  bytes.append(padding, '\0');
  for (std::string_view left = std::string_view(bytes).substr(0, end); !left.empty();) {
    const std::size_t size = std::min(left.find('\n'), left.size());
    lines.push_back(left.substr(0, size));
    if (lines.back().ends_with('\r')) lines.back().remove_suffix(1);
    left.remove_prefix(std::min(size + 1, left.size()));
  }
  lines_ += std::ssize(lines);
  return end > 0;
}

std::string UnpackedFile::rest() {
  do {
    if (buffer_.size() < longest_unpacked_line) continue;
    fail_request("\"{}\": a text of 1 GiB or more as one document; --documents line makes one of each line", name_);
  } while (fill(unpacked_piece) > 0);
  return std::move(buffer_);
}

}  // namespace weft
