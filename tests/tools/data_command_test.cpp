// From a text to words that a model makes, each step by the program alone. A tokenizer is learned, texts are
// tokenized, and a model trains on the ids, is evaluated, generates and is exported.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/tools/program.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class DataCommand : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the loom, the warp and the weft of number " + std::to_string(i) + "\n";
    put("text.txt", text);
    put("held.txt", text.substr(0, 2000));
  }
  std::string ok(const std::string& arguments) const {
    const ProgramResult result = weft(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.messages;
    return result.output + result.messages;
  }
  std::string refused(const std::string& arguments) const {
    const ProgramResult result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.output << result.messages;
    return result.messages;
  }
  std::string bytes_of(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put_run(const std::string& data, const std::string& tokenizer, int vocab) const {
    put("run.toml", "[run]\nname = \"t\"\ndirectory = \"out\"\nsteps = 4\n[model]\nlayers = \"d e\"\nvocab_size = " +
                        std::to_string(vocab) +
                        "\nhidden_size = 16\nintermediate_size = 24\nnum_attention_heads = 4\nnum_key_value_heads = 2\n"
                        "head_dim = 4\n[model.moe]\nnum_experts = 4\nnum_experts_per_tok = 2\nmoe_intermediate_size = "
                        "8\n[parallelism]\npipeline = 2\ndata_shard = 2\n[training]\nsequence_length = 8\n"
                        "global_batch_size = 8\n[checkpoint]\ninterval = 4\n[data]\ntrain = [\"" +
                        data + "\"]\ntokenizer = \"" + tokenizer + "\"\n");
  }
};

TEST_F(DataCommand, ATextBecomesATokenizerADatasetAModelAndAText) {
  ok("data train-tokenizer text.txt --vocab-size 300 --output tok.json");
  ok("data tokenize text.txt --documents line --tokenizer tok.json --output train");
  ok("data tokenize held.txt --documents line --tokenizer tok.json --output held");
  const Json facts = Json::parse(ok("data inspect train.bin --json --check --sample 7"));
  EXPECT_EQ(facts["documents"], 400);
  EXPECT_EQ(facts["sample"]["text"], "the loom, the warp and the weft of number 7<|endoftext|>");
  EXPECT_EQ(facts["tokenizer"]["vocab_size"], 300);
  EXPECT_LT(facts["largest_id"].get<int>(), 300);

  put_run("train.bin", "tok.json", 300);
  ok("check run.toml");
  ok("train run.toml");
  // The tokenizer travels with the checkpoint.
  std::filesystem::rename(folder_ / "tok.json", folder_ / "elsewhere.json");
  const Json loss = Json::parse(weft("eval out --data held.bin --json").output);
  const Json held = Json::parse(ok("data inspect held.bin --json"));
  EXPECT_EQ(loss["tokens"], held["tokens"].get<int>() - 1);
  // All bytes of the text except line ends and the first token; ends of documents are no text.
  const double bits = loss["loss"].get<double>() * loss["tokens"].get<double>() / std::log(2.0);
  const double bytes = bits / loss["bits_per_byte"].get<double>();
  EXPECT_NEAR(bytes, 2000.0 - 43, 10.0);
  const ProgramResult made = weft("generate out --prompt 'the loom' --max-tokens 6 --temperature 0 --json");
  ASSERT_EQ(made.exit_code, 0) << made.messages;
  const Json sample = Json::parse(made.output)["samples"][0];
  EXPECT_LE(sample["tokens"], 6);
  // Refused before the head of a sample is printed.
  const ProgramResult parted = weft("generate out --prompt 'the loom' --samples 2 --parallelism.context=2");
  EXPECT_NE(parted.messages.find("parallelism.context 2 cuts every sequence"), std::string::npos) << parted.messages;
  EXPECT_EQ(parted.output, "");
  ok("export out folder");
  EXPECT_EQ(bytes_of("folder/tokenizer.json"), bytes_of("elsewhere.json"));
  // Resumed with the file under its new name: the same tokenizer by what it does.
  put_run("train.bin", "elsewhere.json", 300);
  EXPECT_NE(ok("train run.toml --run.steps=6").find("6/6"), std::string::npos);
}

// The figure of a validation comes back from the checkpoint: the same part, the same windows, the same bits.
TEST_F(DataCommand, AValidationOfASplitIsRepeatedByEval) {
  ok("data tokenize text.txt --documents line --tokenizer byte --output train");
  put_run("train.bin", "byte", 256);
  ok("train run.toml --data.split=80,20 --validation.split=true --validation.interval=4 --validation.batches=2");
  std::istringstream lines(bytes_of("out/metrics.jsonl"));
  Json found;
  for (std::string line; std::getline(lines, line);) {
    const Json step = Json::parse(line);
    if (step.contains("validation")) found = step["validation"];
  }
  ASSERT_EQ(found["tokens"], 2 * 8 * 8);
  const Json same = Json::parse(weft("eval out --split --batches 2 --json").output);
  EXPECT_EQ(same["loss"], found["loss"]);
  EXPECT_EQ(same["tokens"], found["tokens"]);
  // A layout with another global batch reads the same windows.
  const Json alone = Json::parse(
      weft("eval out --split --batches 2 --json --parallelism.pipeline=1 --training.microbatch_size=3").output);
  EXPECT_EQ(alone["tokens"], found["tokens"]);
  EXPECT_NEAR(alone["loss"].get<double>(), found["loss"].get<double>(), 1e-5);
  EXPECT_GT(Json::parse(weft("eval out --split --json").output)["tokens"].get<int>(), 128);
  EXPECT_NE(refused("eval out").find("give --data and files, or --split"), std::string::npos);
  // Other parts may have been trained on, and of other data none was held out.
  EXPECT_NE(refused("eval out --split --data.split=20,80").find("data.split is \"80,20\" in the checkpoint"),
            std::string::npos);
  ok("eval out --split --data.split=80,20,0");
  for (const char* ending : {".bin", ".idx", ".json"})
    std::filesystem::remove(folder_ / (std::string("train") + ending));
  ok("data tokenize held.txt --documents line --tokenizer byte --output train");
  EXPECT_NE(refused("eval out --split").find("data.train[0] is "), std::string::npos);
}

// Of a dataset of another tokenizer under these facts, and of an index with a damaged length.
TEST_F(DataCommand, InspectTellsDamage) {
  ok("data tokenize text.txt --documents line --tokenizer byte --output bytes");
  const std::string ids = bytes_of("bytes.bin"), index = bytes_of("bytes.idx");
  put("bytes.bin", ids.substr(0, 7) + '\xff' + ids.substr(8));
  EXPECT_NE(refused("data inspect bytes --check").find("outside the vocabulary of 256 tokens"), std::string::npos);
  put("bytes.bin", ids);
  const auto documents = static_cast<std::size_t>(400);
  std::string moved = index;
  moved[34 + 4 * documents + 8 * 2 + 1] = '\x7f';  // the offset of sequence 2
  put("bytes.idx", moved);
  EXPECT_NE(refused("data inspect bytes --sample 2").find("document 2 begins at token"), std::string::npos);
}

// A signal stops it behind what it has written, and the same command goes on there.
TEST_F(DataCommand, TokenizeGoesOnAfterASignal) {
  run("{ yes 'the loom, the warp and the weft' | head -c 40000000 | gzip -1 > large.txt.gz; }");
  const std::string command =
      "'" + weft_program() + "' data tokenize large.txt.gz --documents line --tokenizer byte --threads 1 --output ";
  const ProgramResult whole = run(command + "whole");
  ASSERT_EQ(whole.exit_code, 0) << whole.messages;
  const ProgramResult stopped =
      run("{ " + command + "part & until [ -s part.bin.partial ]; do sleep 0.01; done; kill -TERM $!; wait $!; }");
  EXPECT_EQ(stopped.exit_code, 75);
  EXPECT_NE(stopped.messages.find("stopped by SIGTERM; the same command goes on from here"), std::string::npos)
      << stopped.messages;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "part.bin"));
  const ProgramResult rest = run(command + "part");
  EXPECT_NE(rest.messages.find("documents that an earlier call wrote"), std::string::npos) << rest.messages;
  EXPECT_EQ(run("cmp whole.bin part.bin && cmp whole.idx part.idx").exit_code, 0);
  EXPECT_EQ(run("ls part.*").output, "part.bin\npart.idx\npart.json\n");
}

