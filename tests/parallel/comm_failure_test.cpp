// A failing, missing or confused rank ends the run with an error that names it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "parallel/comm/local.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What run_local_ranks reported; an empty message means that the run went well.
struct Report {
  std::string message;
  ErrorKind kind = ErrorKind::request;
  double seconds = 0;
};

Report report_of(int world, const LocalRank& rank_main, milliseconds timeout = milliseconds(60'000)) {
  const auto begin = Clock::now();
  Report report;
  try {
    run_local_ranks(world, rank_main, timeout);
  } catch (const Error& error) {
    report = {error.what(), error.kind(), 0};
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return report;
}

void expect_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << "\nin: " << message;
}

// A buffer whose contents do not matter.
struct Storage {
  std::vector<float> elements = std::vector<float>(4096);
  TensorView view(std::int64_t n, DType dtype = DType::float32) { return {elements.data(), dtype, n, 1}; }
};

TEST(Failure, OfOneRankWakesAllOthersAndIsTheOneReported) {
  const Report report = report_of(8, [](Communicator& world) {
    Storage data;
    world.all_reduce(data.view(100));
    if (world.rank() == 5) {
      std::this_thread::sleep_for(milliseconds(100));
      throw Error(ErrorKind::request, "the fifth one fell");
    }
    world.all_reduce(data.view(100));
  });
  EXPECT_EQ(report.message, "rank 5: the fifth one fell");
  EXPECT_EQ(report.kind, ErrorKind::request);
  EXPECT_LT(report.seconds, 2.0);
}

TEST(Failure, OfMemoryIsSaidInWords) {
  const Report report = report_of(2, [](Communicator& world) {
    if (world.rank() == 1) throw std::bad_alloc();
    world.barrier();
  });
  EXPECT_EQ(report.message, "rank 1: out of memory: this needs more than the process is given (free, ulimit -v)");
  EXPECT_EQ(report.kind, ErrorKind::failure);
}

TEST(Failure, ReachesRanksOfOtherGroupsAndThoseThatWaitForMessages) {
  const Report report = report_of(4, [](Communicator& world) {
    const auto pair = world.split(world.rank() / 2, 0, "pair");
    Storage data;
    if (world.rank() == 3) throw std::runtime_error("out of luck");
    if (world.rank() == 2) pair->barrier();
    // These two never need rank 3.
    while (true) {
      if (pair->rank() == 0) pair->send(data.view(10), 1);
      if (pair->rank() == 1) pair->receive(data.view(10), 0);
    }
  });
  EXPECT_EQ(report.message, "rank 3: out of luck");
  EXPECT_EQ(report.kind, ErrorKind::failure);
  EXPECT_LT(report.seconds, 2.0);
}

TEST(Failure, OfAnyTypeEndsTheRun) {
  const Report report = report_of(2, [](Communicator& world) {
    if (world.rank() == 1) throw 42;
    world.barrier();
  });
  expect_says(report.message, {"rank 1: ", "not a std::exception"});
}

TEST(Failure, AtAnyMomentEndsAllRanksThatAreBusyWithEachOther) {
  for (int attempt = 0; attempt < 60; ++attempt) {
    const Report report = report_of(4, [&](Communicator& world) {
      const auto trio = world.split(world.rank() == 3 ? 1 : 0, 0, "trio");
      if (world.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::microseconds(300 * attempt));
        fail("enough");
      }
      constexpr std::int64_t n = 300'000;
      std::vector<float> data(n), other(n);
      const TensorView one = view_of(std::span(data), n, 1), two = view_of(std::span(other), n, 1);
      while (true) {
        trio->all_reduce(one);
        trio->send(one, (trio->rank() + 1) % 3);
        trio->receive(two, (trio->rank() + 2) % 3);
        trio->broadcast(two, 1);
      }
    });
    ASSERT_EQ(report.message, "rank 3: enough");
  }
}

