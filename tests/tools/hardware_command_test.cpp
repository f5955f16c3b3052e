// `weft hardware`: all figures of the library, each with its source.
#include <nlohmann/json.hpp>

#include "tests/tools/program.h"
#include "trainer/costs/hardware.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using HardwareCommand = ProgramTest;

void expect_figures(const Json& found, const Hardware& hardware) {
  EXPECT_EQ(found["name"], hardware.name);
  EXPECT_EQ(found["aliases"].size(), aliases_of(hardware.name).size());
  for (const NamedFigure& entry : figures_of(hardware)) {
    const Json& figure = found[std::string(entry.name)];
    ASSERT_EQ(figure.is_null(), !entry.figure) << entry.name;
    if (!entry.figure) continue;
    EXPECT_EQ(figure["value"].get<double>(), entry.figure->value) << entry.name;
    EXPECT_EQ(figure["source"], entry.figure->source) << entry.name;
    EXPECT_EQ(figure["unit"], entry.unit) << entry.name;
  }
}

TEST_F(HardwareCommand, PrintsJson) {
  const auto all = weft("hardware --json");
  ASSERT_EQ(all.exit_code, 0) << all.messages;
  const Json cards = Json::parse(all.output)["hardware"];
  ASSERT_EQ(cards.size(), known_hardware().size());
  for (std::size_t i = 0; i < cards.size(); ++i) expect_figures(cards[i], known_hardware()[i]);
  const auto one = weft("hardware a100 --json");
  ASSERT_EQ(one.exit_code, 0) << one.messages;
  const Json named = Json::parse(one.output)["hardware"];
  ASSERT_EQ(named.size(), 1u);
  expect_figures(named[0], find_hardware("a100-80gb"));
}

TEST_F(HardwareCommand, PrintsTablesWithSources) {
  const auto one = weft("hardware h100-80gb");
  ASSERT_EQ(one.exit_code, 0) << one.messages;
  EXPECT_TRUE(one.output.starts_with("h100: ")) << one.output;
  EXPECT_NE(one.output.find("80.00 GiB = 85899345920 bytes"), std::string::npos) << one.output;
  const auto all = weft("hardware");
  ASSERT_EQ(all.exit_code, 0) << all.messages;
  for (const Hardware& hardware : known_hardware()) {
    for (const NamedFigure& entry : figures_of(hardware)) {
      if (!entry.figure) continue;
      EXPECT_NE(all.output.find(entry.figure->source), std::string::npos) << entry.figure->source;
    }
  }
}

TEST_F(HardwareCommand, RefusesWhatItDoesNotKnow) {
  const auto result = weft("hardware h10");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  EXPECT_NE(result.messages.find("hardware h10 is not known (did you mean h100?); known are h100,"), std::string::npos)
      << result.messages;
}

}  // namespace
}  // namespace weft
