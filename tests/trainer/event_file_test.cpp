// Event files: bytes as TensorBoard's own writer makes them, and whole files of a run.
#include "trainer/run/event_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "tests/trainer/event_reading.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// The check value of the polynomial, as catalogues of checksums list it, and those of RFC 3720, B.4.
TEST(EventRecord, HasTheCheckValuesOfCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

// Written by the package tensorboard, 2.20.
TEST(EventRecord, HasTheBytesOfTensorBoardsWriter) {
  EXPECT_EQ(hexadecimal(first_record(1700000000.0)),
            "1800000000000000"
            "a37f4b22"
            "0900000040fc54d941"
            "1a0d627261696e2e4576656e743a32"
            "eced8f9d");
  EXPECT_EQ(hexadecimal(scalar_record(1700000001.5, 10, std::vector<EventScalar>{{"loss", 2.5f}})),
            "1a00000000000000"
            "129bd82d"
            "0900006040fc54d941"
            "100a"
            "2a0d0a0b0a046c6f737315"
            "00002040"
            "4558d687");
}

TEST(EventRecord, HoldsLargeStepsAndLongTags) {
  const std::int64_t step = std::numeric_limits<std::int64_t>::max();
  const std::string tag(300, 't');
  const auto events = read_events(first_record(1.0) + restart_record(2.0, step) +
                                  scalar_record(3.0, step, std::vector<EventScalar>{{tag, -0.5f}, {"b", 2.0f}}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[1].restarts);
  EXPECT_EQ(events[1].step, step);
  EXPECT_EQ(events[2].time, 3.0);
  EXPECT_EQ(events[2].step, step);
  EXPECT_EQ(events[2].scalars, (std::map<std::string, float>{{tag, -0.5f}, {"b", 2.0f}}));
}

TEST(EventScalars, AreWhatAReportedStepTells) {
  StepMetrics step{.step = 4, .loss = 2.0, .gradient_norm = 3.0};
  step.learning_rates = {{{}, 0.25}};
  step.steps = 2;
  step.tokens = 64;
  step.seconds = 4.0;
  step.data_seconds = 0.5;
  step.model_flops = 8e12;
  step.peak_bytes = std::int64_t{3} << 29;
  const auto scalars = [&] {
    std::map<std::string, float> values;
    for (const EventScalar& scalar : event_scalars(step)) {
      EXPECT_TRUE(values.emplace(scalar.tag, scalar.value).second) << scalar.tag;
    }
    return values;
  };
  EXPECT_EQ(scalars(), (std::map<std::string, float>{{"loss", 2.0f},
                                                     {"grad_norm", 3.0f},
                                                     {"lr", 0.25f},
                                                     {"tokens_per_second", 16.0f},
                                                     {"seconds", 2.0f},
                                                     {"data_seconds", 0.25f},
                                                     {"tflops", 2.0f},
                                                     {"memory_gib", 1.5f}}));
  step.learning_rates = {{{UpdateGroup::dense, UpdateGroup::vectors}, 0.25}, {{UpdateGroup::experts}, 0.125}};
  step.peak_flops_per_second = 8e12;
  step.loss_scale = 16.0;
  step.validation = HeldOutLoss{.loss = 0.0, .tokens = 4, .windows = 1, .bytes = 8};
  step.moe = {{.block = 3,
               .auxiliary_loss = 0.5,
               .z_loss = 0.25,
               .max_over_mean = 2.0,
               .entropy = 0.75,
               .unused = 2,
               .dropped = 0.125}};
  const auto more = scalars();
  const std::map<std::string, float> expected = {{"lr/dense", 0.25f},
                                                 {"lr/vectors", 0.25f},
                                                 {"lr/experts", 0.125f},
                                                 {"mfu", 0.25f},
                                                 {"loss_scale", 16.0f},
                                                 {"validation/loss", 0.0f},
                                                 {"validation/perplexity", 1.0f},
                                                 {"validation/bits_per_byte", 0.0f},
                                                 {"moe/block_3/max_over_mean", 2.0f},
                                                 {"moe/block_3/entropy", 0.75f},
                                                 {"moe/block_3/auxiliary_loss", 0.5f},
                                                 {"moe/block_3/z_loss", 0.25f},
                                                 {"moe/block_3/dropped", 0.125f},
                                                 {"moe/block_3/unused", 2.0f}};
  for (const auto& [tag, value] : expected) {
    ASSERT_TRUE(more.contains(tag)) << tag;
    EXPECT_EQ(more.at(tag), value) << tag;
  }
  EXPECT_EQ(more.size(), 7 + expected.size());
}

// A run whose last save failed ends so.
TEST(LinesFile, WritesItsLinesAtItsEndIfThereIsRoomAgain) {
  const TemporaryFolder folder;
  const std::string name = (folder / "lines").string();
  std::ofstream(name).close();
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = usual.rlim_max};
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  std::optional<std::string> told;
  {
    LinesFile lines(name);
    setrlimit(RLIMIT_FSIZE, &none);
    told = lines.append("one\n");
    setrlimit(RLIMIT_FSIZE, &usual);
    EXPECT_EQ(std::filesystem::file_size(name), 0u);
  }
  std::signal(SIGXFSZ, before);
  EXPECT_NE(told.value_or("").find("wait in memory"), std::string::npos);
  EXPECT_EQ(read_file(name), "one\n");
}

TEST(EventFile, OfARunThatGoesOnDropsLaterSteps) {
  const TemporaryFolder folder;
  for (const std::int64_t taken : {0, 6}) {
    EventFile file(folder / "events", taken);
    file.append({.step = taken + 1, .loss = 1.5});
    file.finish();
  }
  std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(folder / "events"), {});
  ASSERT_EQ(files.size(), 2u);
  std::set<std::int64_t> restarts;
  for (const std::filesystem::path& path : files) {
    EXPECT_TRUE(path.filename().string().starts_with(events_prefix)) << path;
    const auto events = read_event_file(path);
    EXPECT_EQ(events.front().version, "brain.Event:2");
    EXPECT_EQ(events.back().scalars.at("loss"), 1.5f);
    EXPECT_EQ(events.size(), events.back().step == 7 ? 3u : 2u);
    for (const ReadEvent& event : events) {
      if (event.restarts) restarts.insert(event.step);
    }
  }
  EXPECT_EQ(restarts, std::set<std::int64_t>{7});
}

}  // namespace
}  // namespace weft