// Rank 2 fails while rank 1 copies a large message (fresh pages make that slow). Rank 0, woken from its barrier,
// spoils the storage as it leaves.
TEST(Failure, LetsAReceiveThatHasBegunReadTheWholeMessage) {
  constexpr std::int64_t n = 40'000'000;
  std::atomic<bool> begun{false};
  const Report report = report_of(3, [&](Communicator& world) {
    struct Spoiled {
      std::vector<float> elements;
      ~Spoiled() { std::fill(elements.rbegin(), elements.rend(), 2.0F); }
    };
    if (world.rank() == 0) {
      Spoiled message{std::vector<float>(n, 1.0F)};
      world.send(view_of(std::span(message.elements), n, 1), 1);
      world.barrier();
    } else if (world.rank() == 1) {
      const auto copy = std::make_unique_for_overwrite<float[]>(n);
      std::this_thread::sleep_for(milliseconds(200));
      begun = true;
      world.receive(TensorView(copy.get(), DType::float32, n, 1), 0);
      EXPECT_EQ(std::count(copy.get(), copy.get() + n, 1.0F), n);
    } else {
      while (!begun) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(3));
      fail("enough");
    }
  });
  EXPECT_EQ(report.message, "rank 2: enough");
}

TEST(Disagreement, OverTheOperationIsReportedOnAllRanks) {
  std::array<std::string, 3> messages;
  const Report report = report_of(3, [&](Communicator& world) {
    const auto group = world.split(0, 0, "tp");
    Storage data, other;
    try {
      if (group->rank() == 1) {
        group->all_reduce(data.view(32));
      } else {
        group->all_gather(data.view(16), other.view(48));
      }
    } catch (const Error& error) {
      messages[world.rank()] = error.what();
    }
  });
  EXPECT_EQ(report.message, "");
  for (const std::string& message : messages) {
    EXPECT_EQ(
        message,
        "group tp: rank 0 is in all_gather of 192 bytes float32 while rank 1 is in all_reduce of 128 bytes float32");
  }
}

