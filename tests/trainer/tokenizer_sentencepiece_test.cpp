// Models of SentencePiece, trained here: encodings are those of the library's processor, and the tokenizer travels.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/tokenizer/tokenizer.h"
#ifdef WEFT_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#endif

namespace weft {
namespace {

void write_model(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(TokenizerSentencePiece, RefusesWhatIsNoModel) {
  const TemporaryFolder folder;
  const std::string model = (folder / "tokenizer.model").string();
#ifdef WEFT_HAVE_SENTENCEPIECE
  const std::string why = "no model of SentencePiece";
#else
  const std::string why = "this build has no SentencePiece";
#endif
  // The last has a piece that begins with a zero byte, at which the library's trie throws.
  const std::string zero_byte("\n\x09\n\x05<unk>\x18\x02\n\x04\n\x02\0a", 17);
  for (const std::string& bytes :
       {std::string("\n\x0e\n\x05<unk>"), std::string("{}"), std::string(1000, '\xff'), zero_byte}) {
    write_model(model, bytes);
    for (const std::string& name : {model, folder.path().string()}) {
      const std::string message = refusal_of([&] { open_tokenizer(name); }).value_or("accepted");
      EXPECT_NE(message.find(why), std::string::npos) << message;
    }
  }
}

#ifdef WEFT_HAVE_SENTENCEPIECE
class TokenizerSentencePieces : public testing::TestWithParam<std::string> {
 protected:
  // The name of the model's file.
  std::string train(const std::string& more = "") const {
    std::ofstream text(folder_ / "text");
    for (int i = 0; i < 300; ++i) text << "the loom, the warp and the weft of number " << i * 37 % 101 << " größer\n";
    text.close();
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        fmt::format("--input={} --model_prefix={} --vocab_size=320 --model_type={} --byte_fallback=true "
                    "--hard_vocab_limit=false --minloglevel=2 {}",
                    (folder_ / "text").string(), (folder_ / "tokenizer").string(), GetParam(), more));
    EXPECT_TRUE(status.ok()) << status.ToString();
    return (folder_ / "tokenizer.model").string();
  }
  TemporaryFolder folder_;
};

TEST_P(TokenizerSentencePieces, EncodeAsTheLibraryDoes) {
  const std::string model = train();
  const auto tokenizer = open_tokenizer(model);
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(model).ok());
  EXPECT_EQ(tokenizer->vocab_size(), processor.GetPieceSize());
  EXPECT_EQ(tokenizer->end_of_text(), processor.eos_id());
  EXPECT_EQ(tokenizer->token_id("</s>"), processor.eos_id());
  EXPECT_EQ(tokenizer->token_id("absent piece"), std::nullopt);
  for (const std::string& text :
       {std::string("the weft of the loom"), std::string("größer  7"), std::string("\xe4\xb8\xad\n\ttab"),
        std::string(), std::string("broken \xff\xc3 utf-8"), std::string("</s>")}) {
    std::vector<int> expected;
    ASSERT_TRUE(processor.Encode(text, &expected).ok());
    EXPECT_EQ(tokenizer->encode(text), std::vector<std::int32_t>(expected.begin(), expected.end())) << text;
  }
  // Decoding keeps the space in front, and each token has the bytes it has among others.
  const std::vector<std::int32_t> ids = tokenizer->encode("the warp \xe4\xb8\xad");
  EXPECT_EQ(tokenizer->decode(ids), " the warp \xe4\xb8\xad");
  std::string one_by_one;
  for (const std::int32_t id : ids) one_by_one += tokenizer->decode({&id, 1});
  EXPECT_EQ(one_by_one, tokenizer->decode(ids));
  EXPECT_TRUE(refusal_of([&] { tokenizer->decode(std::vector<std::int32_t>{processor.GetPieceSize()}); }).has_value());
}

// Without them transformers makes tokens of its own in place of those that the model lacks, and puts one in front.
TEST_P(TokenizerSentencePieces, HaveSettingsForTransformers) {
  const std::string model = train("--bos_id=-1 --eos_piece=[END] --pad_id=3 --add_dummy_prefix=false");
  const TokenizerSettings settings = settings_of(model);
  const auto json = nlohmann::json::parse(settings.json);
  EXPECT_EQ(json["tokenizer_class"], "LlamaTokenizer");
  for (const char* key : {"add_bos_token", "add_eos_token", "add_prefix_space"}) EXPECT_EQ(json[key], false) << key;
  EXPECT_TRUE(json.contains("bos_token") && json["bos_token"].is_null());
  EXPECT_EQ(json["eos_token"], "[END]");
  EXPECT_EQ(json["pad_token"], "<pad>");
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(model).ok());
  EXPECT_EQ(settings.bos_token_id, std::nullopt);
  EXPECT_EQ(settings.eos_token_id, processor.eos_id());
  EXPECT_EQ(settings.pad_token_id, 3);
  EXPECT_EQ(settings.largest_id, processor.GetPieceSize() - 1);
  EXPECT_EQ(nlohmann::json::parse(settings_of(train()).json)["add_prefix_space"], true);
  EXPECT_TRUE(settings.leaves_out_normalizer);
  for (const char* left : {"--normalization_rule_name=identity", "--remove_extra_whitespaces=false"}) {
    EXPECT_TRUE(settings_of(train(left)).leaves_out_normalizer) << left;
  }
  const std::string none = "--normalization_rule_name=identity --remove_extra_whitespaces=false";
  EXPECT_FALSE(settings_of(train(none)).leaves_out_normalizer);
}

TEST_P(TokenizerSentencePieces, TravelUnderTheNameThatIsFoundAgain) {
  const std::string model = train();
  for (const std::string& name : {model, folder_.path().string()}) {
    const auto parts = tokenizer_parts(name);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].path, model);
    const TemporaryFolder kept;
    std::filesystem::copy(parts[0].path, kept / parts[0].kept_name);
    const auto found = kept_tokenizer(kept.path().string(), name);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(open_tokenizer(*found)->content_hash(), open_tokenizer(name)->content_hash());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerSentencePieces, testing::Values("bpe", "unigram"),
                         [](const auto& model) { return model.param; });
#endif

}  // namespace
}  // namespace weft