// What is no line of JSON by its beginning is refused as a whole: skipping its lines would leave its end alone.
TEST_F(DataCommand, AListIsNoFileOfLines) {
  put("list.json", "[\n {\"text\": \"a\"},\n {\"text\": \"b\"}\n]\n");
  put("object.json", "{\n \"text\": \"a\"\n}\n");
  put("lines.json", "{\"text\": \"a\"}\n");
  const std::string rest = " --tokenizer byte --bad-lines skip --output x";
  EXPECT_NE(refused("data tokenize list.json" + rest).find("a list in JSON, not JSON lines"), std::string::npos);
  EXPECT_NE(refused("data tokenize object.json" + rest).find("an object over several lines"), std::string::npos);
  ok("data tokenize lines.json" + rest);
}

// Nothing to predict is refused before a step.
TEST_F(DataCommand, HeldOutTextHasSomethingToPredict) {
  ok("data tokenize text.txt --documents line --tokenizer byte --output train");
  ok("data tokenize text.txt --documents line --tokenizer byte --output held");
  put("held.loss", std::string(bytes_of("held.bin").size() / 2, '\0'));
  put_run("train.bin", "byte", 256);
  for (const char* command : {"check", "train"}) {
    EXPECT_NE(refused(command + std::string(" run.toml --validation.data=held.bin")).find("nothing to predict"),
              std::string::npos);
  }
}

