#include <gtest/gtest.h>

#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

template <typename Function>
std::string text_error(Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(Cells, EveryKindSurvivesTheRoundTrip) {
  const Program program{stage_tables(3, 2), 4, {}};
  const char* all[] = {"0F3",           "2B0",
                       "1I2",           "1W1",
                       "0F3(blocks.1)", "1B0(blocks.2)",
                       "1I0(blocks.3)", "2W3(blocks.5)",
                       "0UNSHARD",      "0UNSHARD(blocks.1)",
                       "1RESHARD",      "1RESHARD(blocks.2)",
                       "2REDUCE_GRAD",  "2REDUCE_GRAD(blocks.4)",
                       "0WAIT_REDUCE",  "1WAIT_REDUCE(blocks.3)",
                       "0SEND_F2",      "1RECV_F2",
                       "1SEND_B2",      "0RECV_B2",
                       "GRAD_NORM",     "STEP"};
  for (const char* cell : all) EXPECT_EQ(format_action(program, parse_action(program, cell)), cell);
}

TEST(Cells, PeersAndBytesComeFromTheTables) {
  const ProgramTables tables = stage_tables(3, 2);
  const Action send = parse_action(tables, "1SEND_B2");
  EXPECT_EQ(send, (Action{.op = Op::send_backward, .stage = 1, .microbatch = 2, .peer = 0, .bytes = 100}));
  const Action gather = parse_action(tables, "1UNSHARD(blocks.3)");
  EXPECT_EQ(gather, (Action{.op = Op::unshard, .stage = 1, .unit = 3, .bytes = 13}));
  EXPECT_EQ(parse_action(tables, "1UNSHARD").bytes, 12 + 13);
  EXPECT_EQ(parse_action(tables, "1REDUCE_GRAD").bytes, 22 + 23);
  EXPECT_EQ(parse_action(tables, "1WAIT_REDUCE(blocks.3)"),
            (Action{.op = Op::wait_reduction, .stage = 1, .unit = 3}));  // moves nothing
}

TEST(Cells, MalformedOnesAreRefusedWithTheFault) {
  ProgramTables tables = stage_tables(3, 2);
  const std::pair<const char*, const char*> all[] = {
      {"", "it is empty"},
      {"0BW0", "kind \"BW\" is unknown; the kinds of an order are F, B, I, W and OVERLAP_F_B"},
      {"0f0", "kind \"f\" is unknown"},
      {"0X0", "kind \"X\" is unknown"},
      {"F0", "F needs its stage in front"},
      {"0F", "F needs its microbatch behind it"},
      {"0SEND_F", "SEND_F needs its microbatch"},
      {"0UNSHARD3", "UNSHARD takes no microbatch"},
      {"UNSHARD", "UNSHARD needs its stage"},
      {"0GRAD_NORM", "GRAD_NORM takes no stage"},
      {"STEP1", "STEP takes no microbatch"},
      {"STEP(blocks.0)", "STEP takes no name"},
      {"0SEND_F0(blocks.0)", "SEND_F takes no name"},
      {"0F0x", "\"x\" is left over"},
      {"0F0 ", "\" \" is left over"},
      {" 0F0", "expected a kind such as F at \" 0F0\""},
      {"-1F0", "expected a kind such as F at \"-1F0\""},
      {"0F-1", "\"-1\" is left over"},
      {"0", "a kind such as F is missing"},
      {"0F0(blocks.0", "the parenthesis is not closed"},
      {"0F0()", "the parenthesis names nothing"},
      {"0F0(blocks.0)1", "\"1\" is left over"},
      {"0F0(blocks.9)", "there is no segment named \"blocks.9\""},
      {"0UNSHARD(blocks.9)", "there is no unit named \"blocks.9\""},
      {"0F0(blocks.2)", "segment blocks.2 belongs to stage 1, not 0"},
      {"2RESHARD(blocks.0)", "unit blocks.0 belongs to stage 0, not 2"},
      {"3F0", "stage 3 does not exist; there are 3 stages"},
      {"99999999999F0", "stage 99999999999 is too large"},
      {"0F99999999999", "microbatch 99999999999 is too large"},
      {"00F0", "stage 00 has a leading zero"},
      {"0F01", "microbatch 01 has a leading zero"},
      {"2SEND_F0", "stage 2 has no neighbour on that side"},
      {"0SEND_B0", "stage 0 has no neighbour on that side"},
  };
  for (const auto& [cell, fault] : all) {
    const std::string message = text_error([&] { parse_action(tables, cell); });
    EXPECT_NE(message.find(fault), std::string::npos) << message;
    EXPECT_NE(message.find(fmt::format("cell \"{}\"", cell)), std::string::npos) << message;
  }
  tables.stages[1].rank = 0;
  const std::string message = text_error([&] { parse_action(tables, "0SEND_F0"); });
  EXPECT_NE(message.find("stages 0 and 1 run on one rank"), std::string::npos) << message;
}

TEST(Csv, CompiledProgramsSurviveTheRoundTrip) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 3, 3, 6)) {
      for (Residency residency : {Residency::reshard_after_use, Residency::step}) {
        const Program program = compiled(schedule, input, 3, {.residency = residency, .reduce_every = 2});
        EXPECT_EQ(from_csv(program, to_csv(program, Detail::everything)), program) << described(schedule, input);
      }
    }
  }
}