TEST(Disagreement, IsFoundByAllBeforeAnyRankTakesItsCountsAway) {
  std::array<std::string, 8> messages;
  run_local_ranks(8, [&](Communicator& world) {
    for (int round = 0; round < 300; ++round) {
      try {
        // Freed as soon as the error leaves this block.
        std::vector<std::int64_t> counts(8, 2);
        if (world.rank() == 7) counts = {1, 2, 2, 2, 2, 2, 3, 2};
        std::vector<float> input(16), output(static_cast<std::size_t>(counts[world.rank()]));
        world.reduce_scatter(view_of(std::span(input), 16, 1), view_of(std::span(output), counts[world.rank()], 1),
                             counts);
      } catch (const Error& error) {
        messages[world.rank()] = error.what();
      }
      ASSERT_NE(messages[world.rank()].find("by counts 2,2,2,2,2,2,2,2 while rank 7"), std::string::npos)
          << messages[world.rank()];
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
}

// The error of a run of two ranks in which rank 1 makes the second call.
template <typename First, typename Second>
std::string two_calls(const First& first, const Second& second) {
  return report_of(2,
                   [&](Communicator& world) {
                     if (world.rank() == 0) {
                       first(world);
                     } else {
                       second(world);
                     }
                   })
      .message;
}

TEST(Disagreement, OverSizesDtypesRootsCountsAndReductionsIsReported) {
  Storage a, b;
  const std::vector<std::int64_t> one_three = {1, 3}, two_two = {2, 2};
  expect_says(
      two_calls([&](Communicator& w) { w.all_reduce(a.view(4)); }, [&](Communicator& w) { w.all_reduce(b.view(5)); }),
      {"rank 0 is in all_reduce of 16 bytes float32", "rank 1 is in all_reduce of 20 bytes float32"});
  expect_says(two_calls([&](Communicator& w) { w.all_reduce(a.view(4)); },
                        [&](Communicator& w) { w.all_reduce(b.view(4, DType::int32)); }),
              {"16 bytes float32", "16 bytes int32"});
  expect_says(two_calls([&](Communicator& w) { w.all_reduce(a.view(4)); },
                        [&](Communicator& w) { w.all_reduce(b.view(4), Reduce::max); }),
              {"rank 1 is in all_reduce of 16 bytes float32 (maximum)"});
  expect_says(two_calls([&](Communicator& w) { w.broadcast(a.view(4), 0); },
                        [&](Communicator& w) { w.broadcast(b.view(4), 1); }),
              {"from rank 0", "from rank 1"});
  Storage c, d;
  expect_says(two_calls([&](Communicator& w) { w.reduce_scatter(a.view(4), c.view(1), one_three); },
                        [&](Communicator& w) { w.reduce_scatter(b.view(4), d.view(2), two_two); }),
              {"by counts 1,3", "by counts 2,2"});
  expect_says(two_calls([&](Communicator& w) { w.all_to_all(a.view(4), one_three, c.view(4), two_two); },
                        [&](Communicator& w) { w.all_to_all(b.view(4), two_two, d.view(4), two_two); }),
              {"rank 0 sends 1 elements to rank 0, which expects 2"});
  expect_says(two_calls([&](Communicator& w) { w.split(0, 0, "tp"); }, [&](Communicator& w) { w.split(0, 0, "cp"); }),
              {"in split", "'tp'", "'cp'"});
}

TEST(Disagreement, BetweenASendAndItsReceiveEndsBoth) {
  for (const DType dtype : {DType::float32, DType::int32}) {
    std::array<std::string, 2> messages;
    report_of(2, [&](Communicator& world) {
      Storage data;
      try {
        if (world.rank() == 0) {
          world.send(data.view(4), 1);
          world.flush();
        } else {
          world.receive(data.view(dtype == DType::float32 ? 5 : 4, dtype), 0);
        }
      } catch (const Error& error) {
        messages[world.rank()] = error.what();
      }
    });
    for (const std::string& message : messages) {
      expect_says(message, {"rank 0 is in send to rank 1 of 16 bytes float32",
                            dtype == DType::float32 ? "of 20 bytes float32" : "of 16 bytes int32"});
    }
  }
}

TEST(WrongCall, IsRefusedBeforeAnythingIsSentOrCounted) {
  const Report report = report_of(2, [](Communicator& world) {
    Storage a, b;
    const auto refusal = [&](const auto& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.what();
      }
      return "accepted";
    };
    const std::vector<std::int64_t> negative = {-1, 5}, three = {1, 1, 2}, short_sum = {1, 2};
    expect_says(refusal([&] { world.all_gather(a.view(2), b.view(5)); }), {"group world", "all_gather", "5 elements"});
    expect_says(refusal([&] { world.all_gather(a.view(3), b.view(4)); }), {"part is 2 elements", "has 3"});
    expect_says(refusal([&] { world.all_gather(a.view(2, DType::int32), b.view(4)); }), {"int32", "float32"});
    expect_says(refusal([&] { world.all_gather(b.view(4).rows_from(1, 2), b.view(4)); }), {"overlaps"});
    expect_says(refusal([&] { world.reduce_scatter(a.view(4), a.view(4).rows_from(1, 2)); }), {"overlaps"});
    expect_says(refusal([&] { world.reduce_scatter(a.view(4), b.view(2), negative); }), {"counts[0] is -1"});
    expect_says(refusal([&] { world.reduce_scatter(a.view(4), b.view(2), three); }), {"3 entries for 2 ranks"});
    expect_says(refusal([&] { world.all_to_all(a.view(4), short_sum, b.view(3), short_sum); }),
                {"send_counts sums to 3 elements, but the tensor has 4"});
    expect_says(refusal([&] { world.broadcast(a.view(4), 2); }), {"rank 2 is not one of the 2 ranks"});
    expect_says(refusal([&] { world.send(a.view(4), world.rank()); }), {"to itself"});
    expect_says(refusal([&] { world.receive(a.view(4), -1); }), {"rank -1"});
    EXPECT_TRUE(world.counters().empty());
  });
  EXPECT_EQ(report.message, "");
}

TEST(WrongCall, ARunWithoutRanksIsRefused) {
  const Report report = report_of(0, [](Communicator&) {});
  expect_says(report.message, {"at least one rank", "0"});
}

TEST(Timeout, NamesGroupOperationAndTheRanksThatDidNotCome) {
  const Report report = report_of(
      4,
      [](Communicator& world) {
        const auto pair = world.split(world.rank() / 2, 0, "pair");
        Storage data;
        if (world.rank() == 3) std::this_thread::sleep_for(milliseconds(500));
        pair->all_reduce(data.view(8));
      },
      milliseconds(100));
  expect_says(report.message,
              {"rank 2: group pair: rank 0 (world rank 2) waited 100 ms in all_reduce of 32 bytes float32",
               "for rank 1 (world rank 3), which did not come"});
  EXPECT_LT(report.seconds, 2.0);
}

TEST(Timeout, CoversReceiveAndFlush) {
  const auto late = [](const auto& early_rank) {
    return report_of(
               2,
               [&](Communicator& world) {
                 Storage data;
                 if (world.rank() == 0) return early_rank(world, data);
                 std::this_thread::sleep_for(milliseconds(400));
                 world.barrier();
               },
               milliseconds(100))
        .message;
  };
  expect_says(late([](Communicator& world, Storage& data) { world.receive(data.view(4), 1); }),
              {"rank 0: ", "receive from rank 1 of 16 bytes float32 for rank 1, which did not come"});
  expect_says(late([](Communicator& world, Storage& data) {
                world.send(data.view(4), 1);
                world.flush();
              }),
              {"rank 0: ", "flush", "rank 1"});
}

TEST(FinishedRank, IsNamedByThoseWhoWaitForIt) {
  const Report collective = report_of(3, [](Communicator& world) {
    if (world.rank() != 2) world.barrier();
  });
  expect_says(collective.message, {"waits in barrier for rank 2, which has already finished"});
  EXPECT_LT(collective.seconds, 2.0);
  const Report message = report_of(2, [](Communicator& world) {
    Storage data;
    if (world.rank() == 0) world.receive(data.view(1), 1);
  });
  expect_says(message.message, {"rank 0: group world: rank 0 waits in receive from rank 1", "already finished"});
  EXPECT_LT(message.seconds, 2.0);
}

TEST(FinishedRank, TakesItsUnreadMessageBack) {
  const Report report = report_of(2, [](Communicator& world) {
    Storage data;
    if (world.rank() == 0) return world.send(data.view(1), 1);
    std::this_thread::sleep_for(milliseconds(100));
    world.receive(data.view(1), 0);
  });
  expect_says(report.message, {"rank 1: ", "rank 0 has ended and taken its message back"});
}

// A failing rank takes its messages back while it unwinds, before its error is known. The peer that misses the message
// must not be taken for the one that failed first.
TEST(FailingRank, IsReportedBeforeThePeerThatMissesItsMessage) {
  struct SlowToUnwind {
    milliseconds time;
    ~SlowToUnwind() { std::this_thread::sleep_for(time); }
  };
  const Report report = report_of(2, [](Communicator& world) {
    Storage data;
    const SlowToUnwind slow{milliseconds(world.rank() == 0 ? 300 : 0)};
    const auto pair = world.split(0, world.rank(), "pair");
    if (world.rank() == 0) {
      pair->send(data.view(1), 1);
      fail("the cause");
    }
    std::this_thread::sleep_for(milliseconds(100));
    pair->receive(data.view(1), 0);
  });
  expect_says(report.message, {"rank 0: the cause"});
}

// Spinning for 300 ms with eight ranks on two cores would cost each about 75 ms; sleeping costs a wake-up per 20 ms.
TEST(Waiting, CostsLittleProcessorTime) {
  run_local_ranks(8, [](Communicator& world) {
    const auto processor_seconds = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    world.barrier();
    const double begin = processor_seconds();
    if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(300));
    world.barrier();
    EXPECT_LT(processor_seconds() - begin, 0.06);
    EXPECT_GE(world.clock().seconds(Phase::communication), world.rank() == 0 ? 0.0 : 0.25);
  });
}

}  // namespace
}  // namespace weft