TEST_F(DataCommand, TextsNeedATokenizer) {
  ok("data tokenize text.txt --tokenizer byte --output bytes");
  for (const char* command : {"data tokenize text.txt --output x", "data inspect bytes --sample 0",
                              "bench data text.txt --directory bench"}) {
    EXPECT_NE(refused(command + std::string(" --tokenizer none")).find("\"none\" has no texts"), std::string::npos);
  }
}

// Prompts are read and not learned: the same ids as without, and the loss of answers and ends alone.
TEST_F(DataCommand, PromptsAreReadAndNotLearned) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += fmt::format("{{\"q\": \"the loom of {}? \", \"a\": {{\"text\": \"the weft.\"}}}}\n", i % 10);
  }
  put("pairs.jsonl", lines);
  ok("data tokenize pairs.jsonl --prompt q --key a.text --tokenizer byte --no-end --output pairs");
  EXPECT_EQ(bytes_of("pairs.loss").substr(0, 24), std::string(15, '\0') + std::string(9, '\1'));
  const Json facts = Json::parse(ok("data inspect pairs.bin --json --check --sample 7"));
  EXPECT_EQ(facts["sample"]["text"], "the loom of 7? the weft.");
  EXPECT_EQ(facts["counted_tokens"], 60 * 9);
  EXPECT_EQ(facts["tokens"], 60 * 24);

  put_run("pairs.bin", "byte", 256);
  ok("train run.toml --data.documents=mask --training.sequence_length=24 --run.steps=3 --checkpoint.interval=3");
  const Json line = Json::parse(bytes_of("out/metrics.jsonl").substr(0, bytes_of("out/metrics.jsonl").find('\n')));
  EXPECT_EQ(line["tokens"], 8 * 24);
  EXPECT_EQ(line["targets"], 8 * 9);
  const Json loss = Json::parse(weft("eval out --data pairs.bin --json").output);
  EXPECT_EQ(loss["tokens"], 60 * 9);

  // Whole documents: two pairs of 24 tokens fill 49 but one.
  const std::string packed =
      ok("train run.toml --data.documents=pack --training.sequence_length=48 --run.steps=2 --run.directory=packed");
  EXPECT_NE(packed.find("whole documents fill sequences to 98.0 %"), std::string::npos) << packed;
  const Json whole =
      Json::parse(bytes_of("packed/metrics.jsonl").substr(0, bytes_of("packed/metrics.jsonl").find('\n')));
  EXPECT_EQ(whole["targets"], 8 * 2 * 9);

  refused("data tokenize text.txt --prompt q --tokenizer byte --output other");
  put("gap.jsonl", "{\"a\": \"x\"}\n");
  EXPECT_NE(refused("data tokenize gap.jsonl --prompt q --key a --tokenizer byte --output gap").find("no key \"q\""),
            std::string::npos);
  // Losses of another dataset would be taken for those of this one.
  std::filesystem::rename(folder_ / "pairs.loss", folder_ / "late.loss");
  EXPECT_NE(refused("data tokenize text.txt --tokenizer byte --output late").find("late.loss"), std::string::npos);
}

