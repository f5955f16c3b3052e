// Programs and schedule files broken at random, from fixed seeds. Whatever the checker or the reader accepts has to
// run to its end with the right numbers (program_interpreter.h, which knows nothing of either). Whatever they reject,
// they say why.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <random>
#include <sstream>

#include "parallel/pipeline/check/check.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/program_interpreter.h"

namespace weft {
namespace {

class Chance {
 public:
  explicit Chance(unsigned seed) : engine_(seed) {}
  // 0 .. count - 1
  int below(int count) { return static_cast<int>(engine_() % static_cast<unsigned>(count)); }
  std::size_t below(std::size_t count) { return engine_() % count; }
  bool one_in(int count) { return below(count) == 0; }

 private:
  std::mt19937 engine_;
};

// --- programs -------------------------------------------------------------------------------------------------------

// Two blocks of two segments a stage that share a unit, one frozen or replicated here and there, every policy; some
// are recomputed in backward.
ProgramTables varied_tables(const std::vector<int>& stage_ranks, int variant) {
  constexpr std::array residencies = {Residency::reshard_after_use,  Residency::island,
                                      Residency::while_on_stage,     Residency::step,
                                      Residency::keep_after_forward, Residency::window};
  ProgramTables tables;
  for (int stage = 0; stage < static_cast<int>(stage_ranks.size()); ++stage) {
    ProgramStage entry{.rank = stage_ranks[static_cast<std::size_t>(stage)]};
    for (int i = 0; i < 2; ++i) {
      const int unit = static_cast<int>(tables.units.size());
      for (int part = 0; part < (variant + stage) % 2 + 1; ++part) {
        entry.segments.push_back(static_cast<int>(tables.segments.size()));
        tables.segments.push_back({.name = fmt::format("blocks.{}.{}", unit, part), .stage = stage, .units = {unit}});
        if ((variant + unit) % 3 == 2) tables.segments.back().region = unit;
      }
      const auto choice = static_cast<std::size_t>(variant + unit) % residencies.size();
      tables.units.push_back({.name = fmt::format("blocks.{}", unit),
                              .stage = stage,
                              .replicated = (variant + unit) % 7 == 6,
                              .frozen = (variant + unit) % 5 == 4,
                              .policy = {.residency = residencies[choice],
                                         .window_stages = 1,
                                         .island_ranks = 2,
                                         .lookahead = variant % 3,
                                         .reduce_every = variant % 4,
                                         .accumulate_sharded = unit % 2 == 1}});
    }
    tables.stages.push_back(entry);
  }
  ProgramUnit &first = tables.units.front(), &last = tables.units.back();
  const auto plain = [](const ProgramUnit& unit) { return !unit.frozen && !unit.replicated; };
  if (stage_ranks.size() > 1 && plain(first) && plain(last)) {
    first.copies = last.copies = {0, static_cast<int>(tables.units.size()) - 1};
  }
  return tables;
}

std::vector<int> stage_ranks_of(const ProgramTables& tables) {
  std::vector<int> ranks;
  for (const ProgramStage& stage : tables.stages) ranks.push_back(stage.rank);
  return ranks;
}

OrderInput small_input(const Schedule& schedule, int ranks) {
  OrderInput input{.ranks = ranks, .chunks = schedule.least_chunks, .microbatches = 3};
  if (!can_order(schedule.name, input)) input.microbatches = 2 * ranks;
  return input;
}

std::vector<Program> sound_programs() {
  std::vector<Program> programs;
  for (const Schedule& schedule : schedules()) {
    int variant = 0;
    for (int ranks : {1, 2, 3}) {
      const OrderInput input = small_input(schedule, ranks);
      programs.push_back(add_exchange(ordered(schedule, input)));
      const std::vector<int> stage_ranks = stage_ranks_of(programs.back());
      programs.push_back(compile(varied_tables(stage_ranks, variant++), schedule, input));
      programs.push_back(compile(varied_tables(stage_ranks, variant++), schedule, input));
    }
  }
  return programs;
}

// A number near the one that stands there, seldom one that is far off or none at all.
void change(OptionalIndex& number, Chance& chance) {
  if (!number) return;
  if (chance.one_in(20)) {
    number.reset();
  } else if (chance.one_in(10)) {
    number = chance.one_in(2) ? -1 : 1'000'000'000;
  } else {
    number = *number + (chance.one_in(2) ? 1 : -1) * (1 + chance.below(2));
  }
}

void change(Action& action, Chance& chance) {
  switch (chance.below(8)) {
    case 0:
      return change(action.stage, chance);
    case 1:
      return change(action.microbatch, chance);
    case 2:
      return change(action.segment, chance);
    case 3:
      return change(action.unit, chance);
    case 4:
      return change(action.peer, chance);
    case 5:
      action.op = static_cast<Op>(chance.below(static_cast<int>(Op::optimizer_step) + 1));
      return;
    case 6:
      action.overlapped = !action.overlapped;
      return;
    default:
      change(action.microbatch, chance);
      change(action.stage, chance);
  }
}

void mutate(Program& program, Chance& chance) {
  auto& list = program.ranks[chance.below(program.ranks.size())];
  if (list.empty()) return;
  const std::size_t size = list.size(), at = chance.below(size);
  const auto place = [&list](std::size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
  switch (chance.below(12)) {
    case 0:
      std::swap(list[at], list[chance.below(size)]);
      return;
    case 1:
    case 2:
    case 3:
      std::swap(list[at], list[std::min(at + 1, size - 1)]);
      return;
    case 4:
      list.erase(place(at));
      return;
    case 5: {
      const Action again = list[at];
      list.insert(place(chance.below(size + 1)), again);
      return;
    }
    case 6:
    case 7: {  // a few places on
      const std::size_t to = std::min(at + 1 + chance.below(std::size_t{6}), size - 1);
      std::rotate(place(at), place(at) + 1, place(to) + 1);
      return;
    }
    case 8: {
      const Action moved = list[at];
      list.erase(place(at));
      auto& other = program.ranks[chance.below(program.ranks.size())];
      other.insert(other.begin() + static_cast<std::ptrdiff_t>(chance.below(other.size() + 1)), moved);
      return;
    }
    case 9:
      list.resize(chance.one_in(2) ? at : size - 1 - chance.below(std::min<std::size_t>(size, 3)));
      return;
    default:
      change(list[at], chance);
  }
}

TEST(ProgramFuzz, TheProgramsToBreakRun) {
  int ties = 0, local_ties = 0;
  for (const Program& program : sound_programs()) {
    EXPECT_TRUE(find_violations(program).empty());
    EXPECT_EQ(fault_when_run(program), "");
    const ProgramUnit* tied = program.units.empty() || program.units[0].copies.empty() ? nullptr : program.units.data();
    if (tied != nullptr) ++(tied_ranks(program, *tied).size() == 1 ? local_ties : ties);
  }
  EXPECT_GT(ties, 5);
  EXPECT_GT(local_ties, 5);
}

// The judge itself: what it must not let pass.
TEST(ProgramFuzz, TheInterpreterSeesFaults) {
  const Program sound = compiled(stage_tables(2, 2, {.lookahead = 0}), "1f1b", 2);
  const auto fault_without = [&](std::string_view cell, int rank) {
    Program program = sound;
    auto& list = program.ranks[static_cast<std::size_t>(rank)];
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const Action& action) { return format_action(program, action) == cell; });
    EXPECT_NE(found, list.end()) << cell;
    list.erase(found);
    return fault_when_run(program);
  };
  EXPECT_EQ(fault_when_run(sound), "");
  EXPECT_EQ(fault_without("1UNSHARD(blocks.2)", 1), "blocks.2 is not gathered");
  EXPECT_EQ(fault_without("0F1(blocks.1)", 0), "it was not made yet");
  EXPECT_EQ(fault_without("0REDUCE_GRAD(blocks.0)", 0), "the gradient of blocks.0 is not the model's");
  EXPECT_EQ(fault_without("0SEND_F1", 0), "rank 0 stands still at action 19");
  EXPECT_EQ(fault_without("GRAD_NORM", 1), "STEP at the wrong time");
  EXPECT_EQ(fault_without("STEP", 1), "rank 0 stands still at action 29");
  ProgramTables tables = stage_tables(2, 1, {.lookahead = 0});
  tables.units[0].copies = tables.units[1].copies = {0, 1};
  Program tied = compiled(tables, "1f1b", 2);
  EXPECT_EQ(fault_when_run(tied), "");
  for (auto& list : tied.ranks) std::erase_if(list, [](const Action& action) { return action.op == Op::tie_gradient; });
  EXPECT_EQ(fault_when_run(tied), "the gradient of blocks.1 is not the model's");
  Program crossed = bare("gpipe", 2, 2);
  const auto first = crossed.ranks[1].begin();
  std::rotate(first, first + 2, first + 3);  // both received first, the second one as the first
  EXPECT_EQ(fault_when_run(crossed), "microbatch 0: not the model's gradient");
}

TEST(ProgramFuzz, WhatTheCheckerAcceptsRuns) {
  constexpr int mutants = 40'000;
  const std::vector<Program> programs = sound_programs();
  int accepted = 0, rejected = 0;
  for (int seed = 0; seed < mutants; ++seed) {
    Chance chance(static_cast<unsigned>(seed));
    Program program = programs[static_cast<std::size_t>(seed) % programs.size()];
    for (int times = 1 + chance.below(3); times > 0; --times) mutate(program, chance);
    const auto findings = find_violations(program);
    if (findings.empty()) {
      ++accepted;
      const std::string fault = fault_when_run(program);
      ASSERT_EQ(fault, "") << "seed " << seed << "\n" << to_csv(program, Detail::everything);
      const std::string text = to_csv(program, Detail::everything);
      ASSERT_EQ(to_csv(from_csv(program, text), Detail::everything), text) << "seed " << seed;
      continue;
    }
    ++rejected;
    for (const Finding& finding : findings) {
      ASSERT_FALSE(finding.message.empty()) << "seed " << seed;
      ASSERT_LT(static_cast<std::size_t>(finding.rank), program.ranks.size()) << "seed " << seed;
      ASSERT_LE(finding.index, program.ranks[static_cast<std::size_t>(finding.rank)].size()) << "seed " << seed;
    }
    if (seed % 8 == 0) {
      EXPECT_THROW(check(program), Error) << "seed " << seed;  // prints the grid around the finding
    }
  }
  fmt::print("{} programs: {} accepted and run, {} rejected\n", mutants, accepted, rejected);
  EXPECT_GT(accepted, mutants / 20);
  EXPECT_GT(rejected, mutants / 20);
}

// Both were accepted once.
TEST(ProgramFuzz, WhatItFoundIsRejected) {
  // All ranks take part in the update: one that leaves it out keeps the others waiting.
  Program cut = compiled(stage_tables(2, 1), "1f1b", 2);
  cut.ranks[1].resize(cut.ranks[1].size() - 2);
  auto findings = find_violations(cut);
  ASSERT_EQ(findings.size(), 2u);
  for (const Finding& finding : findings) EXPECT_EQ(finding.violation, Violation::missing_update) << finding.message;
  EXPECT_NE(fault_when_run(cut), "");
  // Sent and received twice: matched, but the stage has room and use for it once.
  Program twice = bare("gpipe", 2, 1);
  twice.ranks[0].insert(twice.ranks[0].begin() + 2, twice.ranks[0][1]);
  twice.ranks[1].insert(twice.ranks[1].begin() + 1, twice.ranks[1][0]);
  findings = find_violations(twice);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].violation, Violation::repeated_receive) << findings[0].message;
  EXPECT_EQ(findings[0].index, 1u);
  EXPECT_NE(fault_when_run(twice), "");
}

