// Orders of samples over several files: weights, parts of a split, and Megatron's tables as they read files.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/trainer/byte_vocabulary.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/data/indexed_writer.h"
#include "trainer/data/text_windows.h"

namespace weft {
namespace {

using Ids = std::vector<std::int32_t>;

TextVocabulary ids_below(std::int64_t size) {
  return {nullptr, "none", size};
}

class SampleOrders : public testing::Test {
 protected:
  // Documents of these lengths, of tokens first, first + 1, ...
  DataSource dataset(const std::string& name, const std::vector<int>& lengths, std::int32_t first,
                     std::optional<double> weight = {}) {
    IndexedWriter writer((folder_ / name).string(), 10000);
    for (const int length : lengths) {
      Ids ids(static_cast<std::size_t>(length));
      std::iota(ids.begin(), ids.end(), first);
      first += length;
      writer.add_document(ids);
    }
    writer.finish();
    return {(folder_ / name).string(), weight};
  }
  // The tokens of a sample and the target of the last.
  static Ids read(const TokenDataset& data, std::int64_t sample, std::int64_t length) {
    Ids tokens(static_cast<std::size_t>(length)), targets(tokens.size());
    data.read(sample, {tokens, targets, {}});
    EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.end(), targets.begin()));
    tokens.push_back(targets.back());
    return tokens;
  }
  static std::string refusal(const DataRequest& request) {
    try {
      TokenDataset(request, ids_below(10000));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "accepted";
  }

  TemporaryFolder folder_;
};

TEST(WeightedDraw, KeepsEveryBeginningNearTheWeights) {
  for (const std::vector<double>& weights : std::vector<std::vector<double>>{{1},
                                                                             {0.7, 0.3},
                                                                             {1, 0.001},
                                                                             {0, 1, 0, 2, 3},
                                                                             {5, 0},
                                                                             {0, 3},
                                                                             {1, 1, 1, 1},
                                                                             {1e-300, 1e-300},
                                                                             {1e300, 1e299}}) {
    const WeightedDraw draw(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<std::int64_t> drawn(weights.size());
    for (std::int64_t sample = 0; sample < 3000; ++sample) {
      const DrawnSample found = draw.draw(sample);
      ASSERT_EQ(found.index, drawn[found.source]++) << "each source gives its samples in turn";
      for (std::size_t s = 0; s < weights.size(); ++s) {
        const double share = weights[s] / sum * static_cast<double>(sample + 1);
        ASSERT_LT(std::abs(static_cast<double>(drawn[s]) - share), static_cast<double>(weights.size()))
            << "source " << s << " of " << weights.size() << " after " << sample + 1;
        ASSERT_TRUE(weights[s] > 0 || drawn[s] == 0);
      }
    }
  }
}

// Far out, where products of numbers and weights need more than 64 bits: a step of one sample moves one source by one.
TEST(WeightedDraw, HoldsForLargeNumbers) {
  const WeightedDraw draw(std::vector<double>{0.2, 0.5, 0.3});
  constexpr std::int64_t far = (std::int64_t{1} << 62) - 2000;
  std::map<std::size_t, std::int64_t> next;
  for (std::int64_t sample = far; sample < far + 2000; ++sample) {
    const DrawnSample found = draw.draw(sample);
    const auto [at, is_new] = next.try_emplace(found.source, found.index);
    ASSERT_EQ(found.index, at->second++);
  }
  EXPECT_NEAR(static_cast<double>(next[1]) / static_cast<double>(far), 0.5, 1e-12);
}

TEST_F(SampleOrders, DrawEachFileByItsWeightInEpochsOfItsOwn) {
  constexpr std::int64_t length = 4;
  const DataRequest request{.sources = {dataset("a", {41}, 0, 3.0), dataset("b", {17, 4}, 1000)},  // 10 and 5 windows
                            .sequence_length = length,
                            .seed = 7};
  const TokenDataset data(request, ids_below(10000));
  std::vector<std::int32_t> firsts[2];
  for (std::int64_t sample = 0; sample < 400; ++sample) {
    const std::int32_t first = read(data, sample, length).front();
    firsts[first >= 1000 ? 1 : 0].push_back(first);
  }
  EXPECT_NEAR(static_cast<double>(firsts[0].size()), 300.0, 2.0);
  for (const auto& [windows, of] : {std::pair(std::size_t{10}, 0), std::pair(std::size_t{5}, 1)}) {
    std::set<std::vector<std::int32_t>> orders;
    for (std::size_t begin = 0; begin + windows <= firsts[of].size(); begin += windows) {
      const std::vector<std::int32_t> epoch(firsts[of].begin() + static_cast<std::ptrdiff_t>(begin),
                                            firsts[of].begin() + static_cast<std::ptrdiff_t>(begin + windows));
      EXPECT_EQ(std::set<std::int32_t>(epoch.begin(), epoch.end()).size(), windows) << "each window once";
      orders.insert(epoch);
    }
    EXPECT_GT(orders.size(), 10u) << "each epoch in an order of its own";
  }
  EXPECT_EQ(data.contents()[0].substr(data.contents()[0].rfind(',')), ", weight 3");
  const std::vector<double> passes = data.order().passes(400);
  EXPECT_NEAR(passes[0], 30.0, 1e-9);
  EXPECT_NEAR(passes[1], 20.0, 1e-9);
}

// The parts are those of Megatron, in whole documents, and together they are all tokens.
TEST_F(SampleOrders, ReadTheirPartOfASplit) {
  const DataSource file = dataset("all", {10, 20, 5, 25, 10, 10, 6, 4, 5, 5}, 0);
  const DataRequest request{.sources = {file}, .split = "70,20,10", .sequence_length = 4, .seed = 1};
  const TokenDataset data(request, ids_below(10000));
  std::set<std::int32_t> trained;
  for (std::int64_t sample = 0; sample < 21; ++sample) trained.insert(read(data, sample, 4).front());
  EXPECT_EQ(trained.size(), 21u) << "86 tokens make 21 windows";
  EXPECT_EQ(*trained.rbegin(), 80);
  DataConfig config;
  config.train = {file};
  config.split = "70,20,10";
  const TextWindows held_out(config, 4, ids_below(10000));
  EXPECT_EQ(held_out.tokens(), 9 - 1);
  Ids tokens(4), targets(4);
  held_out.read(0, {tokens, targets, {}});
  EXPECT_EQ(tokens, (Ids{86, 87, 88, 89}));
  held_out.read(1, {tokens, targets, {}});
  EXPECT_EQ(targets, (Ids{91, 92, 93, 94}));

  EXPECT_EQ(
      refusal({.sources = {file}, .split = "0,1", .sequence_length = 4, .seed = 1}),
      fmt::format("\"{}\": data.split \"0,1\" leaves 0 of its 100 tokens for training, fewer than one window of 5",
                  file.path));
  EXPECT_NE(refusal({.sources = {file}, .split = "1,x", .sequence_length = 4, .seed = 1}).find("\"x\" is no number"),
            std::string::npos);
}

// A document of several sequences is packed as one.
TEST_F(SampleOrders, PackDocumentsOfSeveralSequences) {
  const std::string name = (folder_ / "parts").string();
  std::vector<PlainDocument> documents;
  for (std::int64_t id = 0; id < 40 * 9; id += 9) {
    documents.push_back({{id, id + 1, id + 2}, {id + 3, id + 4, id + 5}, {id + 6, id + 7, id + 8}});
  }
  const PlainFiles files = plain_megatron(documents, 8);
  write_file(name + ".idx", files.index);
  write_file(name + ".bin", files.data);
  const TokenDataset data({.sources = {{name}}, .documents = Documents::pack, .sequence_length = 9, .seed = 11},
                          ids_below(10000));
  std::set<std::int32_t> begins;
  for (std::int64_t sample = 0; sample < 40; ++sample) {
    Ids ids(9), targets(9), document(9);
    data.read(sample, {ids, targets, document});
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(targets[i], ids[0] + static_cast<std::int32_t>(i) + 1);
    begins.insert(ids[0]);
  }
  EXPECT_EQ(begins.size(), 40u);
}

// Its last token has no target, so that a window would take one token more.
TEST_F(SampleOrders, PackAFileOfFewerTokensThanAWindow) {
  const DataSource file = dataset("brief", {9}, 0);
  const DataRequest packed{.sources = {file}, .documents = Documents::pack, .sequence_length = 9, .seed = 11};
  Ids ids(9), targets(9), document(9);
  TokenDataset(packed, ids_below(10000)).read(0, {ids, targets, document});
  EXPECT_LT(targets.back(), 0);
  ids.pop_back();
  targets.pop_back();
  EXPECT_EQ(ids, (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(targets, (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
  DataRequest windows = packed;
  windows.documents = Documents::mask;
  EXPECT_THROW(TokenDataset(windows, ids_below(10000)), Error);
}

// A boundary that was moved in the middle would be a wrong mask, or a wrong part.
TEST_F(SampleOrders, MaskDocumentsOfASoundIndexAlone) {
  const DataSource file = dataset("sound", {10, 20, 5, 25, 10}, 0);
  const auto refusal = [&](Documents documents, const std::string& split = {}) {
    return refusal_of([&] {
             TokenDataset({.sources = {file}, .documents = documents, .split = split, .sequence_length = 4, .seed = 1},
                          ids_below(10000));
           })
        .value_or("accepted");
  };
  for (const Documents documents : all_values<Documents>) EXPECT_EQ(refusal(documents), "accepted");
  std::fstream index(file.path + ".idx", std::ios::binary | std::ios::in | std::ios::out);
  index.seekp(34 + 12 * 5 + 8 * 2);
  index.put('\4');  // document 2 begins at sequence 4, document 3 at 3
  index.close();
  EXPECT_EQ(refusal(Documents::join), "accepted");
  EXPECT_NE(refusal(Documents::join, "80,20").find("document 3 begins at sequence 3"), std::string::npos);
  EXPECT_NE(refusal(Documents::mask).find("document 3 begins at sequence 3"), std::string::npos);
  EXPECT_NE(refusal(Documents::pack).find("document 3 begins at sequence 3"), std::string::npos);
}

// Each document once an epoch, in one sequence if it fits into one; each of its targets once, whatever its length.
TEST_F(SampleOrders, PackWholeDocuments) {
  std::mt19937 chance(3);
  for (const std::int64_t length : {8, 33}) {
    std::vector<int> lengths;
    for (int d = 0; d < 300; ++d) lengths.push_back(1 + static_cast<int>(chance() % (d % 10 == 0 ? 90 : 14)));
    const std::string name = fmt::format("packed{}", length);
    const DataRequest request{
        .sources = {dataset(name, lengths, 0)}, .documents = Documents::pack, .sequence_length = length, .seed = 11};
    const TokenDataset data(request, ids_below(10000));
    const auto samples = static_cast<std::int64_t>(std::llround(1000.0 / data.order().passes(1000)[0]));
    EXPECT_EQ(data.order().identity(), "whole documents");
    std::vector<int> begins;  // of each document, in tokens, which are their own numbers
    for (int at = 0; const int each : lengths) {
      begins.push_back(at);
      at += each;
    }
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::map<int, int> predicted;
      std::set<int> whole;
      std::int64_t tokens = 0;
      for (std::int64_t sample = 0; sample < samples; ++sample) {
        Ids ids(static_cast<std::size_t>(length)), targets(ids.size()), document(ids.size());
        data.read(epoch * samples + sample, {ids, targets, document});
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (targets[i] < 0) continue;
          ++tokens;
          ++predicted[targets[i]];
          ASSERT_EQ(targets[i], ids[i] + 1) << "a target follows its token";
          // The piece begins where its document does, or at a cut of a document that fits into no sequence.
          const int first = ids[static_cast<std::size_t>(document[i])];
          const auto at = static_cast<std::size_t>(std::ranges::upper_bound(begins, first) - begins.begin() - 1);
          ASSERT_TRUE(first == begins[at] || lengths[at] > length + 1) << "document " << at << " is cut";
          if (first == begins[at]) whole.insert(static_cast<int>(at));
        }
      }
      std::size_t targets = 0, of_two = 0;
      for (const int each : lengths) {
        targets += static_cast<std::size_t>(each - 1);
        of_two += each > 1 ? 1 : 0;
      }
      EXPECT_EQ(predicted.size(), targets) << "every target";
      EXPECT_EQ(static_cast<std::size_t>(tokens), targets) << "and none twice";
      EXPECT_EQ(whole.size(), of_two);
    }
    // Nearly full: the mean document has 12 tokens.
    const std::string filled = data.order().remark();
    EXPECT_GT(std::stod(filled.substr(filled.find("to ") + 3)), length == 8 ? 80.0 : 95.0) << filled;
  }
}

TEST_F(SampleOrders, PackPartsOfFilesByWeight) {
  const DataRequest request{
      .sources = {dataset("a", std::vector<int>(20, 5), 0, 1.0), dataset("b", std::vector<int>(20, 4), 1000, 3.0)},
      .documents = Documents::pack,
      .split = "50,50",
      .sequence_length = 9,
      .seed = 2};
  const TokenDataset data(request, ids_below(10000));
  int of_second = 0;
  for (std::int64_t sample = 0; sample < 40; ++sample) {
    Ids ids(9), targets(9), begins(9);
    data.read(sample, {ids, targets, begins});
    const bool second = ids[0] >= 1000;
    of_second += second ? 1 : 0;
    EXPECT_LT(ids[0], second ? 1040 : 50) << "a half of each file";
    // Two documents of 5 tokens fill a window of 10, of 4 tokens all but two.
    EXPECT_EQ(std::ranges::count_if(targets, [](std::int32_t target) { return target < 0; }), second ? 3 : 1);
  }
  EXPECT_EQ(of_second, 30);
}

// The documents are 1 2 3 0, 4 5 0 and 6 7 8 9 10 0. The tables are those of Megatron's own builder (seed 1234, 5
// samples of 4 tokens), written out by hand. They are document_index 2 1 2 0 1 0 and shuffle_index 0 4 3 2 5 1.
TEST_F(SampleOrders, AreMegatronsForItsSeed) {
  IndexedWriter writer((folder_ / "megatron").string(), 11);
  const std::vector<Ids> documents = {{1, 2, 3, 0}, {4, 5, 0}, {6, 7, 8, 9, 10, 0}};
  for (const Ids& document : documents) writer.add_document(document);
  writer.finish();
  Ids stream;
  for (const int document : {2, 1, 2, 0, 1, 0}) {
    stream.insert(stream.end(), documents[static_cast<std::size_t>(document)].begin(),
                  documents[static_cast<std::size_t>(document)].end());
  }
  const DataRequest request{.sources = {(folder_ / "megatron").string()},
                            .order = DataOrder::megatron,
                            .sequence_length = 4,
                            .seed = 1234,
                            .samples = 5};
  const TokenDataset data(request, ids_below(11));
  const std::vector<int> shuffle = {0, 4, 3, 2, 5, 1};
  for (std::size_t sample = 0; sample < 5; ++sample) {
    const auto begin = stream.begin() + 4 * shuffle[sample];
    EXPECT_EQ(read(data, static_cast<std::int64_t>(sample), 4), Ids(begin, begin + 5)) << sample;
  }
  EXPECT_EQ(data.order().identity(), "2 epochs, 6 samples, 6 of them first");

  // Masked: a document begins where the stream goes to the next, and the token before predicts nothing.
  Ids tokens(4), targets(4), begins(4);
  data.read(0, {tokens, targets, begins});
  EXPECT_EQ(tokens, (Ids{6, 7, 8, 9}));
  EXPECT_EQ(begins, (Ids{0, 0, 0, 0}));
  data.read(5 - 1, {tokens, targets, begins});  // stream 20 ..: 3 0 | 4 5 0 lies behind; sample 5 is shuffle 5
  const auto at = static_cast<std::size_t>(4 * shuffle[4]);
  Ids expected_begins(4), expected_targets(4);
  const std::vector<std::size_t> starts = {0, 6, 9, 15, 19, 22};
  for (std::size_t i = 0; i < 4; ++i) {
    for (const std::size_t start : starts) {
      if (start <= at + i && start >= at) expected_begins[i] = static_cast<std::int32_t>(start - at);
    }
    const bool ends = std::find(starts.begin(), starts.end(), at + i + 1) != starts.end();
    expected_targets[i] = ends ? -1 : stream[at + i + 1];
  }
  EXPECT_EQ(begins, expected_begins);
  EXPECT_EQ(targets, expected_targets);
}

TEST_F(SampleOrders, BlendMegatronsByWeights) {
  constexpr std::int64_t length = 4, samples = 60;
  DataRequest request{.sources = {dataset("a", {30, 11}, 0, 0.75), dataset("b", {9, 9, 8}, 1000, 0.25)},
                      .order = DataOrder::megatron,
                      .sequence_length = length,
                      .seed = 5,
                      .samples = samples};
  const TokenDataset data(request, ids_below(10000));
  int of_first = 0;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const Ids window = read(data, sample, length);
    of_first += window.front() < 1000 ? 1 : 0;
    const bool first = window.front() < 1000;
    for (const std::int32_t id : window) EXPECT_EQ(id < 1000, first) << "no sample has tokens of both";
  }
  EXPECT_EQ(of_first, 45);

  request.sources = {DataSource(request.sources[0].path), DataSource(request.sources[1].path)};
  EXPECT_NE(refusal(request).find("blends several datasets by weights"), std::string::npos);
}

}  // namespace
}  // namespace weft