// What counts may lie in the part that a split holds back, or in a file without weight.
TEST_F(DataCommand, APartWithoutATargetIsRefusedBeforeTheFirstStep) {
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    lines += fmt::format("{{\"q\": \"what follows {}? \", \"a\": \"{}\"}}\n", i, i < 360 ? "" : "the next");
  }
  put("late.jsonl", lines);
  ok("data tokenize late.jsonl --prompt q --key a --tokenizer byte --no-end --output late");
  put_run("late.bin", "byte", 256);
  const std::string train = "train run.toml --run.steps=1 --data.documents=mask --training.sequence_length=16 ";
  for (const char* order : {"weft", "megatron"}) {
    const std::string said = refused(train + "'--data.split=90,10,0' --data.order=" + order);
    EXPECT_NE(said.find("that data.split \"90,10,0\" leaves for training counts"), std::string::npos) << said;
  }
  put("whole.jsonl", lines.substr(lines.find("{\"q\": \"what follows 360")));
  ok("data tokenize whole.jsonl --prompt q --key a --tokenizer byte --no-end --output whole");
  const std::string unweighted = "'--data.train=[{path=\"late.bin\",weight=1},{path=\"whole.bin\",weight=0}]'";
  EXPECT_NE(refused(train + unweighted + " '--data.split=90,10,0'").find("counts"), std::string::npos);
  ok(train + "'--data.split=95,5,0'");
}

TEST_F(DataCommand, AMarkOfByteOrderIsNoText) {
  for (const char* documents : {"line", "file"}) {
    put("plain.txt", "one\ntwo\n");
    put("marked.txt", "\xef\xbb\xbfone\ntwo\n");
    for (const char* name : {"plain", "marked"}) {
      ok(fmt::format("data tokenize {0}.txt --tokenizer byte --documents {1} --output {0}_{1}", name, documents));
    }
    EXPECT_EQ(bytes_of(fmt::format("plain_{}.bin", documents)), bytes_of(fmt::format("marked_{}.bin", documents)));
  }
}

// A tokenizer without a token for what it does not know.
TEST_F(DataCommand, ATextThatCannotBeEncodedIsNamedOrCounted) {
  put("small.json", R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
  put("some.jsonl", "{\"text\": \"abba\"}\n{\"text\": \"abc\"}\n{\"text\": \"ab\"}\n");
  const std::string tokenize = "data tokenize some.jsonl --tokenizer small.json --no-end --output some";
  EXPECT_NE(refused(tokenize).find("\"some.jsonl\":2: the text has the character c"), std::string::npos);
  const std::string said = ok(tokenize + " --bad-lines skip");
  EXPECT_NE(said.find("1 line was left out"), std::string::npos) << said;
  EXPECT_EQ(Json::parse(ok("data inspect some.bin --json"))["documents"], 2);
}

// No byte becomes another character in silence.
TEST_F(DataCommand, PlainTextThatIsNotUtf8IsRefusedByPlace) {
  put("latin.txt", "warp\n\xc3\xa9t\xe9 weft\nloom\n");
  for (const std::string lines : {"", " --documents line"}) {
    const std::string tokenize = "data tokenize latin.txt --tokenizer byte --output latin" + lines;
    EXPECT_NE(refused(tokenize).find("\"latin.txt\":2:3: the text is not UTF-8"), std::string::npos) << lines;
  }
  // The beginning of a file tells whether it is text; a zero byte may come later.
  put("zeros.txt", std::string(9000, 'a') + "\nb" + std::string(1, '\0') + "c\n");
  EXPECT_NE(
      refused("data tokenize zeros.txt --tokenizer byte --output z").find("\"zeros.txt\":2:2: a zero byte is no text"),
      std::string::npos);
  const std::string said = ok("data tokenize latin.txt --tokenizer byte --output l --documents line --bad-lines skip");
  EXPECT_NE(said.find("1 line was left out"), std::string::npos) << said;
}

TEST_F(DataCommand, NamesThatAreEmptyAreRefused) {
  for (const char* options : {"--output x --prompt ''", "--output x --chat ''", "--output x --key ''", "--output ''",
                              "--output sub/", "--output x --documents lines"}) {
    refused(fmt::format("data tokenize text.txt --tokenizer byte {}", options));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".bin"));
}