TEST(Csv, WaitsForReductionsSurviveTheRoundTrip) {
  Program program = compiled(stage_tables(2, 2, {.reduce_every = 1}), "1f1b", 3);
  for (auto& list : program.ranks) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].op != Op::reduce_gradient) continue;
      const Action wait{.op = Op::wait_reduction, .stage = list[i].stage, .unit = list[i].unit};
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(++i), wait);
    }
  }
  EXPECT_EQ(count_of(program, 0, Op::wait_reduction), 6);
  EXPECT_EQ(from_csv(program, to_csv(program, Detail::everything)), program);
}

TEST(Csv, BareProgramsSurviveTheRoundTrip) {
  const Program program = bare("1f1b", 4, 8);
  EXPECT_EQ(from_csv(schedule_only_tables(4, 4), to_csv(program, Detail::everything)), program);
}

TEST(Csv, TheStageLevelFormReadsBack) {
  const ProgramTables tables = stage_tables(2, 3, {.residency = Residency::step});
  const std::string text = to_csv(compiled(tables, "1f1b", 3), Detail::stages_only);
  const Program read = from_csv(tables, text);
  EXPECT_EQ(read.microbatches, 3);
  EXPECT_EQ(to_csv(read, Detail::everything), text);
}

TEST(Csv, BlanksAndLineEndsOfOtherSystemsAreTaken) {
  const Program program = from_csv(schedule_only_tables(2, 2), "0F0, 0B0\r\n1F0 ,1B0\r\n\r\n");
  EXPECT_EQ(to_csv(program, Detail::everything), "0F0,0B0\n1F0,1B0\n");
  EXPECT_EQ(program.microbatches, 1);
}

TEST(Csv, ErrorsCarryLineAndColumn) {
  const auto error = [](const char* text) { return text_error([&] { from_csv(schedule_only_tables(2, 2), text); }); };
  EXPECT_EQ(error("0F0,0B0\n1F0, 1BW0,1B0\n").find("line 2, column 6: cell \"1BW0\": kind \"BW\""), 0u);
  EXPECT_EQ(error("0F0,,0B0\n1F0\n").find("line 1, column 5: cell \"\": it is empty"), 0u);
  EXPECT_EQ(error("0F0,\n1F0\n").find("line 1, column 5: cell \"\": it is empty"), 0u);
  EXPECT_EQ(error("0F0,0B0\n").find("line 2, column 1: one line per rank, but the stages stand on 2 ranks"), 0u);
  EXPECT_EQ(error("").find("line 1, column 1:"), 0u);
  EXPECT_EQ(error("0F0\n1F0\n0F1\n").find("line 3, column 1: one line per rank"), 0u);
}

