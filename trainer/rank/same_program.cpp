#include "trainer/rank/same_program.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "trainer/rank/step_totals.h"

namespace weft {
namespace {

std::uint64_t hash_of(const std::vector<Action>& actions) {
  RunningChecksum sum;
  const auto add = [&](std::int64_t word) { sum.add({reinterpret_cast<const std::uint8_t*>(&word), sizeof word}); };
  for (const Action& action : actions) {
    add(static_cast<std::int64_t>(action.op));
    for (const auto& index : {action.stage, action.microbatch, action.segment, action.unit, action.peer}) {
      add(index.value_or(-1));
    }
    for (const int flag : {int{action.overlapped}, int{action.part.index}, int{action.part.count}}) add(flag);
  }
  return sum.value();
}

// Lists the first 16 ranks: one wrong node has eight ranks, a wrong version may affect half the world.
std::string text_of(const std::vector<int>& ranks) {
  constexpr std::size_t shown = 16;
  const std::span<const int> first(ranks.data(), std::min(ranks.size(), shown));
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(first, ", "),
                     ranks.size() > shown ? fmt::format(" and {} more", ranks.size() - shown) : "");
}

// Groups of ranks with the same hash for pipeline rank `row`. The first group is the reference: the majority, or else
// the group of rank 0.
std::vector<std::vector<int>> camps_of(std::span<const std::vector<std::uint64_t>> hashes_of_ranks, std::size_t row) {
  std::map<std::uint64_t, std::vector<int>> by_hash;
  for (std::size_t rank = 0; rank < hashes_of_ranks.size(); ++rank)
    by_hash[hashes_of_ranks[rank][row]].push_back(static_cast<int>(rank));
  std::vector<std::vector<int>> camps;
  for (auto& [hash, ranks] : by_hash) camps.push_back(std::move(ranks));
  std::ranges::sort(camps, {}, [](const std::vector<int>& ranks) { return ranks.front(); });
  const auto most = std::ranges::find_if(
      camps, [&](const std::vector<int>& ranks) { return 2 * ranks.size() > hashes_of_ranks.size(); });
  if (most != camps.end()) std::rotate(camps.begin(), most, most + 1);
  return camps;
}

}  // namespace

std::vector<std::uint64_t> program_hashes(const Program& program) {
  std::vector<std::uint64_t> hashes;
  for (const std::vector<Action>& actions : program.ranks) hashes.push_back(hash_of(actions));
  return hashes;
}

std::optional<std::string> program_disagreement(std::span<const std::vector<std::uint64_t>> hashes_of_ranks) {
  std::string rows;
  for (std::size_t row = 0; row < hashes_of_ranks.front().size(); ++row) {
    const auto camps = camps_of(hashes_of_ranks, row);
    for (std::size_t camp = 1; camp < camps.size(); ++camp) {
      rows += fmt::format("\n  for pipeline rank {}: {}, unlike {}", row, text_of(camps[camp]), text_of(camps.front()));
    }
  }
  if (rows.empty()) return std::nullopt;
  return fmt::format(
      "the ranks have compiled different steps; all must read the same configuration and files with the same weft:{}",
      rows);
}

void require_same_program(const Program& program, Communicator& world) {
  std::vector<double> halves;  // of 32 bits, exact as float64
  for (const std::uint64_t hash : program_hashes(program)) {
    halves.push_back(static_cast<double>(hash >> 32));
    halves.push_back(static_cast<double>(hash & 0xffffffffu));
  }
  const std::vector<double> gathered = gather_numbers(world, halves);
  std::vector<std::vector<std::uint64_t>> hashes(static_cast<std::size_t>(world.size()));
  for (std::size_t i = 0; i < gathered.size(); i += 2) {
    const auto high = static_cast<std::uint64_t>(gathered[i]), low = static_cast<std::uint64_t>(gathered[i + 1]);
    hashes[i / halves.size()].push_back(high << 32 | low);
  }
  if (const auto fault = program_disagreement(hashes)) fail("{}", *fault);
}

}  // namespace weft
