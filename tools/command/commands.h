// The commands of the program `weft`, one source file for each or for a few that share code. A command adds its options
// and runs when CLI11 calls it back. Failures are reported by throwing Error. Results go to standard output, messages
// to standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/resolve/config_reader.h"

namespace weft {

class CheckpointReader;
class DocumentReader;
struct DocumentRules;

// The exit code of a run that was asked to save and exit (EX_TEMPFAIL of sysexits.h): the run should be started again.
inline constexpr int stopped_by_signal = 75;
// Of a command that failed, whose output was refused, or that found what it was asked to fail for.
inline constexpr int failed_run = 3;

void add_init_command(CLI::App& program);
// `command_line` is recorded in the summary of the run.
void add_train_command(CLI::App& program, const std::string& command_line);
// Throws CLI::RuntimeError with the exit code of a rank that failed.
void add_launch_command(CLI::App& program);
void add_check_command(CLI::App& program);
void add_units_command(CLI::App& program);
void add_program_command(CLI::App& program);
void add_plan_command(CLI::App& program);
void add_walk_command(CLI::App& program);
void add_layout_show_command(CLI::App& layout);
void add_layout_simulate_command(CLI::App& layout);
void add_layout_sweep_command(CLI::App& layout);
// Throws CLI::RuntimeError with failed_run if findings count as failures.
void add_diagnose_command(CLI::App& program);
void add_receipt_command(CLI::App& program);
void add_report_command(CLI::App& program);
void add_trace_sum_command(CLI::App& trace);
void add_trace_costs_command(CLI::App& trace);
void add_data_tokenize_command(CLI::App& data);
void add_data_train_tokenizer_command(CLI::App& data);
void add_data_inspect_command(CLI::App& data);
void add_data_samples_command(CLI::App& data);
void add_eval_command(CLI::App& program);
void add_generate_command(CLI::App& program);
void add_checkpoint_inspect_command(CLI::App& checkpoint);
void add_checkpoint_verify_command(CLI::App& checkpoint);
void add_checkpoint_diff_command(CLI::App& checkpoint);
void add_checkpoint_upcycle_command(CLI::App& checkpoint);
void add_bench_step_command(CLI::App& bench);
void add_bench_moe_command(CLI::App& bench);
void add_bench_products_command(CLI::App& bench);
void add_bench_memory_command(CLI::App& bench);
void add_bench_window_command(CLI::App& bench);
void add_bench_timing_command(CLI::App& bench);
void add_bench_checkpoint_command(CLI::App& bench);
void add_bench_data_command(CLI::App& bench);
void add_bench_published_command(CLI::App& bench);
void add_bench_defaults_command(CLI::App& bench);
void add_mesh_command(CLI::App& program);
void add_keys_command(CLI::App& program);
void add_hardware_command(CLI::App& program);
void add_export_command(CLI::App& program);
void add_import_command(CLI::App& program);

// Adds a command and a request that its options fill in. Once the arguments are read, run(request) or run(command,
// request) is called.
template <typename Request, typename Run>
std::pair<CLI::App&, Request&> add_command(CLI::App& above, const char* name, const char* help, Run run) {
  CLI::App* command = above.add_subcommand(name, help);
  const auto request = std::make_shared<Request>();
  command->callback([command, request, run] {
    if constexpr (std::is_invocable_v<Run, Request&>) {
      run(*request);
    } else {
      run(*command, *request);
    }
  });
  return {*command, *request};
}

// What a number given to an option must be: above 0, or 0 or more. CLI11's own checks name a bound of 309 digits.
CLI::Validator positive();
CLI::Validator not_negative();
// The value of one of these words.
template <typename Value>
CLI::Validator one_of(const std::map<std::string, Value>& words) {
  return {[words](std::string& text) {
            const auto found = words.find(text);
            if (found != words.end()) {
              text = std::to_string(static_cast<int>(found->second));
              return std::string();
            }
            std::string known;
            for (const auto& [word, value] : words) known += (known.empty() ? "" : ", ") + word;
            return "\"" + text + "\" is none of " + known;
          },
          ""};
}
// The reason why no text can be written to the file; empty if one can, and for devices and pipes. Leaves files as they
// are.
std::string write_fault(const std::string& file);
// The same as a check of an option, so that a command finds out before its work.
CLI::Validator writable();
// Throws Error (request) if an option of `command` that names a file to write names `config` or a file that it
// includes. Every option with the check writable() is known by its name.
void refuse_replaced_sources(const CLI::App& command, const std::filesystem::path& config);
// Refuses an empty text, such as that of a variable of the shell that is not set.
CLI::Validator not_empty();
// A whole number of 64 bits.
CLI::Validator seed();
// Adds an argument to `command`: the path of a checkpoint (resolve_checkpoint).
CLI::Option* add_checkpoint_argument(CLI::App& command, const std::string& name, std::string& path);
// Throws Error (request) if `path` is no checkpoint, and Error (failure) if the checkpoint is damaged.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path);
// Throws Error (request) unless the name is UTF-8, as the configurations and JSON that tell it are.
void require_utf8(const std::string& name);
// Throws Error (request) unless a checkpoint that is made of the folder `from` may be called `to`. Its config.toml
// tells both, perhaps as whole paths, and its step is 0.
void require_names(const std::string& from, const std::string& to);
// Adds arguments to `command`: CONFIG or --config CONFIG, stored in `file`, and any number of --section.key=value.
CLI::Option* add_config_arguments(CLI::App& command, std::string& file);
// Adds an option that may be given several times, with one value each.
void add_repeated_option(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                         const std::string& help);
// Throws Error (request) if the option `name` of `command` is given, which nothing would read: "NAME why".
void refuse_given(const CLI::App& command, const char* name, const char* why);
// Adds FILE and the options of documents: --key, --documents and --bad-lines.
void add_document_options(CLI::App& command, std::vector<std::string>& files, DocumentRules& rules);
// Throws Error (request) if --key or --documents is given, and none of the files is of its kind.
void refuse_unread(const CLI::App& command, const DocumentReader& documents);
// Prints the number of lines that were left out, if there are any.
void tell_skipped(const DocumentReader& documents);
// Adds --costs and --hardware: the costs of a simulated step (given_costs.h).
void add_cost_options(CLI::App& command, std::string& costs, std::string& hardware);
// Words separated by blanks. Blanks between quotes do not separate, and quotes are dropped, so
// "--shard.residency='window 2'" is one word.
std::vector<std::string> words_of(const std::string& text);
// Writes to `output`, or to standard output if `output` is empty. Throws Error: a request if it cannot be opened, a
// failure if it is not written whole.
void write_result(const std::string& command, const std::string& text, const std::string& output);
// The overrides given on the command line, and those that `options` of the command stand for. `faults`: unknown options
// and keys that are given twice, one text; empty if there are none.
struct GivenWords {
  Overrides overrides;
  std::string faults;
};
GivenWords words_given_to(const CLI::App& command, const Overrides& options = {});
// The same overrides. Throws Error (request) with the faults, then with those of the keys of `file` if one is given.
Overrides overrides_given_to(const CLI::App& command, const Overrides& options = {}, const std::string& file = {});
// A line on standard error for each; of ranks that are processes, rank 0 prints them.
void print_warnings(const Config& config, const std::vector<std::string>& warnings);
// Prints warnings on standard error for a plan. The run may compute on another device than the plan's card, or in
// float32 on a card with much faster products in 16 bits. Its nodes of experts may be none of the card.
void warn_of_planned_card(const Config& config);
// Prints kept_whole_warnings (chosen_timing.h), and start_warnings (start_check.h) if the run has text: for commands
// that train or say what would train.
void warn_of_training(const Config& config);
// Reads CONFIG with the overrides of the command line and `more`. Throws Error (request), also if the run ignores a key
// of them, or an output of the command would replace CONFIG (refuse_replaced_sources). Warnings go to standard error;
// of processes that share a run, only rank 0 prints them. `schema` as in read_typed_config().
ResolvedConfig read_config_given_to(const CLI::App& command, const std::string& file, const Overrides& more = {},
                                    std::vector<ConfigKey> schema = config_schema());
// The same for the configuration of a checkpoint in `folder`, to be used without training. It has the tokenizer that
// the checkpoint keeps (forward_run.h), and a global batch rounded up, so that it refuses no layout. A
// configuration or tokenizer that is not as it was saved is refused before it is read. Keys on the command line that no
// forward of saved weights reads are refused too, except `keys`, which this command reads.
Config read_config_of_checkpoint(const CLI::App& command, const std::filesystem::path& folder, Overrides more = {},
                                 const std::vector<std::string>& keys = {});

// A configuration for a bench, without checkpoints, traces and what a run does between steps. It neither starts from nor
// leaves files in the directories of a run.
Config without_files(Config config);

// Versions of this program, its compiler and the libraries that it computes with on a device. With `cuda` the output of
// `weft --version`: to know the version of cuBLASLt loads it, 60 ms and 100 MB.
std::string version_text(DeviceKind device);

}  // namespace weft
