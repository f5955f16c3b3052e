#include "trainer/checkpoint/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const char* what, int reason) {
  fail("{} cannot be {}: {}", path.string(), what, std::strerror(reason));
}

}  // namespace

FileCalls FileCalls::of_system() {
  return {[](int descriptor, const void* data, std::size_t bytes) { return ::write(descriptor, data, bytes); },
          [](int descriptor) { return ::fsync(descriptor); }};
}

OutputFile::OutputFile(const std::filesystem::path& path, const FileCalls& calls)
    : path_(path), calls_(calls), descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!descriptor_) refuse(path_, "created", errno);
}

void OutputFile::write(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = calls_.write(descriptor_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(path_, "written", errno);
    if (written == 0) fail("{} cannot be written: the system takes no more bytes", path_.string());
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    bytes_ += written;
  }
}

void OutputFile::write(std::string_view text) {
  write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

void OutputFile::finish() {
  while (calls_.flush(descriptor_.get()) != 0) {
    if (errno != EINTR) refuse(path_, "flushed to disk", errno);
  }
  // After EINTR the descriptor is closed too, and the bytes are already on disk.
  if (close(descriptor_.release()) != 0 && errno != EINTR) refuse(path_, "closed", errno);
}

std::filesystem::path partial_path(const std::filesystem::path& path) {
  return path.string() + ".partial";
}

void write_new_file(const std::filesystem::path& path, std::string_view text, const FileCalls& calls) {
  OutputFile file(path, calls);
  file.write(text);
  file.finish();
}

void replace_file(const std::filesystem::path& path, std::string_view text, const FileCalls& calls) {
  const std::filesystem::path partial = partial_path(path);
  std::error_code error;
  std::filesystem::remove(partial, error);
  try {
    write_new_file(partial, text, calls);
  } catch (...) {
    std::filesystem::remove(partial, error);
    throw;
  }
  std::filesystem::rename(partial, path, error);
  if (error) fail("{} cannot be put in place: {}", path.string(), error.message());
}

void make_folder(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> changed;
  std::error_code error, ignored;
  for (auto folder = std::filesystem::absolute(path);
       !std::filesystem::exists(folder, ignored) && folder.has_relative_path(); folder = folder.parent_path()) {
    changed.push_back(folder.parent_path());
  }
  std::filesystem::create_directories(path, error);
  if (error) fail("the folder {} cannot be made: {}", path.string(), error.message());
  for (const auto& folder : changed) flush_folder(folder);
}

void flush_folder(const std::filesystem::path& path) {
  const FileDescriptor descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) refuse(path, "opened", errno);
  if (fsync(descriptor.get()) != 0) refuse(path, "flushed to disk", errno);
}

}  // namespace weft
