// Settings that were said and those that only follow. A resolved and written configuration is overridden as the one
// that it was read from, and an override that nothing reads is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/trainer/config_sample.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/config_sources.h"
#include "trainer/optimizer/learning_rate.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::with;

// Of which each general key takes some.
constexpr const char* values[] = {"\"no_shard\"",
                                  "\"shard_grad_op\"",
                                  "\"optimizer\"",
                                  "\"step\"",
                                  "\"reshard_after_use\"",
                                  "\"half_block\"",
                                  "3",
                                  "\"sharded\"",
                                  "\"unsharded\"",
                                  "\"bfloat16\"",
                                  "\"last_microbatch\"",
                                  "\"float16\"",
                                  "\"lion\"",
                                  "\"sgd\"",
                                  "\"muon\"",
                                  "0.25",
                                  "[0.5, 0.75]",
                                  "\"aspect\"",
                                  "\"post\"",
                                  "true"};

// Sections of families and groups say nothing, and [shard] nothing that some values contradict.
std::string bare_text() {
  const std::string text =
      with("[shard.experts]\nresidency = \"reshard_after_use\"\n[shard.root]\nstrategy = \"no_shard\"\n", "");
  return with("reduction = \"every 3\"\n", "", with("residency = \"while_on_stage\"\n", "", text));
}

// Every key written, as resolved files once were.
std::string all_said(const Config& config) {
  return write_config(config, config_schema(), [](const ConfigKey&) { return std::string(); });
}

// The general keys.
std::set<std::string> inherited_paths() {
  std::set<std::string> paths;
  for (const ConfigKey& key : config_schema()) {
    if (!key.inherits.empty()) paths.insert(key.inherits);
  }
  return paths;
}

bool takes(const std::string& path, const std::string& value) {
  return config_sample::message(bare_text(), {path + "=" + value}).find(path + ": ") == std::string::npos;
}

struct Outcome {
  bool accepted = false;
  Config config;
  std::size_t unread = 0;
};
Outcome outcome(const std::string& text, const Overrides& overrides) {
  try {
    const ResolvedConfig resolved = read_config_text(text, "run.toml", overrides);
    return {true, resolved.config, resolved.unread.size()};
  } catch (const Error&) {
    return {};
  }
}

// The oracle is the original: it says no more than was said.
TEST(ResolvedText, IsOverriddenAsTheOriginalIs) {
  const std::string some = with("[run]\n",
                                "[optimizer.experts]\nlearning_rate = 0.5\nbetas = [0.1, 0.2]\n"
                                "[precision.head]\ncompute = \"float32\"\n[run]\n",
                                bare_text());
  const std::string everything = all_said(read_config_text(bare_text(), "run.toml").config);
  const std::set<std::string> paths = inherited_paths();
  EXPECT_EQ(paths.size(), 20u);  // 8 of [shard], 3 of [precision], 9 of [optimizer]
  for (const std::string& text : {bare_text(), some, everything}) {
    const ResolvedConfig first = read_config_text(text, "run.toml");
    const ResolvedConfig again = read_config_text(first.toml, "again.toml");
    EXPECT_EQ(again.config, first.config);
    EXPECT_EQ(again.toml, first.toml);
    for (const std::string& path : paths) {
      int changing = 0;
      for (const char* value : values) {
        if (!takes(path, value)) continue;
        const Overrides overrides = {path + "=" + value};
        const Outcome one = outcome(text, overrides), other = outcome(first.toml, overrides);
        EXPECT_EQ(one.accepted, other.accepted) << overrides.front();
        EXPECT_EQ(one.config, other.config) << overrides.front();
        EXPECT_EQ(one.unread, other.unread) << overrides.front();
        if (!one.accepted) continue;
        changing += one.config.shard_by_family != first.config.shard_by_family ||
                    one.config.precision_by_family != first.config.precision_by_family ||
                    one.config.optimizer_by_group != first.config.optimizer_by_group;
      }
      // Families follow, unless each has a value of its own.
      if (text == everything) {
        EXPECT_EQ(changing, 0) << path;
      } else {
        EXPECT_GT(changing, 0) << path;
      }
    }
  }
}