// --- schedule files -------------------------------------------------------------------------------------------------

std::vector<std::string> sound_texts() {
  std::vector<std::string> texts = {
      // Stages of rank 0 next to each other, three of them to one of rank 1; a pair; idle cells, a comment.
      "# three and one\n0F0,1F0,,3F0,3B0,,1B0,0B0\n ,,2F0, ,2I0,2W0\n",
      "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\r\n1F0,1B0,1F1,1B1,1F2,1I2,1W2\r\n",
  };
  for (const Schedule& schedule : schedules()) {
    for (int ranks : {1, 2, 3}) {
      const OrderInput input = small_input(schedule, ranks);
      texts.push_back(to_csv(ordered(schedule, input), Detail::compute_only));
    }
  }
  return texts;
}

std::vector<std::vector<std::string>> split(const std::string& text) {
  std::vector<std::vector<std::string>> lines(1);
  std::string cell;
  for (char c : text) {
    if (c != ',' && c != '\n') {
      cell += c;
      continue;
    }
    lines.back().push_back(cell);
    cell.clear();
    if (c == '\n') lines.emplace_back();
  }
  if (!cell.empty()) lines.back().push_back(cell);
  return lines;
}
std::string joined(const std::vector<std::vector<std::string>>& lines) {
  std::string text;
  for (std::size_t line = 0; line < lines.size(); ++line) {
    for (std::size_t i = 0; i < lines[line].size(); ++i) text += (i > 0 ? "," : "") + lines[line][i];
    if (line + 1 < lines.size()) text += '\n';
  }
  return text;
}