// A template from a file, whose bytes are the tokens, and the template beside the tokenizer.
TEST_F(DataCommand, OptionsThatNoFileReadsAreRefused) {
  put("lines.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_NE(refused("data tokenize text.txt --key a --tokenizer byte --output x").find("tokenize: error: --key is of"),
            std::string::npos);
  EXPECT_NE(refused("data tokenize lines.jsonl --documents file --tokenizer byte --output x").find("--documents is of"),
            std::string::npos);
  EXPECT_NE(refused("data train-tokenizer text.txt --key a --vocab-size 300 --output t.json").find("--key is of"),
            std::string::npos);
  ok("data tokenize text.txt lines.jsonl --key text --documents file --tokenizer byte --output x");
}

TEST_F(DataCommand, ConversationsAreWrittenByTemplates) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += R"({"messages": [{"role": "user", "content": "Warp?"}, {"role": "assistant", "content": "The weft."}]})";
    lines += "\n";
  }
  put("chat.jsonl", lines);
  const std::string source =
      "{% for m in messages %}\n{% if m.role == 'user' %}\nQ {{ m.content }}\n{% else %}\nA{{ ' ' + m.content }};\n"
      "{% endif %}\n{% endfor %}\n{% if add_generation_prompt %}A{% endif %}";
  put("format.jinja", source);
  ok("data tokenize chat.jsonl --chat format.jinja --tokenizer byte --no-end --output chat");
  const Json facts = Json::parse(ok("data inspect chat.bin --json --check --sample 7"));
  EXPECT_EQ(facts["sample"]["text"], "Q Warp?\nA The weft.;\n");
  EXPECT_EQ(bytes_of("chat.loss").substr(0, 21), std::string(9, '\0') + std::string(11, '\1') + std::string(1, '\0'));
  put_run("chat.bin", "byte", 256);
  ok("train run.toml --data.documents=mask --training.sequence_length=21 --run.steps=2 --checkpoint.interval=2");
  const Json line = Json::parse(bytes_of("out/metrics.jsonl").substr(0, bytes_of("out/metrics.jsonl").find('\n')));
  EXPECT_EQ(line["targets"], 8 * 11);

  ok("data train-tokenizer text.txt --vocab-size 300 --output tok.json");
  EXPECT_NE(
      refused("data tokenize chat.jsonl --chat tokenizer --tokenizer tok.json --output own").find("no chat template"),
      std::string::npos);
  put("chat_template.jinja", source);
  ok("data tokenize chat.jsonl --chat tokenizer --tokenizer tok.json --no-end --output own");
  EXPECT_EQ(Json::parse(ok("data inspect own.bin --json --sample 7"))["sample"]["text"], facts["sample"]["text"]);
  put("chat_template.jinja", "\n{{ messages | nosuch }}");
  EXPECT_NE(refused("data tokenize chat.jsonl --chat tokenizer --tokenizer tok.json --output bad")
                .find("\"chat.jsonl\":1:14: chat_template.jinja:2: Weft knows no filter 'nosuch' of a list"),
            std::string::npos);
}

