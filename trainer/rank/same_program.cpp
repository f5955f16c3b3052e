#include "trainer/rank/same_program.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "trainer/config/config_schema.h"
#include "trainer/rank/step_totals.h"

namespace weft {
namespace {

// Lists the first 16: one wrong node has eight ranks, a wrong version may affect half the world.
template <typename T>
std::string first_of(const std::vector<T>& all) {
  constexpr std::size_t shown = 16;
  const std::span<const T> first(all.data(), std::min(all.size(), shown));
  return fmt::format("{}{}", fmt::join(first, ", "),
                     all.size() > shown ? fmt::format(" and {} more", all.size() - shown) : "");
}

std::string text_of(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", first_of(ranks));
}

// Groups of ranks with the same hash of `part`. The first group is the reference: the majority, or else the group of
// rank 0.
std::vector<std::vector<int>> camps_of(std::span<const ComparedHashes> hashes, std::size_t part) {
  std::map<std::uint64_t, std::vector<int>> by_hash;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    by_hash[hashes[rank][part]].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> camps;
  for (auto& [hash, ranks] : by_hash) camps.push_back(std::move(ranks));
  std::ranges::sort(camps, {}, [](const std::vector<int>& ranks) { return ranks.front(); });
  const auto most =
      std::ranges::find_if(camps, [&](const std::vector<int>& ranks) { return 2 * ranks.size() > hashes.size(); });
  if (most != camps.end()) std::rotate(camps.begin(), most, most + 1);
  return camps;
}

// The keys with another value on rank `other` than on rank `usual`. Collective over the world. `lengths`: bytes of the
// configuration of either rank.
std::string keys_that_differ(const Disagreement& found, const std::string& own, std::array<std::size_t, 2> lengths,
                             Communicator& world) {
  std::vector<double> bytes(lengths[0] + lengths[1]);
  if (world.rank() == found.usual) std::ranges::copy(own, bytes.begin());
  if (world.rank() == found.other) std::ranges::copy(own, bytes.begin() + static_cast<std::ptrdiff_t>(lengths[0]));
  std::string texts;
  for (const double byte : sum_numbers(world, bytes)) texts += static_cast<char>(byte);
  return fmt::format("\n  from rank {} to rank {}: {}", found.usual, found.other,
                     first_of(changed_values(texts.substr(0, lengths[0]), texts.substr(lengths[0]))));
}

}  // namespace

std::uint64_t program_hash(const Program& program) {
  RunningChecksum sum;
  const auto add = [&](std::int64_t word) { sum.add({reinterpret_cast<const std::uint8_t*>(&word), sizeof word}); };
  for (const std::vector<Action>& actions : program.ranks) {
    add(std::ssize(actions));
    for (const Action& action : actions) {
      add(static_cast<std::int64_t>(action.op));
      for (const auto& index : {action.stage, action.microbatch, action.segment, action.unit, action.peer}) {
        add(index.value_or(-1));
      }
      for (const int flag : {int{action.overlapped}, int{action.part.index}, int{action.part.count}}) add(flag);
    }
  }
  return sum.value();
}

std::optional<Disagreement> find_disagreement(std::span<const ComparedHashes> hashes) {
  for (std::size_t part = 0; part < compared_parts.size(); ++part) {
    const auto camps = camps_of(hashes, part);
    if (camps.size() == 1) continue;
    Disagreement found{part, camps[0].front(), camps[1].front(), {}};
    for (std::size_t camp = 1; camp < camps.size(); ++camp) {
      found.ranks += fmt::format("\n  {}, unlike {}", text_of(camps[camp]), text_of(camps.front()));
    }
    return found;
  }
  return std::nullopt;
}

void require_same_program(const Program& program, const std::string& configuration, Communicator& world) {
  const ComparedHashes own = {checksum(std::string_view(WEFT_VERSION)), checksum(configuration), program_hash(program)};
  std::vector<double> numbers = {static_cast<double>(configuration.size())};
  for (const std::uint64_t hash : own) {  // halves of 32 bits, exact as float64
    numbers.push_back(static_cast<double>(hash >> 32));
    numbers.push_back(static_cast<double>(hash & 0xffffffffu));
  }
  const std::vector<double> gathered = gather_numbers(world, numbers);
  const auto of_rank = [&](int rank) { return std::span(gathered).subspan(rank * numbers.size(), numbers.size()); };
  std::vector<ComparedHashes> hashes(static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    for (std::size_t part = 0; part < own.size(); ++part) {
      const auto halves = of_rank(rank).subspan(1 + 2 * part);
      hashes[rank][part] = static_cast<std::uint64_t>(halves[0]) << 32 | static_cast<std::uint64_t>(halves[1]);
    }
  }
  const auto found = find_disagreement(hashes);
  if (!found) return;
  const auto length = [&](int rank) { return static_cast<std::size_t>(of_rank(rank).front()); };
  std::string keys;
  if (compared_parts[found->part] == "configuration") {
    keys = keys_that_differ(*found, configuration, {length(found->usual), length(found->other)}, world);
  }
  fail("the {} differs between ranks; all must read the same configuration and files with the same weft:{}{}",
       compared_parts[found->part], found->ranks, keys);
}

}  // namespace weft
