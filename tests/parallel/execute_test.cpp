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

// Writes what it is told to do, and fails where it is told to send.
class Writer : public ActionHandler {
 public:
  explicit Writer(Log& log, bool fails = false) : log_(log), fails_(fails) {}
  void forward(int, int, ComputePart) override { log_.push_back("F"); }
  void backward_input(int, int, ComputePart) override { log_.push_back("I"); }
  void backward_weight(int, int) override { log_.push_back("W"); }
  void recompute(int, int, ComputePart) override { log_.push_back("R"); }
  void exchange_rows(int, int) override { log_.push_back("rows"); }
  void offload(int, int) override { log_.push_back("offload"); }
  void wait_offload(int, int) override { log_.push_back("wait_offload"); }
  void reload(int, int) override { log_.push_back("reload"); }
  void unshard(Op, int) override { log_.push_back("unshard"); }
  void reshard(Op, int) override { log_.push_back("reshard"); }
  void scatter_gradient(int) override { log_.push_back("scatter"); }
  void reduce_gradient(int) override { log_.push_back("reduce"); }
  void tie_gradient(int) override { log_.push_back("tie"); }
  void wait_reduction(int) override { log_.push_back("wait"); }
  void send(Lane, int, int, int) override {
    if (fails_) fail("the line is cut");
    log_.push_back("send");
  }
  void receive(Lane, int, int, int) override { log_.push_back("receive"); }
  void gradient_norm() override { log_.push_back("norm"); }
  void optimizer_step() override { log_.push_back("step"); }

 private:
  Log& log_;
  bool fails_;
};

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
  Writer writer(log);
  Observer a(log, "a"), b(log, "b");
  ActionObserver* const both[] = {&a, &b};
  execute(program, program.ranks[0], writer, both);
  EXPECT_EQ(log, (Log{"a begins 0", "b begins 0", "norm", "b ends 0", "a ends 0", "a begins 1", "b begins 1", "step",
                      "b ends 1", "a ends 1"}));
}

TEST(Execute, AnActionThatFailsIsNamedAndDoesNotEnd) {
  Program program = small_program();
  program.ranks[0] = {{.op = Op::send_forward, .stage = 2, .microbatch = 5, .peer = 0}, {.op = Op::gradient_norm}};
  Log log;
  Writer writer(log, true);
  Observer observer(log, "a");
  ActionObserver* const observers[] = {&observer};
  try {
    execute(program, program.ranks[0], writer, observers);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "in 2SEND_F5: the line is cut");
  }
  EXPECT_EQ(log, Log{"a begins 0"});
}

// The word of the standard library would be "std::bad_alloc".
TEST(Execute, AnActionThatFindsNoMemoryIsNamedToo) {
  class Full final : public Writer {
   public:
    using Writer::Writer;
    void gradient_norm() override { throw std::bad_alloc(); }
  };
  Program program = small_program();
  program.ranks[0] = {{.op = Op::gradient_norm}};
  Log log;
  Full full(log);
  try {
    execute(program, program.ranks[0], full, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_TRUE(std::string(error.what()).starts_with("in GRAD_NORM: out of memory: ")) << error.what();
  }
}

}  // namespace
}  // namespace weft