TEST_F(DataCommand, TokensOfAnotherTokenizerAreRefused) {
  ok("data train-tokenizer text.txt --vocab-size 300 --output tok.json");
  ok("data train-tokenizer held.txt --vocab-size 290 --output other.json");
  ok("data tokenize text.txt --tokenizer tok.json --output train");
  put_run("train.bin", "other.json", 290);
  EXPECT_NE(refused("train run.toml")
                .find("its tokens are those of \"tok.json\" (300 tokens), not of data.tokenizer "
                      "\"other.json\" (290 tokens)"),
            std::string::npos);
  put_run("text.txt", "tok.json", 300);
  EXPECT_NE(refused("check run.toml").find("weft data tokenize text.txt --tokenizer tok.json"), std::string::npos);
  put_run("train.bin", "tok.json", 301);
  EXPECT_NE(refused("check run.toml")
                .find("model.vocab_size 301 does not match data.tokenizer \"tok.json\", which has "
                      "300 tokens"),
            std::string::npos);
  put_run("train.bin", "tok.json", 299);
  EXPECT_NE(refused("check run.toml").find("model.vocab_size 299 is less than the 300 tokens"), std::string::npos);
  put_run("train.bin", "byte", 256);
  EXPECT_NE(refused("check run.toml").find("not of data.tokenizer \"byte\""), std::string::npos);
  std::filesystem::remove(folder_ / "train.json");
  EXPECT_NE(refused("check run.toml").find("uint16 ids, which are no bytes"), std::string::npos);
  put_run("train.bin", "none", 300);
  ok("train run.toml");
  EXPECT_NE(refused("generate out --prompt a").find("data.tokenizer is \"none\""), std::string::npos);
}

TEST_F(DataCommand, JsonLinesPackedOrNotAndAnyThreadsGiveTheSameBytes) {
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines +=
        "{\"id\": " + std::to_string(i) + ", \"doc\": {\"body\": \"line " + std::to_string(i) + " \\u00e9\\n\"}}\n";
  }
  put("a.jsonl", lines);
  ASSERT_EQ(run("gzip -k a.jsonl && zstd -q a.jsonl -o a.jsonl.zst || true").exit_code, 0);
  ok("data tokenize a.jsonl --key doc.body --tokenizer byte --output one --threads 1");
  ok("data tokenize a.jsonl.gz --key doc.body --tokenizer byte --output two --threads 3");
  EXPECT_EQ(bytes_of("one.bin"), bytes_of("two.bin"));
  EXPECT_EQ(bytes_of("one.idx"), bytes_of("two.idx"));
  if (std::filesystem::exists(folder_ / "a.jsonl.zst")) {
    ok("data tokenize a.jsonl.zst --key doc.body --tokenizer byte --output three");
    EXPECT_EQ(bytes_of("one.bin"), bytes_of("three.bin"));
  }
  // A stream that is cut short is no end.
  const std::string packed = bytes_of("a.jsonl.gz");
  std::ofstream(folder_ / "cut.jsonl.gz", std::ios::binary) << packed.substr(0, packed.size() / 2);
  EXPECT_NE(refused("data tokenize cut.jsonl.gz --key doc.body --tokenizer byte --output cut").find("cut short"),
            std::string::npos);
  for (const char* name : {"cut.bin", "cut.idx", "cut.json", "cut.bin.partial"}) {
    EXPECT_FALSE(std::filesystem::exists(folder_ / name)) << name;
  }
}

