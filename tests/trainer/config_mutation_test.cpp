// Damaged files must be read or refused, never crash the program or leak another exception.
#include <gtest/gtest.h>

#include <exception>
#include <random>

#include "tests/trainer/config_sample.h"
#include "trainer/config/config_messages.h"

namespace weft {
namespace {

std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  const std::string symbols = "[]{}=\"'.,#\n\t -+_0123456789abex\x01\x7f\xc3\xff\\";
  const std::string pieces[] = {"-1",
                                "0",
                                "9223372036854775807",
                                "99999999999999999999",
                                "nan",
                                "-inf",
                                "[[",
                                "]]",
                                "{}",
                                "[1, [2]]",
                                "\"\"",
                                "1979-05-27",
                                "0x7fffffff",
                                "include = [\"run.toml\"]\n"};
  const std::size_t changes = 1 + below(2);
  for (std::size_t i = 0; i < changes && !text.empty(); ++i) {
    const std::size_t at = below(text.size());
    switch (below(8)) {
      case 0:
        text[at] = symbols[below(symbols.size())];
        break;
      case 1:
        text.insert(at, 1, symbols[below(symbols.size())]);
        break;
      case 2:
        text.erase(at, 1 + below(12));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(60)));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.insert(text.rfind('\n', at) + 1, "# a comment\n");
        break;
      case 6: {  // another digit
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text[digit] = static_cast<char>('0' + below(10));
        break;
      }
      case 7: {  // another value behind some equals sign
        const std::size_t equals = text.find('=', at);
        if (equals == std::string::npos) break;
        const std::size_t end = text.find('\n', equals);
        text.replace(equals + 1, end == std::string::npos ? end : end - equals - 1, pieces[below(std::size(pieces))]);
        break;
      }
    }
  }
  return text;
}

TEST(ConfigMutations, AreReadOrRefusedCleanly) {
  int accepted = 0, refused = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const std::string text = mutated(config_sample::complete(), random);
    try {
      const ResolvedConfig first = read_config_text(text, "run.toml");
      EXPECT_EQ(read_config_text(first.toml, "again.toml").config, first.config) << text;
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request) << "seed " << seed << "\n" << error.what();
      EXPECT_NE(std::string(error.what()).find("error: "), std::string::npos) << "seed " << seed;
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << seed << ": " << error.what();
    }
  }
  // Both paths must be walked for the test to mean something.
  EXPECT_GT(accepted, 10);
  EXPECT_GT(refused, 50);
}

TEST(ConfigMutations, OverridesAreReadOrRefusedCleanly) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    try {
      read_config_text(config_sample::complete(), "run.toml", {mutated("--optimizer.betas=[0.9, 0.95]", random)});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request) << "seed " << seed;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "seed " << seed << ": " << error.what();
    }
  }
}

TEST(EditDistance, AgreesWithCountsByHand) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("hiden", "hidden"), 1u);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2u);
}

}  // namespace
}  // namespace weft