std::string detail_cells(const Program& program, int rank, Detail detail) {
  Program coarse = program;
  auto& actions = coarse.ranks[static_cast<std::size_t>(rank)];
  actions = at_detail(actions, detail);
  return cells(coarse, rank);
}

// Dropped and gathered again between the segments of one stage action: to the stage it is one residency.
TEST(AtDetail, MergesResidencyInsideAStageAction) {
  const Program program = compiled(
      stage_tables(2, 3, {.residency = Residency::reshard_after_use, .lookahead = 0, .reduce_every = 1}), "gpipe", 2);
  EXPECT_EQ(detail_cells(program, 0, Detail::stages_only),
            "0UNSHARD 0F0 0SEND_F0 0RESHARD 0UNSHARD 0F1 0SEND_F1 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD "
            "0UNSHARD 0RECV_B1 0B1 0REDUCE_GRAD 0RESHARD GRAD_NORM STEP");
  EXPECT_EQ(detail_cells(program, 1, Detail::stages_only),
            "1UNSHARD 1RECV_F0 1F0 1RESHARD 1UNSHARD 1RECV_F1 1F1 1B0 1SEND_B0 1REDUCE_GRAD 1RESHARD "
            "1UNSHARD 1B1 1SEND_B1 1REDUCE_GRAD 1RESHARD GRAD_NORM STEP");
}

// With lookahead the stage is never wholly sharded until its last unit is dropped.
TEST(AtDetail, ResidencyRunsFromTheFirstGatherToTheLastReshard) {
  for (Residency residency : {Residency::reshard_after_use, Residency::while_on_stage, Residency::step}) {
    const Program program = compiled(stage_tables(2, 3, {.residency = residency, .lookahead = 1}), "gpipe", 2);
    EXPECT_EQ(detail_cells(program, 0, Detail::stages_only),
              "0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD 0RESHARD GRAD_NORM STEP");
  }
}

TEST(AtDetail, ComputeOnlyIsTheOrder) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 3, 3, 7)) {
      EXPECT_EQ(to_csv(compiled(schedule, input, 4), Detail::compute_only),
                to_csv(ordered(schedule, input), Detail::everything))
          << described(schedule, input);
    }
  }
}

TEST(AtDetail, EverythingChangesNothingAndAStageLevelListStays) {
  const Program program = compiled(stage_tables(2, 2), "1f1b", 3);
  EXPECT_EQ(at_detail(program.ranks[0], Detail::everything), program.ranks[0]);
  const Program plain = bare("1f1b", 2, 3);
  EXPECT_EQ(at_detail(plain.ranks[0], Detail::stages_only), plain.ranks[0]);
  // The same stage action twice is a fault that must stay visible.
  for (const Action& action : {Action{.op = Op::forward, .stage = 0, .microbatch = 0},
                               Action{.op = Op::unshard, .stage = 0}, Action{.op = Op::reduce_gradient, .stage = 0}}) {
    const std::vector<Action> twice(2, action);
    EXPECT_EQ(at_detail(twice, Detail::stages_only), twice);
  }
}

TEST(AtDetail, BytesAreKept) {
  const Program program = compiled(stage_tables(2, 3, {.reduce_every = 2}), "1f1b", 5);
  for (const auto& actions : program.ranks) {
    for (Op op : {Op::unshard, Op::reduce_gradient, Op::send_forward, Op::send_backward}) {
      const auto total = [op](const std::vector<Action>& list) {
        std::int64_t bytes = 0;
        for (const Action& action : list) bytes += action.op == op ? action.bytes : 0;
        return bytes;
      };
      EXPECT_EQ(total(at_detail(actions, Detail::stages_only)), total(actions)) << name_of(op);
    }
  }
}

}  // namespace
}  // namespace weft