TEST(ResolvedText, FollowsAGeneralKeyOfAFileThatIncludesIt) {
  const TemporaryFolder folder;
  std::ofstream(folder / "resolved.toml") << read_config_text(bare_text(), "run.toml").toml;
  std::ofstream(folder / "run.toml") << "include = [\"resolved.toml\"]\n[precision]\ncompute = \"float32\"\n";
  const Config config = read_config(folder / "run.toml").config;
  for (const Family family : shard_families) EXPECT_EQ(config.precision_of(family).compute, DType::float32);
}

// A learning rate for the groups of a family that says its own stays.
TEST(ResolvedText, KeepsWhatWasSaid) {
  const ResolvedConfig first = read_config_text(bare_text(), "run.toml", {"optimizer.experts.learning_rate=0.5"});
  const std::string experts = first.toml.substr(first.toml.find("[optimizer.experts]"));
  EXPECT_TRUE(
      experts.starts_with("[optimizer.experts]\n# name = \"adamw\"\nlearning_rate = 0.5\n# betas = [0.8, 0.99]\n"))
      << experts;
  const Config config = read_config_text(first.toml, "again.toml", {"optimizer.learning_rate=0.25"}).config;
  for (const auto& [group, options] : config.optimizer_by_group) {
    EXPECT_EQ(options.learning_rate, group == UpdateGroup::experts ? 0.5 : 0.25) << name_of(group);
  }
}

// Files of earlier versions, in which every key is written.
TEST(ResolvedText, WithEveryKeySaidIsReadAndItsGeneralKeysDecideNothing) {
  const Config config = read_config_text(complete(), "run.toml").config;
  const std::string text = all_said(config);
  const std::vector<ConfigKey> schema = config_schema();
  EXPECT_EQ(read_config_text(text, "old.toml").config, config);
  for (const std::string& path : inherited_paths()) {
    const auto key = std::ranges::find_if(schema, [&](const ConfigKey& each) { return each.path() == path; });
    const ResolvedConfig resolved = read_config_text(text, "old.toml", {path + "=" + key->write(config)});
    ASSERT_EQ(resolved.unread.size(), 1u) << path;
    EXPECT_NE(resolved.unread.front().find(path + ": nothing in this run reads it: "), std::string::npos);
  }
}

// A string is a list of one wherever a list of strings is read.
TEST(ConfigOverrides, AStringIsAListOfOne) {
  const auto read = [](const Overrides& overrides) {
    return read_config_text(complete(), "run.toml", overrides).config;
  };
  for (const char* text : {"data.train=mine.txt", "data.train=\"mine.txt\"", "data.train=[\"mine.txt\"]"}) {
    EXPECT_EQ(read({text}).data.train, std::vector<DataSource>{std::string("mine.txt")}) << text;
  }
  EXPECT_EQ(read({"training.frozen=embedding"}).training.frozen, std::set<Family>{Family::embedding});
  EXPECT_EQ(read({"checkpoint.allow_unused=*.exp_avg"}).checkpoint.allow_unused, std::vector<std::string>{"*.exp_avg"});
}

struct Unread {
  Overrides overrides;
  std::string fault;  // empty: all are read
};