void mutate_bytes(std::string& text, Chance& chance) {
  static constexpr std::string_view likely = "0123456789FIWB,;() \n\r#_OVERLAP";
  const char byte = chance.one_in(8) ? static_cast<char>(chance.below(256)) : likely[chance.below(likely.size())];
  const std::size_t at = chance.below(text.size() + 1);
  switch (chance.below(5)) {
    case 0:
      text.insert(at, 1, byte);
      return;
    case 1:
      text.erase(at == text.size() ? 0 : at, 1);
      return;
    case 2:
      text.erase(std::min(at, text.size()), chance.below(std::size_t{12}));
      return;
    case 3: {
      const std::string piece = text.substr(at, chance.below(std::size_t{24}));
      text.insert(chance.below(text.size() + 1), piece);
      return;
    }
    default:
      if (at < text.size()) text[at] = byte;
  }
}

void mutate_cells(std::string& text, Chance& chance) {
  auto lines = split(text);
  auto& line = lines[chance.below(lines.size())];
  if (line.empty()) return;
  const std::size_t at = chance.below(line.size()), next = std::min(at + 1, line.size() - 1);
  switch (chance.below(9)) {
    case 0:
      std::swap(line[at], line[chance.below(line.size())]);
      break;
    case 1:
    case 2:
      std::swap(line[at], line[next]);
      break;
    case 3:
      line.erase(line.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 4:
      line.insert(line.begin() + static_cast<std::ptrdiff_t>(chance.below(line.size() + 1)), std::string(line[at]));
      break;
    case 5: {
      const std::string moved = line[at];
      line.erase(line.begin() + static_cast<std::ptrdiff_t>(at));
      auto& other = lines[chance.below(lines.size())];
      other.insert(other.begin() + static_cast<std::ptrdiff_t>(chance.below(other.size() + 1)), moved);
      break;
    }
    case 6:  // two neighbours become a pair
    case 7:
      if (next == at) break;
      line[at] = fmt::format("({};{})OVERLAP_F_B", line[at], line[next]);
      line.erase(line.begin() + static_cast<std::ptrdiff_t>(next));
      break;
    default:
      line.insert(line.begin() + static_cast<std::ptrdiff_t>(at), " ");
  }
  text = joined(lines);
}

void expect_places(const std::string& message, int seed) {
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    std::size_t number = 0, column = 0;
    const bool placed = std::sscanf(line.c_str(), "line %zu, column %zu: ", &number, &column) == 2;
    ASSERT_TRUE(line == "and more" || (placed && number > 0 && column > 0)) << "seed " << seed << "\n" << message;
  }
}

