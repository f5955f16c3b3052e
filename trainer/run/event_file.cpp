#include "trainer/run/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/checkpoint/output_file.h"

namespace weft {
namespace {

constexpr std::size_t most_waiting_lines = 10'000;

static_assert(std::endian::native == std::endian::little, "fixed-width fields are little-endian");

constexpr auto crc_table = [] {
  constexpr std::uint32_t reflected_polynomial = 0x82F63B78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? reflected_polynomial : 0);
    table[byte] = remainder;
  }
  return table;
}();

template <typename Number>
std::string raw(Number number) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(Number)>>(number);
  return {bytes.data(), bytes.size()};
}

// Fields of a message of protocol buffers, in the order of the calls.
class Message {
 public:
  Message& integer(int field, std::int64_t value) {
    varint(static_cast<std::uint64_t>(field) << 3);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& number(int field, double value) { return fixed(field, 1, value); }
  Message& number(int field, float value) { return fixed(field, 5, value); }
  Message& text(int field, std::string_view bytes) {
    varint(static_cast<std::uint64_t>(field) << 3 | 2);
    varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename Number>
  Message& fixed(int field, unsigned wire_type, Number value) {
    varint(static_cast<std::uint64_t>(field) << 3 | wire_type);
    bytes_ += raw(value);
    return *this;
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Readers refuse a checksum of bytes that hold their own checksum; hence the rotation and the constant.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8;
}

std::string framed(const Message& event) {
  const std::string length = raw(static_cast<std::uint64_t>(event.bytes().size()));
  return length + raw(masked_crc(length)) + event.bytes() + raw(masked_crc(event.bytes()));
}

// Of Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.
Message event_at(double time) {
  return Message().number(1, time);
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The name of a new file with its first records.
std::string new_event_file(const std::filesystem::path& folder, std::int64_t steps) {
  make_folder(folder);
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  const double begin = now();
  const std::string stem =
      fmt::format("{}{}.{}.{}.", events_prefix, static_cast<std::int64_t>(begin), host.data(), getpid());
  // The last number tells files of one process in the same second apart.
  int number = 0;
  while (std::filesystem::exists(folder / (stem + std::to_string(number)))) ++number;
  const std::filesystem::path path = folder / (stem + std::to_string(number));
  write_new_file(path, first_record(begin) + (steps > 0 ? restart_record(begin, steps + 1) : std::string()));
  return path.string();
}

}  // namespace

LinesFile::LinesFile(std::string name)
    : name_(std::move(name)), descriptor_(open(name_.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail_request("{} cannot be written: {}", name_, std::strerror(errno));
  bytes_ = lseek(descriptor_, 0, SEEK_END);
}

LinesFile::~LinesFile() {
  write_waiting();
  close(descriptor_);
}

std::optional<std::string> LinesFile::append(std::string line) {
  waiting_.push_back(std::move(line));
  const int before = std::exchange(trouble_, write_waiting());
  if (waiting_.size() > most_waiting_lines) {
    waiting_.pop_front();
    ++lost_;
  }
  if ((before == 0) == (trouble_ == 0)) return std::nullopt;
  if (trouble_ == 0) return fmt::format("{} is written again; {} lines were lost", name_, lost_);
  return fmt::format("{} cannot be written: {}; the last {} lines wait in memory", name_, std::strerror(trouble_),
                     most_waiting_lines);
}

void LinesFile::finish() {
  trouble_ = write_waiting();
  if (waiting_.empty() && lost_ == 0) return;
  fail("{} lacks {} lines: {}", name_, std::ssize(waiting_) + lost_,
       trouble_ == 0 ? "they were lost while it could not be written" : std::strerror(trouble_));
}

int LinesFile::write_waiting() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const std::string& line = waiting_.front();
    const ssize_t written = pwrite(descriptor_, line.data(), line.size(), bytes_);
    const int reason = written < 0 ? errno : ENOSPC;
    if (written == std::ssize(line)) {
      bytes_ += written;
      continue;
    }
    // Removes the partially written line, which a reader would take for a whole line.
    [[maybe_unused]] const int cut = ftruncate(descriptor_, bytes_);
    return reason;
  }
  return 0;
}

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t remainder = ~std::uint32_t{0};
  for (const char byte : bytes) {
    remainder = (remainder >> 8) ^ crc_table[(remainder ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~remainder;
}

std::string first_record(double time) {
  return framed(event_at(time).text(3, "brain.Event:2"));
}

std::string restart_record(double time, std::int64_t step) {
  constexpr int started = 1;  // SessionLog.START
  return framed(event_at(time).integer(2, step).text(7, Message().integer(1, started).bytes()));
}

std::string scalar_record(double time, std::int64_t step, std::span<const EventScalar> scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars) summary.text(1, Message().text(1, tag).number(2, value).bytes());
  return framed(event_at(time).integer(2, step).text(5, summary.bytes()));
}

std::vector<EventScalar> event_scalars(const StepMetrics& reported) {
  std::vector<EventScalar> scalars;
  const auto add = [&](std::string tag, double value) {
    scalars.push_back({std::move(tag), static_cast<float>(value)});
  };
  add("loss", reported.loss);
  for (std::size_t k = 0; k < reported.prediction_losses.size(); ++k) {
    add(fmt::format("mtp_loss/{}", k + 1), reported.prediction_losses[k]);
  }
  add("grad_norm", reported.gradient_norm);
  for (const GroupRate& rate : reported.learning_rates) {
    if (reported.learning_rates.size() == 1)
      add("lr", rate.rate);
    else
      for (const UpdateGroup group : rate.groups) add(fmt::format("lr/{}", name_of(group)), rate.rate);
  }
  const auto steps = static_cast<double>(reported.steps);
  add("tokens_per_second", reported.tokens_per_second());
  add("seconds", reported.seconds / steps);
  add("data_seconds", reported.data_seconds / steps);
  add("tflops", reported.tflops());
  if (const auto mfu = reported.mfu()) add("mfu", *mfu);
  add("memory_gib", gibibytes(reported.peak_bytes));
  if (reported.loss_scale) add("loss_scale", *reported.loss_scale);
  if (reported.forced_balance) add("forced_balance", 1.0);
  for (const MoeMetrics& moe : reported.moe) {
    const std::string block = fmt::format("moe/block_{}/", moe.block);
    add(block + "max_over_mean", moe.max_over_mean);
    add(block + "entropy", moe.entropy);
    add(block + "auxiliary_loss", moe.auxiliary_loss);
    add(block + "z_loss", moe.z_loss);
    add(block + "dropped", moe.dropped);
    add(block + "unused", static_cast<double>(moe.unused));
    if (moe.null_share) add(block + "null_share", *moe.null_share);
    if (moe.bias_norm) add(block + "bias_norm", *moe.bias_norm);
  }
  if (const auto& held_out = reported.validation) {
    add("validation/loss", held_out->loss);
    add("validation/perplexity", held_out->perplexity());
    if (held_out->bytes > 0) add("validation/bits_per_byte", held_out->bits_per_byte());
  }
  return scalars;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t steps)
    : LinesFile(new_event_file(folder, steps)) {}

std::optional<std::string> EventFile::append(const StepMetrics& reported) {
  return LinesFile::append(scalar_record(now(), reported.step, event_scalars(reported)));
}

}  // namespace weft
