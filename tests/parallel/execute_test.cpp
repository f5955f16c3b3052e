// The observers' view of a list while it runs, and the names of its actions.
#include "parallel/pipeline/execute/execute.h"

#include <gtest/gtest.h>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Log = std::vector<std::string>;

Program small_program() {
  Program program;
  static_cast<ProgramTables&>(program) = schedule_only_tables(1, 3);
  program.segments = {{.name = "blocks.3.mlp", .stage = 2}};
  program.units = {{.name = "blocks.3.experts", .stage = 2}};
  program.ranks = {{{.op = Op::unshard, .stage = 2, .unit = 0, .bytes = 64},
                    {.op = Op::forward, .stage = 2, .microbatch = 5, .segment = 0},
                    {.op = Op::backward, .stage = 2, .microbatch = 5},
                    {.op = Op::backward_weight, .stage = 2, .microbatch = 7, .segment = 0},
                    {.op = Op::send_forward, .stage = 2, .microbatch = 5, .peer = 0},
                    {.op = Op::receive_backward, .stage = 1, .microbatch = 5, .peer = 0},
                    {.op = Op::reduce_gradient, .stage = 2, .unit = 0},
                    {.op = Op::reshard, .stage = 2, .unit = 0},
                    {.op = Op::gradient_norm},
                    {.op = Op::optimizer_step}}};
  return program;
}

class Observer final : public ActionObserver {
 public:
  Observer(Log& log, std::string name) : log_(log), name_(std::move(name)) {}
  void begin(std::size_t action) override { log_.push_back(fmt::format("{} begins {}", name_, action)); }
  void end(std::size_t action) override { log_.push_back(fmt::format("{} ends {}", name_, action)); }

 private:
  Log& log_;
  std::string name_;
};

TEST(Execute, NamesHoldNeitherMicrobatchNorPeer) {
  const Program program = small_program();
  EXPECT_EQ(range_names(program, program.ranks[0]),
            (std::vector<std::string>{"unshard blocks.3.experts", "PP:2F blocks.3.mlp", "PP:2B", "PP:2W blocks.3.mlp",
                                      "PP:2SEND_F", "PP:1RECV_B", "reduce_grad blocks.3.experts",
                                      "reshard blocks.3.experts", "grad_norm", "optimizer"}));
}

TEST(Execute, ObserversSurroundEachAction) {
  Program program = small_program();
  program.ranks[0] = {{.op = Op::gradient_norm}, {.op = Op::optimizer_step}};
  Log log;
  Observer a(log, "a"), b(log, "b");
  ActionObserver* const both[] = {&a, &b};
  execute(
      program, program.ranks[0], [&](const Action& action) { log.emplace_back(name_of(action.op)); }, both);
  EXPECT_EQ(log, (Log{"a begins 0", "b begins 0", "GRAD_NORM", "b ends 0", "a ends 0", "a begins 1", "b begins 1",
                      "STEP", "b ends 1", "a ends 1"}));
}

TEST(Execute, AnActionThatFailsIsNamedAndDoesNotEnd) {
  Program program = small_program();
  program.ranks[0] = {{.op = Op::send_forward, .stage = 2, .microbatch = 5, .peer = 0}, {.op = Op::gradient_norm}};
  Log log;
  Observer observer(log, "a");
  ActionObserver* const observers[] = {&observer};
  try {
    execute(
        program, program.ranks[0], [](const Action&) { fail("the line is cut"); }, observers);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "in 2SEND_F5: the line is cut");
  }
  EXPECT_EQ(log, Log{"a begins 0"});
}

// The word of the standard library would be "std::bad_alloc".
TEST(Execute, AnActionThatFindsNoMemoryIsNamedToo) {
  Program program = small_program();
  program.ranks[0] = {{.op = Op::gradient_norm}};
  try {
    execute(program, program.ranks[0], [](const Action&) { throw std::bad_alloc(); });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_TRUE(std::string(error.what()).starts_with("in GRAD_NORM: out of memory: ")) << error.what();
  }
}

}  // namespace
}  // namespace weft
