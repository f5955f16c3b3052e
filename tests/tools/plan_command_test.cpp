// `weft plan`: the document that scripts rely on says what the library says, and presets have the published numbers. A
// run that cannot be planned is refused with what would do.
#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/program.h"
#include "trainer/planning/run_plan.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using PlanCommand = ProgramTest;

const std::string llama = WEFT_SOURCE_DIR "/configs/plan_llama3_8b.toml";

TEST_F(PlanCommand, PrintsTheJsonOfThePlan) {
  const auto result = weft("plan '" + llama + "' --hardware h100 --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json json = Json::parse(result.output);
  const RunPlan plan = plan_run(read_config(llama).config, find_hardware("h100"));
  EXPECT_EQ(json["parameters_total"], 8'030'261'248);
  EXPECT_EQ(json["parameters_active"], 8'030'261'248);
  EXPECT_EQ(json["flops_per_token"].get<double>(), plan.flops_per_token);
  EXPECT_EQ(json["step_seconds"].get<double>(), plan.time.seconds);
  EXPECT_EQ(json["bubble"].get<double>(), plan.time.bubble);
  EXPECT_EQ(json["verdict"], name_of(plan.verdict.fit));
  ASSERT_EQ(json["ranks"].size(), plan.ranks.size());
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const Json& rank = json["ranks"][r];
    const RankPlan& planned = plan.ranks[r];
    EXPECT_EQ(rank["rank"], planned.ranks.first);
    EXPECT_EQ(rank["peak_bytes"], planned.peak.total());
    EXPECT_EQ(rank["peak_action"], planned.peak_action);
    std::int64_t buckets = 0, live = 0;
    for (const auto& [name, bytes] : rank["buckets"].items()) buckets += bytes.get<std::int64_t>();
    for (const Json& item : rank["live"]) live += item["bytes"].get<std::int64_t>();
    EXPECT_EQ(buckets, planned.peak.total());
    EXPECT_EQ(live, planned.peak.total());
    EXPECT_EQ(rank["unit_peak_bytes"]["unsharded_gradients"], planned.integral.peak[Bucket::unsharded_gradients]);
    EXPECT_EQ(rank["byte_steps"]["unsharded_parameters"], planned.integral.byte_steps[Bucket::unsharded_parameters]);
    EXPECT_EQ(rank["byte_seconds"]["unsharded_parameters"].get<double>(),
              plan.byte_seconds[r][Bucket::unsharded_parameters]);
  }
  ASSERT_EQ(json["communication"].size(), plan.communication.size());
  for (std::size_t i = 0; i < plan.communication.size(); ++i) {
    const Json& traffic = json["communication"][i];
    EXPECT_EQ(traffic["group"], plan.communication[i].group);
    EXPECT_EQ(traffic["operation"], name_of(plan.communication[i].op));
    EXPECT_EQ(traffic["count"], plan.communication[i].count);
    EXPECT_EQ(traffic["bytes"], plan.communication[i].bytes);
  }
}

TEST_F(PlanCommand, PrintsWhatIsLiveAndAVerdict) {
  const auto result = weft("plan '" + llama + "' --hardware a100-40gb");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  for (const char* part : {"8,030,261,248 parameters", "verdict    does not fit", "activations decides",
                           "memory at the peak", "live on rank 0 at", "units on rank 0 over the step",
                           "GiB x computing actions", "communication of a step", "GiB out of a node"}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in\n" << result.output;
  }
}

// Experts over ranks: the line of the time says what their exchanges take, and the parts of the critical path add up.
TEST_F(PlanCommand, SaysTheTimeOfExchanges) {
  put("small.toml", small_run);
  const auto result = weft("plan small.toml --hardware h100");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  for (const char* line :
       {"\n           exposed inside computation: ", "expert exchanges ", "\n           critical path: "}) {
    EXPECT_NE(result.output.find(line, result.output.find("\ntime ")), std::string::npos) << line << result.output;
  }
  const Json json = Json::parse(weft("plan small.toml --hardware h100 --json").output);
  EXPECT_GT(json["exposed_collectives_seconds"]["expert exchanges"].get<double>(), 0.0);
  double sum = 0.0;
  for (const auto& [what, seconds] : json["critical_path_seconds"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, json["step_seconds"].get<double>(), 1e-9 * sum);
  const auto dense = weft("plan '" + llama + "' --hardware h100");
  EXPECT_EQ(dense.output.find("inside computation"), std::string::npos) << dense.output;
  EXPECT_NE(dense.output.find("critical path: computation"), std::string::npos) << dense.output;
}

// Residency and reduction are given, because Weft would choose them to fit a smaller card. A card between what even
// routing and what the worst routing needs.
TEST_F(PlanCommand, JudgesBothRoutings) {
  put("small.toml", small_run);
  const std::string plan =
      "plan small.toml --hardware cpu --shard.residency=reshard_after_use --shard.reduction=last_microbatch ";
  const Json json = Json::parse(weft(plan + "--hardware.memory=1GiB --json").output);
  const auto even = json["needed_bytes"].get<std::int64_t>(), worst = json["worst_needed_bytes"].get<std::int64_t>();
  ASSERT_GT(static_cast<double>(worst), static_cast<double>(even) / Verdict::limit + 2.0);
  EXPECT_EQ(json["worst_verdict"], "fits");
  const auto on = [&](std::int64_t bytes, const std::string& more = "") {
    return weft(plan + more + fmt::format(" '--hardware.memory={} B'", bytes)).output;
  };
  EXPECT_NE(on(1 << 30).find("\nrouting    fits with even routing, fits with worst routing: at most "),
            std::string::npos);
  const std::string between = on(worst - 1);
  EXPECT_NE(between.find("\nrouting    fits with even routing, does not fit with worst routing: "), std::string::npos)
      << between;
  EXPECT_NE(on(worst).find("fits with even routing, does not fit safely with worst routing: "), std::string::npos);
  const std::string why = on(worst - 1, "--explain");
  EXPECT_NE(why.find("\nrouting   fits with even routing, does not fit with worst routing: "), std::string::npos)
      << why;
  EXPECT_NE(why.find("nothing has to be changed while tokens are routed evenly"), std::string::npos) << why;
  // The same words for a tight card wherever they are said.
  EXPECT_NE(on(even).find("\nverdict    does not fit safely: "), std::string::npos);
  EXPECT_NE(on(even, "--explain").find("verdict   does not fit safely: "), std::string::npos);
  EXPECT_NE(on(even, "--compare").find("does not fit safely with even routing, does not fit with worst routing"),
            std::string::npos);
  // Without a card neither is judged, which is said once.
  const std::string unjudged = weft(plan + "--compare").output;
  EXPECT_NE(unjudged.find("  not judged\n"), std::string::npos) << unjudged;
  EXPECT_EQ(unjudged.find("not judged with"), std::string::npos) << unjudged;
}

// A run of less than a MiB is told in KiB wherever it is planned, and one on a card in GiB.
TEST_F(PlanCommand, TellsSmallRunsInSmallUnits) {
  put("small.toml", small_run);
  const std::string plan = "plan small.toml --hardware cpu ", small = "'--hardware.memory=128 KiB' ";
  const std::int64_t needed = Json::parse(weft(plan + small + "--json").output)["needed_bytes"];
  ASSERT_LT(needed, 1 << 20);
  for (const char* mode : {"", "--explain", "--compare", "--advise"}) {
    const auto result = weft(plan + small + mode);
    ASSERT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(result.output.find("GiB"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find(" KiB with 0.00 KiB reserved exceeds 128.00 KiB by "), std::string::npos)
        << result.output;
  }
  EXPECT_NE(
      weft(plan + small).output.find(fmt::format("does not fit: {:.2f} KiB ", static_cast<double>(needed) / 1024.0)),
      std::string::npos);
  EXPECT_NE(weft(plan + small + "--compare").output.find("\nkB of the fullest rank "), std::string::npos);
  EXPECT_NE(weft(plan).output.find("\nmemory at the peak, KiB, "), std::string::npos);
  EXPECT_NE(weft("plan small.toml --hardware h100").output.find(" GiB with 2.00 GiB reserved of 80.00 GiB, "),
            std::string::npos);
}

TEST_F(PlanCommand, WarnsOfAnotherDeviceAndOfSlowProducts) {
  const std::string device = "the plan is for h100 (hardware.name), but run.device = \"cpu\"";
  const std::string slow = "precision.compute = \"float32\": products are 14.8 times slower than in bfloat16 on h100";
  put("small.toml", small_run);
  const auto count = [](const std::string& text, const std::string& part) {
    return text.find(part) == std::string::npos ? 0 : text.find(part) == text.rfind(part) ? 1 : 2;
  };
  for (const char* mode :
       {"", " --explain", " --compare", " --advise", " --search schedule=1f1b pipeline=2 tensor=1"}) {
    const std::string said = weft(std::string("plan small.toml --hardware h100 ") + mode).messages;
    EXPECT_EQ(count(said, device), 1) << mode << said;
    EXPECT_EQ(count(said, slow), 1) << mode << said;
  }
  EXPECT_EQ(count(weft("plan small.toml --hardware h100 --precision.compute=bfloat16").messages, slow), 0);
  EXPECT_EQ(weft("plan small.toml").messages, "");
  EXPECT_EQ(weft("plan '" + llama + "' --hardware h100").messages, "");
}

// SGD reads no betas: with betas on the command line, its words cannot be typed behind them.
TEST_F(PlanCommand, RemediesCanBeTypedBehindTheWordsGiven) {
  put("small.toml", small_run);
  const std::string words = " small.toml --hardware.name=cpu '--hardware.memory=64 KiB' '--optimizer.betas=[0.9, 0.9]'";
  const auto result = weft("plan" + words + " --explain --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json found = Json::parse(result.output);
  ASSERT_FALSE(found["remedies"].empty());
  for (const Json& remedy : found["remedies"]) {
    std::string more;
    for (const Json& word : remedy["words"]) more += " '" + word.get<std::string>() + "'";
    const std::string told = weft("check" + words + more).messages;
    EXPECT_EQ(told.find("nothing in this run reads it"), std::string::npos) << more << "\n" << told;
    EXPECT_EQ(more.find("sgd"), std::string::npos) << "it reads no betas";
  }
}

// Experts deal at most 2,147,483,647 choices of tokens.
TEST_F(PlanCommand, TellsSizesThatExceedTheCardFromThoseThatAreRefused) {
  put("small.toml", small_run);
  const auto on = [&](const std::string& memory) {
    return "plan small.toml --hardware cpu --explain --training.sequence_length=262144 --training.microbatch_size=1024 "
           "--training.global_batch_size=2048 '--hardware.memory=" +
           memory + "' ";
  };
  const std::string reached = weft(on("1 TiB")).output, refused = weft(on("1024 TiB")).output;
  EXPECT_NE(reached.find(" does not: "), std::string::npos) << reached;
  EXPECT_EQ(reached.find(" is refused: "), std::string::npos) << reached;
  EXPECT_EQ(refused.find(" does not: "), std::string::npos) << refused;
  EXPECT_NE(refused.find("GiB, 4096 is refused: microbatch_size 4096 x sequence_length 262144"), std::string::npos)
      << refused;
  const Json limit = Json::parse(weft(on("1024 TiB") + "--json").output)["limits"][0];
  EXPECT_EQ(limit["refused"], 4096);
  EXPECT_NE(limit["reason"].get<std::string>().find("tokens to deal"), std::string::npos);
  const std::string neither = weft("plan small.toml --hardware cpu --explain '--hardware.memory=1024 TiB'").output;
  EXPECT_NE(neither.find("GiB; none of the sizes tried (up to 16777216) reaches the limit\n"), std::string::npos)
      << neither;
}

// The last line is a command that can be typed.
TEST_F(PlanCommand, AComparisonNamesTheCommandThatSaysMore) {
  put("small.toml", small_run);
  const std::string text = weft("plan small.toml --compare --hardware h100 --training.microbatch_size=1").output;
  const std::string begin = "\nweft plan ", end = " --explain says what fills the memory";
  const std::size_t at = text.rfind(begin);
  ASSERT_NE(at, std::string::npos) << text;
  const std::string command = text.substr(at + begin.size(), text.find(end, at) - at - begin.size());
  EXPECT_EQ(command, "small.toml --training.microbatch_size=1 --hardware.name=h100");
  EXPECT_EQ(weft("plan " + command + " --explain").exit_code, 0);
}

// Stages without blocks have no block to cost.
TEST_F(PlanCommand, PlansStagesWithoutBlocks) {
  put("empty.toml", std::string(small_run) + "");
  for (const std::string layers : {"d", "d e d e d e"}) {
    const std::string layout = layers == "d" ? "Ed||L" : "Edede||deL";
    const std::string words = " empty.toml --model.layers='" + layers +
                              "' --parallelism.pipeline=3 --pipeline.layout='" + layout +
                              "' --parallelism.data_shard=1 --parallelism.tensor=1 --parallelism.expert=1";
    for (const char* command : {"plan", "layout simulate"}) {
      const auto result = weft(command + words + " --hardware h100");
      EXPECT_EQ(result.exit_code, 0) << command << words << "\n" << result.messages;
    }
  }
}

// A family that gives the default's value itself is not reached by words of the default.
TEST_F(PlanCommand, WordsOfAComparisonPlanWhatItTells) {
  for (const std::string policy :
       {"reduction = \"each_microbatch\"\n", "strategy = \"full_shard\"\nresidency = \"reshard_after_use\"\n"}) {
    put("families.toml", std::string(small_run) + "\n[shard]\n" + policy + "[shard.experts]\n" + policy);
    const auto compared = weft("plan families.toml --compare --json --hardware h100");
    ASSERT_EQ(compared.exit_code, 0) << compared.messages;
    std::size_t judged = 0;
    const Json comparison = Json::parse(compared.output);
    for (const Json& each : comparison.at("strategies")) {
      if (!each.contains("step_seconds")) continue;
      std::string words;
      for (const Json& word : each.at("words")) words += " '" + word.get<std::string>() + "'";
      const auto plan = weft("plan families.toml --json --hardware h100" + words);
      ASSERT_EQ(plan.exit_code, 0) << words << "\n" << plan.messages;
      EXPECT_EQ(Json::parse(plan.output).at("step_seconds"), each.at("step_seconds")) << words;
      ++judged;
    }
    EXPECT_GE(judged, 4U);
  }
}

// An embedding and a head on the ends of a pipeline: two ranks hold a copy, whatever is between them.
TEST_F(PlanCommand, CountsTheRanksOfATie) {
  put("tied.toml", small_run);
  std::vector<double> sent;
  for (const std::string pipeline : {"2", "4"}) {
    const auto plan = weft(
        "plan tied.toml --json --model.tie_word_embeddings=true --model.layers='d*4' --pipeline.layout=auto "
        "--parallelism.expert=1 --parallelism.tensor=1 --parallelism.data_shard=1 --parallelism.pipeline=" +
        pipeline);
    ASSERT_EQ(plan.exit_code, 0) << plan.messages;
    const Json json = Json::parse(plan.output);
    for (const Json& row : json.at("communication")) {
      if (row.at("group") == "tied") sent.push_back(row.at("sent_by_a_rank").get<double>());
    }
  }
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[0], sent[1]);
}

TEST_F(PlanCommand, RefusesWhatCannotBePlanned) {
  const auto card = weft("plan '" + llama + "' --hardware h10");
  EXPECT_EQ(card.exit_code, 2);
  EXPECT_NE(card.messages.find("h100"), std::string::npos) << card.messages;
  const auto topology = weft("plan '" + llama + "' --parallelism.pipeline=3 --parallelism.data_shard=4");
  EXPECT_EQ(topology.exit_code, 2);
  EXPECT_NE(topology.messages.find("12 ranks do not fill nodes of 8"), std::string::npos) << topology.messages;
  const auto heads = weft("plan '" + llama + "' --parallelism.tensor=3 --parallelism.data_shard=8");
  EXPECT_EQ(heads.exit_code, 2);
  EXPECT_NE(heads.messages.find("parallelism"), std::string::npos) << heads.messages;
  put("small.toml", small_run);
  const auto coarse = weft("plan small.toml --coarse");
  EXPECT_EQ(coarse.exit_code, 2);
  EXPECT_NE(coarse.messages.find("cpu has no memory of its own: name a card with --hardware"), std::string::npos)
      << coarse.messages;
  EXPECT_EQ(weft("plan small.toml --coarse --hardware h100").exit_code, 0);
  EXPECT_EQ(weft("plan --coarse --parameters inf").exit_code, 2);
  EXPECT_EQ(weft("plan --coarse --parameters 1e30").exit_code, 2);
  EXPECT_EQ(weft("plan --coarse --parameters 1e9 --layer-parameters 2e9").exit_code, 2);
  EXPECT_EQ(weft("plan small.toml --coarse --hardware.memory=1GiB").exit_code, 0);
  for (const auto& result : {card, topology, heads, coarse}) EXPECT_EQ(result.output, "");
}

// A layer of the formulas is a block with attention and an MLP, or two of one part.
TEST_F(PlanCommand, CoarseCountsBlocksOfOnePartAsHalvesOfALayer) {
  const auto coarse = [&](const std::string& layers) {
    const auto result = weft("plan '" + llama + "' --coarse --hardware h100 '--model.layers=" + layers + "'");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return result.output.substr(result.output.find("activations of "));
  };
  EXPECT_EQ(coarse("(A D)*12"), coarse("d*12"));
  EXPECT_NE(coarse("(A D)*12 D"), coarse("d*12"));
}

// Tables and document are of one plan; the whole is the sum of its rows.
TEST_F(PlanCommand, PrintsTheKernelsOfAStep) {
  const std::string moe = std::string("plan '") + WEFT_SOURCE_DIR + "/configs/h200_moe_8x1b.toml' --kernels";
  const auto result = weft(moe + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json json = Json::parse(result.output);
  ASSERT_EQ(json["product_shares"].size(), json["seconds"].size());
  for (std::size_t i = 0; i < json["seconds"].size(); ++i) {
    double rows = 0.0, kinds = 0.0;
    for (const Json& row : json["rows"]) rows += row["seconds"][i].get<double>();
    for (const Json& kind : json["kinds"]) kinds += kind["seconds"][i].get<double>();
    const auto all = json["seconds"][i].get<double>();
    EXPECT_NEAR(rows, all, 1e-9 * all);
    EXPECT_NEAR(kinds, all, 1e-9 * all);
    EXPECT_NEAR(json["utilisation"][i].get<double>() * all * 989.4e12, json["step_flops"].get<double>(), 1e6);
  }
  const std::string text = weft(moe).output;
  const auto share = fmt::format("\n65 %               {:.4f}", json["kinds"][0]["seconds"][0].get<double>());
  EXPECT_NE(text.find(share), std::string::npos) << share << text;
  EXPECT_NE(text.find("experts forward"), std::string::npos);
  EXPECT_NE(text.find("on paper: no kernel has run"), std::string::npos);
  EXPECT_EQ(weft(moe + " --explain").exit_code, 2);
  const auto refused = weft(moe + " --hardware cpu");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("how fast the memory of \"cpu\" is"), std::string::npos) << refused.messages;
}

// A table as the kernel table's library writes it: of two steps, of a dense model's kernels.
TEST_F(PlanCommand, SaysWhatMeasuredKernelsReached) {
  const std::string dense = std::string("plan '") + WEFT_SOURCE_DIR + "/configs/h200_dense_1_5b.toml' --kernels";
  const Json json = Json::parse(weft(dense + " --json").output);
  double flops = 0.0, bytes = 0.0;
  for (const Json& row : json["rows"]) {
    if (row["part"] != "mlp" || row["phase"] != "forward") continue;
    (row["kind"] == "product" ? flops : bytes) += row[row["kind"] == "product" ? "flops" : "bytes"].get<double>();
  }
  const std::string header = "ms\t% of span\tcalls\tmean us\tregisters\tgrid or bytes\tblock\trange\tkernel\n";
  put("table.tsv",
      "span 4400.000 ms, busy 4300.000 ms, idle 2.27 %, 17000 launches\n\n"
      "ms\t% of span\tcalls\tmean us\trange\n1000.000\t50.00\t896\t892.86\tF mlp\n\n" +
          header +
          "800.000\t18.18\t448\t1785.71\t168\t132\t384\tF mlp\tnvjet_tst_256x128_64x4_2x1_v_bz_TNT\n"
          "100.000\t2.27\t224\t446.43\t40\t100\t256\tF mlp\tvoid weft::cuda::swiglu_forward<weft::bfloat16>\n"
          "60.000\t1.00\t4\t9.00\t40\t100\t256\tunshard mlp\tncclDevKernel_AllGather_RING_LL\n"
          "30.000\t1.00\t4\t9.00\t40\t100\t256\t-\tvoid weft::cuda::fill<float>\n");
  auto result = weft(dense + " --measured table.tsv");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  // The cells of a line of the last table.
  const auto cells_of = [&](const std::string& begin) {
    const std::size_t table = result.output.find("of a step that ran");
    std::istringstream line(result.output.substr(result.output.find("\n" + begin, table) + 1 + begin.size()));
    std::string text;
    std::getline(line, text);
    std::istringstream words(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
  };
  // 400 ms of products and 50 ms of the rest a step.
  const std::vector<std::string> products = cells_of("mlp forward ");
  ASSERT_EQ(products.size(), 7u) << result.output;
  EXPECT_EQ(products[0], "product");
  EXPECT_EQ(products[1], "224");
  EXPECT_EQ(products[2], "224");
  EXPECT_EQ(products[4], "400.00");
  EXPECT_EQ(products[5], fmt::format("{:.0f}", flops / 0.4 / 1e12));
  EXPECT_EQ(products[6], "-");
  EXPECT_NE(result.output.find(fmt::format("50.00        -  {:>4.0f}\n", bytes / 0.05 / 1e9)), std::string::npos)
      << result.output;
  for (const char* found : {"units gather", "communication"}) {
    EXPECT_NE(result.output.find(found, result.output.find("of a step that ran")), std::string::npos) << found;
  }
  // Work inside experts is theirs.
  put("table.tsv", header +
                       "100.000\t1\t2\t1\t1\t1\t1\tF experts products\tnvjet_a\n"
                       "20.000\t1\t2\t1\t1\t1\t1\tF experts\tnvjet_b\n");
  result = weft(dense + " --measured table.tsv");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_EQ(cells_of("experts forward ").at(4), "60.00") << result.output;
  put("table.tsv", header + "800.000\t18.18\t448\n");
  const auto cut = weft(dense + " --measured table.tsv");
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_NE(cut.messages.find("table.tsv:2: 3 columns of 9"), std::string::npos) << cut.messages;
  put("table.tsv", header + "fast\t1\t1\t1\t1\t1\t1\tF mlp\tx\n");
  EXPECT_EQ(weft(dense + " --measured table.tsv").exit_code, 2);
  put("table.tsv", "nothing of the kind\n");
  EXPECT_EQ(weft(dense + " --measured table.tsv").exit_code, 2);
  EXPECT_EQ(weft("plan '" + llama + "' --measured table.tsv").exit_code, 2);  // of --kernels alone
}

}  // namespace
}  // namespace weft