TEST(UnreadOverrides, AreNamedWithWhatWouldReadThem) {
  const std::string moe = " it is read where the model has MoE blocks (e, E)";
  const std::string own = with("[precision]\n",
                               "[precision.dense]\ncompute = \"float32\"\n[precision.embedding]\n"
                               "compute = \"float32\"\n[precision.head]\ncompute = \"float32\"\n"
                               "[precision]\n");
  const std::string dense = with("[shard.experts]\nresidency = \"reshard_after_use\"\n", "",
                                 with("layers = \"d e*3\"", "layers = \"d*4\"", with("expert = 2", "expert = 1")));
  const std::vector<std::pair<std::string, std::vector<Unread>>> cases = {
      {complete(),
       {{{"precision.compute=float32"}, ""},
        {{"optimizer.momentum=0.5"},
         "optimizer.momentum: nothing in this run reads it: dense, experts, embedding, head, routing, vectors read it "
         "where name is \"sgd\" or \"muon\"; root reads it where root holds a matrix"},
        {{"optimizer.momentum=0.5", "optimizer.experts.name=sgd"}, ""},
        {{"optimizer.experts.momentum=0.5"}, "it is read where name is \"sgd\" or \"muon\""},
        {{"optimizer.eps=1e-6", "optimizer.name=lion"}, "read it where name is \"adamw\" or \"lamb\""},
        {{"optimizer.vectors.muon_scale=aspect"}, "it is read where name is \"muon\""},
        {{"optimizer.state=bfloat16", "optimizer.name=sgd", "optimizer.momentum=0"}, "keeps a state beside each"},
        {{"optimizer.experts.eps=1e-6", "training.frozen=[\"experts\"]"},
         "it is read where training.frozen leaves experts out"},
        {{"precision.head.reduction=float32", "training.frozen=[\"head\"]"},
         "it is read where training.frozen leaves head out"},
        {{"precision.head.compute=float32", "training.frozen=[\"head\"]"}, ""},
        {{"shard.root.lookahead=3"}, "it is read where a family has wrap \"root\""},
        {{"lr_scheduler.decay_steps=5"}, ""},
        {{"lr_scheduler.decay_steps=5", "lr_scheduler.decay=linear"}, "it is read where decay is \"wsd\""},
        {{"lr_scheduler.min_lr_ratio=0.5", "lr_scheduler.decay=constant"},
         "it is read where decay is not \"constant\""},
        {{"training.initial_loss_scale=1024"}, "something is computed or reduced in \"float16\""},
        {{"training.initial_loss_scale=1024", "precision.experts.compute=float16"}, ""},
        {{"model.moe.aux_loss=global"}, ""},
        {{"model.moe.aux_loss=global", "model.moe.router_aux_loss_coef=0"},
         "it is read where router_aux_loss_coef is not 0"},
        {{"model.moe.bias_update=proportional", "model.moe.selection_bias=true"}, ""},
        {{"model.moe.bias_update_rate=0", "model.moe.selection_bias=true"}, ""},
        {{"model.moe.bias_update=proportional", "model.moe.bias_update_rate=0", "model.moe.selection_bias=true"},
         "it is read where bias_update_rate is not 0"},
        {{"model.moe.bias_schedule=learning_rate", "model.moe.bias_update_rate=0", "model.moe.selection_bias=true"},
         "it is read where bias_update_rate is not 0"},
        {{"model.moe.bias_update=proportional", "model.moe.selection_bias=true", "training.frozen=[\"routing\"]"},
         "it is read where training.frozen leaves routing out"},
        {{"model.moe.bias_schedule=learning_rate", "model.moe.selection_bias=true", "training.frozen=[\"routing\"]"},
         "it is read where training.frozen leaves routing out"},
        {{"model.moe.bias_update_rate=0.1", "model.moe.selection_bias=true", "training.frozen=[\"routing\"]"},
         "it is read where training.frozen leaves routing out"},
        {{"data.index_cache=tables"}, "it is read where order is \"megatron\" or documents is \"pack\""},
        {{"data.index_cache=tables", "data.order=megatron"}, ""},
        {{"data.index_cache=tables", "data.documents=pack"}, ""},
        {{"checkpoint.at_first_step=true"}, "it is read where interval is not 0"},
        {{"checkpoint.at_end=false"}, ""},
        {{"checkpoint.weights_only=false"}, "it is read where start_from names a checkpoint"},
        {{"checkpoint.allow_missing=*.exp_avg"}, ""},
        {{"checkpoint.allow_missing=*.exp_avg", "checkpoint.resume=false"},
         "it is read where resume is true or start_from names a checkpoint"},
        {{"checkpoint.allow_missing=*.exp_avg", "checkpoint.resume=false", "checkpoint.start_from=other"}, ""},
        {{"checkpoint.allow_new_data=true", "checkpoint.resume=false", "checkpoint.start_from=other"},
         "it is read where resume is true, or weights_only false for a start_from"},
        {{"checkpoint.allow_new_data=true", "checkpoint.resume=false", "checkpoint.start_from=other",
          "checkpoint.weights_only=false"},
         ""},
        {{"run.deterministic=true"}, "it is read where device is \"cuda\""},
        {{"run.measured_products=false"}, "it is read where device is \"cuda\""},
        {{"run.deterministic=true", "run.measured_products=false", "run.device=cuda", "run.launch=processes"}, ""},
        {{"shard.prefetch_within_stage=true"}, "it is read where a rank runs several stages"},
        {{"shard.head.prefetch_within_stage=true"}, "it is read where a rank runs several stages"},
        {{"shard.prefetch_within_stage=true", "pipeline.schedule=interleaved", "pipeline.chunks=2"}, ""},
        {{"profiling.trace=true"}, ""},
        {{"profiling.trace=true", "profiling.first_step=0", "profiling.last_step=0"},
         "it is read where first_step names a step"}}},
      {own,
       {{{"precision.compute=bfloat16"}, ""},                                       // experts follow
        {{"precision.compute=bfloat16", "precision.experts.compute=float32"}, ""},  // replaced in plain sight
        {{"precision.compute=bfloat16", "model.layers=dddd", "parallelism.expert=1"},
         "precision.compute: nothing in this run reads it: dense (run.toml:52), embedding (run.toml:54), head "
         "(run.toml:56) have values of their own; experts reads it where the model has MoE blocks (e, E); root reads "
         "it "
         "where a family has wrap \"root\""}}},
      {dense,
       {{{"shard.experts.residency=step"}, "shard.experts.residency: nothing in this run reads it:" + moe},
        {{"precision.experts.compute=float32"}, moe},
        {{"optimizer.routing.name=lion"}, moe},
        {{"model.moe.num_experts=4"}, moe},
        {{"model.intermediate_size=768"}, ""}}},
  };
  for (const auto& [text, unread] : cases) {
    // What stands in files is for other runs, too.
    EXPECT_TRUE(read_config_text(text, "run.toml").unread.empty());
    for (const auto& [overrides, fault] : unread) {
      const ResolvedConfig resolved = read_config_text(text, "run.toml", overrides);
      ASSERT_EQ(resolved.unread.empty(), fault.empty()) << overrides.front() << "\n"
                                                        << (resolved.unread.empty() ? "" : resolved.unread.front());
      if (fault.empty()) continue;
      EXPECT_TRUE(resolved.unread.front().starts_with("command line: --")) << resolved.unread.front();
      EXPECT_NE(resolved.unread.front().find(fault), std::string::npos) << resolved.unread.front();
    }
  }
}

