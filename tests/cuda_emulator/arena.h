// The place of device memory: one range of addresses that the host may touch only while device work runs. Whoever else
// follows a device pointer ends the process with a message. Not thread-safe; the machine's mutex guards it.
#pragma once

#include <cstddef>
#include <map>

namespace weft::cuda_emulator {

class Arena {
 public:
  static constexpr std::size_t red_zone_bytes = 64;

  // Reserves addresses; pages are taken when touched.
  explicit Arena(std::size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool contains(const void* address) const;
  // An address for `bytes` and a red zone behind them, 512-byte aligned; null when none is left. Touches nothing.
  // Prefers addresses not used for long, so that a stale pointer finds the fill of a freed block and not new data.
  std::byte* reserve(std::size_t bytes);
  // Fills a block with 0xFF (a NaN in every float type) and its red zone with a pattern. The arena must be open.
  void prepare(std::byte* block, std::size_t bytes);
  // Whether nobody wrote behind the block. The arena must be open.
  bool intact(const std::byte* block, std::size_t bytes) const;
  // Fills with 0xFF and lets the addresses be used again. The arena must be open.
  void release(std::byte* block, std::size_t bytes);

  // Makes the memory accessible or not. Repeating either costs nothing.
  void open();
  void close();

 private:
  void protect(int access);

  std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
  bool open_ = false;
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes, never adjacent
  std::size_t cursor_ = 0;                   // where the last reservation ended
  std::size_t window_;                       // reservations stay below this offset as long as they fit
  std::size_t reached_ = 0;                  // no address from here on was ever used
};

}  // namespace weft::cuda_emulator
