#include "arena.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "parallel/runtime/error.h"

namespace weft::cuda_emulator {
namespace {

constexpr std::size_t alignment = 512;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr unsigned char red_zone_byte = 0xB5;

std::size_t footprint(std::size_t bytes) {
  return (bytes + Arena::red_zone_bytes + alignment - 1) / alignment * alignment;
}

// A signal handler has no argument of its own, hence these.
volatile std::uintptr_t guarded_begin = 0, guarded_end = 0;
struct sigaction previous_action;

void write_text(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// Only functions that may be called from a signal handler.
void on_fault(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (address >= guarded_begin && address < guarded_end) {
    char digits[] = "0x0000000000000000\n";
    for (int place = 0; place < 16; ++place) digits[17 - place] = "0123456789abcdef"[(address >> (4 * place)) & 15];
    write_text("cuda emulator: host code touched device memory at ");
    write_text(digits);
  }
  // The faulting instruction is repeated and meets whoever was responsible before.
  sigaction(SIGSEGV, &previous_action, nullptr);
}

}  // namespace

Arena::Arena(std::size_t bytes) : size_((bytes + huge_page - 1) / huge_page * huge_page) {
  void* mapped = mmap(nullptr, size_ + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) fail("the emulator cannot reserve {} bytes of addresses", size_);
  begin_ = static_cast<std::byte*>(mapped);
  begin_ += (huge_page - reinterpret_cast<std::uintptr_t>(mapped) % huge_page) % huge_page;
  // Changing the protection of 512 MiB takes 60 us in huge pages and 20 ms in small ones.
  madvise(begin_, size_, MADV_HUGEPAGE);
  free_[0] = size_;
  window_ = std::min<std::size_t>(size_, std::size_t{64} << 20);
  guarded_begin = reinterpret_cast<std::uintptr_t>(begin_);
  guarded_end = guarded_begin + size_;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  struct sigaction found {};
  sigaction(SIGSEGV, &action, &found);
  if (found.sa_sigaction != on_fault) previous_action = found;
}

Arena::~Arena() {
  guarded_begin = 0;
  guarded_end = 0;
  munmap(begin_, size_);
}

bool Arena::contains(const void* address) const {
  return address >= begin_ && address < begin_ + size_;
}

std::byte* Arena::reserve(std::size_t bytes) {
  const std::size_t needed = footprint(bytes);
  if (needed > size_) return nullptr;
  const auto usable = [&](auto region) {
    return region->first < window_ && std::min(region->first + region->second, window_) - region->first >= needed;
  };
  for (;;) {
    auto region = free_.lower_bound(cursor_);
    while (region != free_.end() && !usable(region)) ++region;
    if (region == free_.end()) {
      region = free_.begin();
      while (region != free_.end() && !usable(region)) ++region;
    }
    if (region != free_.end()) {
      const auto [offset, available] = *region;
      free_.erase(region);
      if (available > needed) free_[offset + needed] = available - needed;
      cursor_ = offset + needed;
      reached_ = std::max(reached_, (cursor_ + huge_page - 1) / huge_page * huge_page);
      // The new end is reachable at once if a drain is under way.
      if (open_) protect(PROT_READ | PROT_WRITE);
      return begin_ + offset;
    }
    if (window_ == size_) return nullptr;
    window_ = std::min(size_, window_ * 2);
  }
}

void Arena::prepare(std::byte* block, std::size_t bytes) {
  std::memset(block, 0xFF, bytes);
  std::memset(block + bytes, red_zone_byte, red_zone_bytes);
}

bool Arena::intact(const std::byte* block, std::size_t bytes) const {
  return std::all_of(block + bytes, block + bytes + red_zone_bytes,
                     [](std::byte value) { return value == std::byte{red_zone_byte}; });
}

void Arena::release(std::byte* block, std::size_t bytes) {
  std::size_t begin = static_cast<std::size_t>(block - begin_), size = footprint(bytes);
  std::memset(block, 0xFF, size);
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == begin + size) {
    size += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  free_[begin] = size;
}

void Arena::open() {
  if (!open_) protect(PROT_READ | PROT_WRITE);
  open_ = true;
}

void Arena::close() {
  if (open_) protect(PROT_NONE);
  open_ = false;
}

void Arena::protect(int access) {
  if (reached_ == 0) return;
  if (mprotect(begin_, reached_, access) != 0) fail("the emulator cannot protect device memory");
}

}  // namespace weft::cuda_emulator
