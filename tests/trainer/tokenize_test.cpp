// Tokenizing that is stopped and called again, and the files that documents are read from.
#include "trainer/data/tokenize.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tokenizer_sample.h"
#include "trainer/data/chat_template.h"
#include "trainer/data/partial_file.h"
#include "trainer/data/token_file.h"

namespace weft {
namespace {

struct Stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Tokenizing : public testing::Test {
 protected:
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 200; ++i) {
      lines += fmt::format("{{\"q\": \"how many? \", \"a\": \"{} and {}\"}}\n", i, std::string(i % 17, 'x'));
      if (i % 20 == 3) lines += "no object\n";
    }
    write_file(folder_ / "pairs.jsonl", lines);
  }
  std::string path(const std::string& name) const { return folder_ / name; }

  // `stop_at`: the call of on_progress that throws; 0: none. Returns the documents that were not encoded again.
  // `calls` counts those of on_progress.
  std::int64_t call(const std::string& prefix, int stop_at,
                    const DocumentRules& rules = {.key = "a", .bad_lines = BadLines::skip, .prompt = "q"}) const {
    DocumentReader documents({path("pairs.jsonl")}, rules);
    TokenizeRequest request{.tokenizer = "byte", .prefix = path(prefix), .losses = true, .kept_bytes = 300};
    std::int64_t resumed = 0;
    calls = 0;
    tokenize(documents, request, [&](const TokenizeProgress& progress) {
      resumed = progress.resumed;
      if (++calls == stop_at) throw Stopped("stopped");
    });
    EXPECT_EQ(documents.skipped(), 10);
    return resumed;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  TemporaryFolder folder_;
  mutable int calls = 0;
};

TEST_F(Tokenizing, GoesOnWhereItWasStopped) {
  EXPECT_EQ(call("whole", 0), 0);
  const int all = calls;
  ASSERT_GT(all, 20);
  int resumed = 0, stops = 0;
  // Batches hold about half of what is kept at once, so that the second call often ends before it keeps a place.
  for (int stop = 5; stop < all - 3; stop += 3, ++stops) {
    const std::string name = fmt::format("x{}", stop);
    EXPECT_THROW(call(name, stop), Stopped);
    EXPECT_FALSE(std::filesystem::exists(path(name + ".bin")));
    // Stopped once more on the way.
    EXPECT_THROW(call(name, 3), Stopped);
    const std::int64_t documents = call(name, 0);
    resumed += documents > 0 ? 1 : 0;
    for (const char* ending : {".bin", ".idx", ".loss"}) {
      EXPECT_EQ(read_file(path(name + ending)), read_file(path(std::string("whole") + ending))) << stop << ending;
    }
  }
  EXPECT_EQ(resumed, stops);
  for (const std::string& name : names()) {
    EXPECT_EQ(name.find("partial"), std::string::npos) << name;
    EXPECT_EQ(name.find("resume"), std::string::npos) << name;
  }
}

// A call that is asked to stop keeps its place, however little it has written.
TEST_F(Tokenizing, KeepsItsPlaceWhereItIsAskedToStop) {
  call("whole", 0);
  const DocumentRules rules{.key = "a", .bad_lines = BadLines::skip, .prompt = "q"};
  std::string lines;
  for (int i = 0; i < 100'000; ++i)
    lines += fmt::format("{{\"q\": \"?\", \"a\": \"{}{}\"}}\n", i, std::string(60, 'y'));
  write_file(folder_ / "many.jsonl", lines);
  for (const int batches : {1, 2, 7}) {
    const std::string name = fmt::format("x{}", batches);
    TokenizeRequest request{.tokenizer = "byte", .prefix = path(name), .losses = true, .kept_bytes = 1 << 20};
    int asked = 0;
    request.stop = [&] { return ++asked == batches; };
    std::int64_t written = 0;
    {
      DocumentReader documents({path("many.jsonl")}, rules);
      EXPECT_FALSE(
          tokenize(documents, request, [&](const TokenizeProgress& progress) { written = progress.documents; }));
    }
    EXPECT_GT(written, 0);
    EXPECT_FALSE(std::filesystem::exists(path(name + ".bin")));
    request.stop = {};
    std::int64_t resumed = 0;
    DocumentReader documents({path("many.jsonl")}, rules);
    const auto facts =
        tokenize(documents, request, [&](const TokenizeProgress& progress) { resumed = progress.resumed; });
    EXPECT_EQ(resumed, written);
    ASSERT_TRUE(facts);
    EXPECT_EQ(facts->documents, 100'000);
    TokenizeRequest at_once{.tokenizer = "byte", .prefix = path(name + "once"), .losses = true};
    DocumentReader again({path("many.jsonl")}, rules);
    tokenize(again, at_once);
    for (const char* ending : {".bin", ".idx", ".loss"}) {
      EXPECT_EQ(read_file(path(name + ending)), read_file(path(name + "once" + ending))) << ending;
    }
  }
  for (const std::string& name : names()) {
    EXPECT_EQ(name.find("partial"), std::string::npos) << name;
    EXPECT_EQ(name.find("resume"), std::string::npos) << name;
  }
}

// Killed between the two files that make a dataset: the same call ends it, and so does one for other work.
TEST_F(Tokenizing, GoesOnAfterADeathBetweenTokensAndIndex) {
  call("whole", 0);
  for (const char* name : {"x", "y"}) {
    call(name, 0);
    std::filesystem::rename(path(name + std::string(".idx")), path(name + std::string(".idx.partial")));
    if (*name == 'y') {
      // While another process ends it, nobody else does.
      PartialFile other(path("y.idx"));
      const auto refusal = refusal_of([&] { call("y", 0); });
      EXPECT_NE(refusal.value_or("").find("is being written by another process"), std::string::npos);
      EXPECT_TRUE(std::filesystem::exists(path("y.bin")));
      other.stay(true);
    }
    call(name, 0);
    for (const char* ending : {".bin", ".idx", ".loss", ".json"}) {
      EXPECT_EQ(read_file(path(name + std::string(ending))), read_file(path(std::string("whole") + ending))) << ending;
    }
  }
  // Without its partial index the tokens are a file of the user.
  std::filesystem::rename(path("x.idx"), path("moved.idx"));
  EXPECT_NE(refusal_of([&] { call("x", 0); }).value_or("").find("a dataset is not overwritten"), std::string::npos);
  for (const std::string& name : names()) EXPECT_EQ(name.find("partial"), std::string::npos) << name;
}

// A call that refuses a line has written the documents before it; one that skips such lines goes on behind them. The
// other way round begins anew, or what was skipped would not be refused.
TEST_F(Tokenizing, GoesOnBehindARefusedLineAndNotBehindSkippedOnes) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += fmt::format("{{\"q\": \"how many? \", \"a\": \"{} of them\"}}\n", i);
  write_file(folder_ / "pairs.jsonl", lines + "no object\n" + lines);
  const DocumentRules skip{.key = "a", .bad_lines = BadLines::skip, .prompt = "q"}, refuse{.key = "a", .prompt = "q"};
  const auto tokens = [&](const std::string& prefix, const DocumentRules& rules) {
    DocumentReader documents({path("pairs.jsonl")}, rules);
    TokenizeRequest request{.tokenizer = "byte", .prefix = path(prefix), .losses = true, .kept_bytes = 300};
    std::int64_t resumed = 0;
    tokenize(documents, request, [&](const TokenizeProgress& progress) {
      resumed = progress.resumed;
      if (prefix == "y" && rules.bad_lines == BadLines::skip && progress.documents > 300) throw Stopped("stopped");
    });
    return resumed;
  };
  EXPECT_EQ(tokens("whole", skip), 0);
  EXPECT_THROW(tokens("x", refuse), Error);
  EXPECT_GT(tokens("x", skip), 100);
  EXPECT_EQ(read_file(path("x.bin")), read_file(path("whole.bin")));
  EXPECT_THROW(tokens("y", skip), Stopped);
  // Nothing is lost by a call that forgets to skip.
  const auto refusal = refusal_of([&] { tokens("y", refuse); });
  EXPECT_NE(refusal.value_or("").find("left out 1 lines of these files: give --bad-lines skip again"),
            std::string::npos)
      << refusal.value_or("accepted");
  DocumentReader documents({path("pairs.jsonl")}, skip);
  std::int64_t resumed = 0;
  tokenize(documents, {.tokenizer = "byte", .prefix = path("y"), .losses = true, .kept_bytes = 300},
           [&](const TokenizeProgress& progress) { resumed = progress.resumed; });
  EXPECT_GT(resumed, 250);
  EXPECT_EQ(read_file(path("y.bin")), read_file(path("whole.bin")));
}

// A call for other work that dies early leaves its bytes, which are no beginning of what an earlier call wrote.
TEST_F(Tokenizing, APlaceOfOtherWorkIsForgotten) {
  EXPECT_THROW(call("x", 9), Stopped);
  EXPECT_TRUE(std::filesystem::exists(path("x.resume.json")));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    DocumentReader documents({path("pairs.jsonl")}, {.key = "q", .bad_lines = BadLines::skip, .prompt = "a"});
    tokenize(documents, {.tokenizer = "byte", .prefix = path("x"), .losses = true, .kept_bytes = 300},
             [](const TokenizeProgress&) { _exit(7); });
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_TRUE(std::filesystem::exists(path("x.bin.partial")));
  EXPECT_FALSE(std::filesystem::exists(path("x.resume.json")));
}

// The index is written last, and may be the first that the disk has no room for.
TEST_F(Tokenizing, NoFileHasItsNameBeforeAllAreWritten) {
  std::filesystem::create_directory(path("pairs.idx.partial"));
  EXPECT_THROW(call("pairs", 0), Error);
  for (const char* ending : {".bin", ".idx", ".json", ".loss"}) {
    EXPECT_FALSE(std::filesystem::exists(path(std::string("pairs") + ending))) << ending;
  }
}

TEST_F(Tokenizing, BeginsAnewForOtherWork) {
  call("whole", 0);
  EXPECT_THROW(call("x", 9), Stopped);
  EXPECT_TRUE(std::filesystem::exists(path("x.resume.json")));
  // Other rules, a changed file, a file that lost its end, and a place that is no place.
  EXPECT_THROW(call("x", 9, {.key = "q", .bad_lines = BadLines::skip, .prompt = "a"}), Stopped);
  EXPECT_EQ(call("x", 0), 0);
  EXPECT_EQ(read_file(path("x.bin")), read_file(path("whole.bin")));

  EXPECT_THROW(call("y", 9), Stopped);
  std::filesystem::last_write_time(path("pairs.jsonl"), std::filesystem::file_time_type::clock::now());
  EXPECT_EQ(call("y", 0), 0);
  EXPECT_THROW(call("z", 9), Stopped);
  std::filesystem::resize_file(path("z.loss.partial"), 3);
  EXPECT_EQ(call("z", 0), 0);
  EXPECT_EQ(read_file(path("z.loss")), read_file(path("whole.loss")));
  for (const char* place : {"", "[]", "{}", "{\"work\": 1}", "nonsense"}) {
    EXPECT_THROW(call("w", 9), Stopped);
    write_file(path("w.resume.json"), place);
    EXPECT_EQ(call("w", 0), 0) << place;
    for (const char* ending : {".bin", ".idx", ".loss", ".json"})
      std::filesystem::remove(path(std::string("w") + ending));
  }
}

TEST_F(Tokenizing, ADatasetIsThatOfItsFacts) {
  call("x", 0);
  EXPECT_TRUE(TokenFile(path("x")).has_losses());
  const auto refusal = [&] { return refusal_of([&] { TokenFile(path("x")); }).value_or("accepted"); };
  std::filesystem::rename(path("x.loss"), path("elsewhere"));
  EXPECT_NE(refusal().find("x.loss\": no such file"), std::string::npos) << refusal();
  std::filesystem::rename(path("elsewhere"), path("x.loss"));
  EXPECT_EQ(refusal(), "accepted");
  TokenFacts facts = *find_token_facts(path("x"));
  ++facts.tokens;
  write_file(path("x.json"), format_token_facts(facts));
  EXPECT_NE(refusal().find("belongs to another dataset"), std::string::npos) << refusal();
}

TEST_F(Tokenizing, RefusesToWriteOverWhatItReads) {
  write_file(folder_ / "data.json", "{\"text\": \"weft\"}\n");
  DocumentReader documents({path("data.json")}, {});
  const auto why = refusal_of([&] { tokenize(documents, {.tokenizer = "byte", .prefix = path("data")}); });
  EXPECT_NE(why.value_or("").find("data.json\", which is a file to read"), std::string::npos) << why.value_or("");
  EXPECT_EQ(read_file(path("data.json")), "{\"text\": \"weft\"}\n");
}

TEST_F(Tokenizing, RefusesLossesThatCountNowhere) {
  write_file(folder_ / "none.jsonl", "{\"q\": \"how many?\", \"a\": \"\"}\n");
  DocumentReader documents({path("none.jsonl")}, {.key = "a", .prompt = "q"});
  const auto why =
      refusal_of([&] { tokenize(documents, {.tokenizer = "byte", .prefix = path("none"), .losses = true}); });
  EXPECT_NE(why.value_or("").find("losses count for none of the 9 tokens"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("none.json")));
}

// Lines of all sizes, bad ones among them, plain and packed, in several batches.
TEST_F(Tokenizing, ThreadsChangeNothing) {
  std::string lines, text;
  std::mt19937 random(5);
  int bad = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string document = fmt::format("{} {}\n", i, std::string(random() % (i % 50 == 0 ? 40000 : 400), 'x'));
    lines += nlohmann::json{{"text", document}}.dump() + (i % 3 == 0 ? "\r\n" : "\n");
    text += document;
    if (i % 7 == 3) lines += "\n";
    if (i % 100 != 99) continue;
    lines += "{\"text\": ]}\n";
    ++bad;
  }
  write_file(folder_ / "all.jsonl", lines);
  std::vector<std::string> told;
  for (const std::size_t threads : {1, 2, 7}) {
    std::vector<std::string> faults;
    DocumentReader documents({path("all.jsonl"), path("all.jsonl")}, {.bad_lines = BadLines::skip},
                             [&](const std::string& why) { faults.push_back(why); });
    const std::string prefix = path(fmt::format("t{}", threads));
    const auto facts =
        tokenize(documents, {.tokenizer = "byte", .prefix = prefix, .threads = threads, .kept_bytes = 700'000});
    ASSERT_TRUE(facts);
    EXPECT_EQ(facts->documents, 6000);
    EXPECT_EQ(documents.skipped(), 2 * bad);
    const TokenFile file(prefix);
    ASSERT_EQ(file.tokens(), 2 * std::ssize(text));
    std::vector<std::int32_t> ids(2 * text.size());
    file.read(0, ids);
    EXPECT_TRUE(std::ranges::equal(ids, text + text));
    if (threads == 1) told = faults;
    EXPECT_EQ(faults, told);
    // The first bad line is the one told, whatever thread finds one first.
    DocumentReader strict({path("all.jsonl")}, {});
    const auto why = refusal_of([&] {
      tokenize(strict, {.tokenizer = "byte", .prefix = path("strict"), .threads = threads, .kept_bytes = 700'000});
    });
    EXPECT_EQ(why.value_or("").find(told.front()), 0u) << why.value_or("");
  }
  const auto first_bad = std::count(lines.begin(), lines.begin() + std::ptrdiff_t(lines.find("]}")), '\n') + 1;
  ASSERT_EQ(std::ssize(told), 2 * bad);
  EXPECT_EQ(told.front(), fmt::format("\"{}\":{}:10: no JSON", path("all.jsonl"), first_bad));
}

// `tokenizers` encodes "ab" as its begin token, a and b by this post-processor. A document without a text has no begin.
TEST_F(Tokenizing, DocumentsBeginAsTheFileOfTheTokenizerSays) {
  nlohmann::json json = tokenizer_test::sample_json();
  const std::size_t begin = json["model"]["vocab"].size();
  json["added_tokens"].push_back({{"id", begin},
                                  {"content", "<s>"},
                                  {"special", true},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false}});
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", nlohmann::json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {begin}}, {"tokens", {"<s>"}}}}}}};
  write_file(folder_ / "tok.json", json.dump());
  write_file(folder_ / "two.jsonl", "{\"text\": \"weft\"}\n{\"text\": \"\"}\n{\"text\": \"warp\"}\n");
  const auto tokenizer = open_tokenizer(path("tok.json"));
  for (const bool begins : {true, false}) {
    const std::string prefix = path(begins ? "with" : "without");
    DocumentReader documents({path("two.jsonl")}, {});
    std::int64_t empty = -1;
    tokenize(documents, {.tokenizer = path("tok.json"), .prefix = prefix, .begin_documents = begins},
             [&](const TokenizeProgress& progress) { empty = progress.empty; });
    EXPECT_EQ(empty, 1);
    const TokenFile file(prefix);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
    file.read(0, ids);
    EXPECT_EQ(tokenizer->decode(ids), begins ? "<s>weft<s>warp" : "weftwarp");
  }
}

// What data.train refuses by its first bytes is no text here either, packed or not; all files are told at once.
TEST(DocumentFiles, AreTextsOrJsonLines) {
  using std::string_view_literals::operator""sv;
  const TemporaryFolder folder;
  const auto refusal = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(folder / name);
    return refusal_of([&] { DocumentReader(paths, {}); }).value_or("accepted");
  };
  const std::pair<std::string_view, const char*> cases[] = {
      {"BZh91AY&SY"sv, "bzip2"},
      {"\xfd\x37\x7a\x58\x5a\x00"sv, "xz"},
      {"PAR1\x15\x04"sv, "Parquet"},
      {"\xff\xfe"
       "a\0b\0"sv,
       "UTF-16"},
      {"a\0b\0"sv, "byte 1 is NUL"},
      {"{\"text\": 1}\n"sv, "by its name a text"},
  };
  std::vector<std::string> names;
  for (const auto& [bytes, part] : cases) {
    names.push_back(fmt::format("{}.txt", names.size()));
    write_file(folder / names.back(), bytes);
    const std::string why = refusal({names.back()});
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
  const std::string all = refusal(names);
  for (const auto& [bytes, part] : cases) EXPECT_NE(all.find(part), std::string::npos) << all;
  for (const char* name : {"a.JSONL", "a.NdJson", "a.json"}) {
    write_file(folder / name, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    DocumentReader documents({folder / name}, {});
    EXPECT_EQ(documents.next()->parts.front().text, "one") << name;
    EXPECT_EQ(documents.next()->parts.front().text, "two") << name;
  }
  // A member of gzip with one stored block: a text with a zero byte.
  write_file(folder / "b.gz",
             "\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x02\0\xfd\xff"
             "a\0"
             "\x19\x48\x3f\x3d\x02\0\0\0"sv);
  EXPECT_NE(refusal({"b.gz"}).find("byte 1 is NUL"), std::string::npos) << refusal({"b.gz"});
  // A long first line that is no object, and one that is.
  write_file(folder / "c.txt", "{" + std::string(100'000, 'x') + "\nend");
  EXPECT_EQ(refusal({"c.txt"}), "accepted");
  write_file(folder / "c.txt", "{\"a\": \"" + std::string(100'000, 'x') + "\"}\nend");
  EXPECT_NE(refusal({"c.txt"}).find("JSON lines"), std::string::npos);
}

}  // namespace
}  // namespace weft