// Keys of an inline table are keys like others.
TEST(RepeatedOverrides, AreFoundByKey) {
  EXPECT_NO_THROW(require_keys_once({"parallelism={tensor = 1}", "--parallelism={expert = 1}", "run.steps=3"}));
  try {
    require_keys_once({"parallelism={tensor = 1}", "--run.steps=3", "--parallelism.tensor=1"});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_STREQ(error.what(),
                 "command line: --parallelism.tensor=1: error: parallelism.tensor is given twice, by "
                 "--parallelism={tensor = 1} and by --parallelism.tensor=1: leave one out");
  }
}

// The conditions of [optimizer.<group>], written down by family, against the parameters that a model has.
TEST(UnreadOverrides, AGroupIsReadWhereParametersAreSteppedInIt) {
  Config config = read_config_text(complete(), "run.toml").config;
  const Family families[] = {Family::dense, Family::experts, Family::embedding, Family::head, Family::routing};
  for (const char* layers : {"d", "e", "de"}) {
    for (const bool tied : {false, true}) {
      for (unsigned frozen = 0; frozen < 1u << std::size(families); ++frozen) {
        config.model.blocks = parse_layers(layers).blocks;
        config.model.tie_word_embeddings = tied;
        config.training.frozen.clear();
        for (std::size_t f = 0; f < std::size(families); ++f) {
          if ((frozen >> f & 1u) != 0) config.training.frozen.insert(families[f]);
        }
        std::vector<UpdateGroup> read;
        for (const UpdateGroup group : update_groups) {
          const auto conditions = config_fields::trains_group(group);
          const auto holds = [&](const KeyCondition& condition) { return condition.holds(config); };
          if (std::ranges::all_of(conditions, holds)) read.push_back(group);
        }
        EXPECT_EQ(read, trained_groups(config)) << layers << " " << tied << " " << frozen;
      }
    }
  }
}

}  // namespace
}  // namespace weft