// Before the texts are read: the bad line behind them is not reached.
TEST_F(DataCommand, ATokenizerThatCannotBeMadeIsRefusedFirst) {
  put("bad.jsonl", "{\"text\": \"one and one\"}\n{\"text\": 2}\n");
  const std::string learn = "data train-tokenizer bad.jsonl --output ";
  EXPECT_NE(refused(learn + "tok.json --vocab-size 10").find("give at least 258"), std::string::npos);
  EXPECT_NE(refused(learn + "tok.json --vocab-size 260 --special x").find("is one character"), std::string::npos);
  EXPECT_NE(refused(learn + "tok.json --vocab-size 300 --special '<stop>'").find("none of <stop> would end a text"),
            std::string::npos);
  EXPECT_NE(refused(learn + "tok.json --vocab-size 99999999999").find("more than 2147483647"), std::string::npos);
  EXPECT_NE(refused(learn + "tok.json --vocab-size 260 --pattern gpt3").find("none of gpt2"), std::string::npos);
  EXPECT_NE(refused(learn + "/proc/tok.json --vocab-size 260").find("cannot be written"), std::string::npos);
  EXPECT_NE(refused(learn + "absent/tok.json --vocab-size 260").find("absent\" is no folder"), std::string::npos);
  EXPECT_NE(refused(learn + "tok.json --vocab-size 260").find("--bad-lines skip"), std::string::npos);
  EXPECT_NE(refused(learn + "tok.json --vocab-size 260 --bad-lines skip --key none").find("all 2 lines were left out"),
            std::string::npos);
  put("tok.json.partial", "mine");
  EXPECT_NE(refused(learn + "tok.json --vocab-size 260").find("tok.json.partial\" cannot be written: File exists"),
            std::string::npos);
  EXPECT_EQ(bytes_of("tok.json.partial"), "mine");
  std::filesystem::remove(folder_ / "tok.json.partial");
  EXPECT_NE(ok(learn + "tok.json --vocab-size 260 --bad-lines skip").find("1 line was left out"), std::string::npos);
}

TEST_F(DataCommand, ABadLineIsNamedOrCounted) {
  put("bad.jsonl", "{\"text\": \"one\"}\n{\"text\": 2}\n{\"txt\": \"three\"}\n{\"text\": \n\n{\"text\": \"five\"}\n");
  EXPECT_NE(
      refused("data tokenize bad.jsonl --tokenizer byte --output x").find("\"bad.jsonl\":2:10: \"text\" is a number"),
      std::string::npos);
  const std::string said = ok("data tokenize bad.jsonl --bad-lines skip --tokenizer byte --output x");
  for (const char* part : {":2:10: \"text\" is a number", ":3:1: the object has no key \"text\"", ":4:10: no JSON",
                           "3 lines were left out"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << "\n" << said;
  }
  EXPECT_EQ(Json::parse(ok("data inspect x.bin --json"))["documents"], 2);
  EXPECT_NE(refused("data tokenize bad.jsonl --bad-lines skip --tokenizer byte --output x").find("exists"),
            std::string::npos);
  // A file of somebody's under the name of the facts stays.
  put("mine.json", "[1, 2]");
  EXPECT_NE(refused("data tokenize text.txt --tokenizer byte --output mine").find("not the facts of a dataset"),
            std::string::npos);
  EXPECT_EQ(bytes_of("mine.json"), "[1, 2]");
  put("deep.jsonl", std::string(100'000, '[') + "\n");
  EXPECT_NE(refused("data tokenize deep.jsonl --tokenizer byte --output y").find("nested deeper"), std::string::npos);
}

// The pieces of all samples of an epoch are the windows of the file, each once.
TEST_F(DataCommand, SamplesNameTheTokensThatTheyRead) {
  put("bytes.txt", std::string(8 * 8 + 1, 'x'));
  put_run("bytes.txt", "byte", 256);
  std::set<int> begins;
  for (const auto& sample : Json::parse(ok("data samples run.toml --json"))) {
    EXPECT_EQ(sample["sample"], static_cast<int>(begins.size()));
    ASSERT_EQ(sample["pieces"].size(), 1u);
    const auto& piece = sample["pieces"][0];
    EXPECT_EQ(piece["file"], "bytes.txt");
    EXPECT_EQ(piece["count"], 9);
    begins.insert(piece["first"].get<int>());
  }
  EXPECT_EQ(begins, (std::set<int>{0, 8, 16, 24, 32, 40, 48, 56}));
  const std::string last = ok("data samples run.toml --first 31");
  EXPECT_EQ(last.find("sample 31: tokens "), 0u) << last;
  EXPECT_NE(refused("data samples run.toml --first 30 --count 3").find("0 to 31"), std::string::npos);
  EXPECT_NE(refused("data samples run.toml --data.order=megatron --data.train='[\"bytes.txt\",\"bytes.txt\"]'")
                .find("weight"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