TEST(ScheduleFuzz, TheFilesToBreakAreSound) {
  for (const std::string& text : sound_texts()) {
    const UserOrder order = order_from_csv(text);
    EXPECT_EQ(fault_when_run(compile(schedule_only_tables(order), order)), "") << text;
  }
}

TEST(ScheduleFuzz, WhatTheReaderAcceptsRuns) {
  constexpr int mutants = 40'000;
  const std::vector<std::string> texts = sound_texts();
  int accepted = 0, rejected = 0;
  for (int seed = 0; seed < mutants; ++seed) {
    Chance chance(static_cast<unsigned>(seed));
    std::string text = texts[static_cast<std::size_t>(seed) % texts.size()];
    for (int times = 1 + chance.below(3); times > 0; --times) {
      chance.one_in(3) ? mutate_bytes(text, chance) : mutate_cells(text, chance);
    }
    UserOrder order;
    try {
      order = order_from_csv(text);
    } catch (const Error& error) {
      ++rejected;
      ASSERT_EQ(error.kind(), ErrorKind::request) << "seed " << seed;
      expect_places(error.what(), seed);
      continue;
    }
    ++accepted;
    for (const ProgramTables& tables : {schedule_only_tables(order), varied_tables(order.stage_ranks, seed)}) {
      const Program program = compile(tables, order);
      const auto findings = find_violations(program);
      ASSERT_TRUE(findings.empty()) << "seed " << seed << ": " << findings.front().message << "\n" << text;
      ASSERT_EQ(fault_when_run(program), "") << "seed " << seed << "\n" << text;
      ASSERT_EQ(order_from_csv(to_csv(program, Detail::compute_only)), order) << "seed " << seed << "\n" << text;
    }
  }
  fmt::print("{} schedule files: {} accepted and run, {} rejected\n", mutants, accepted, rejected);
  EXPECT_GT(accepted, mutants / 20);
  EXPECT_GT(rejected, mutants / 20);
}

}  // namespace
}  // namespace weft
