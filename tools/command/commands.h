// The commands of the program `weft`, one source file each. A command adds its options and does its work when CLI11
// calls it back; it reports by throwing Error. Results go to standard output, messages to standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "trainer/resolve/config_reader.h"

namespace weft {

class CheckpointReader;

// The exit code of a run that was asked to save and leave (EX_TEMPFAIL of sysexits.h): to be started again.
inline constexpr int stopped_by_signal = 75;

void add_check_command(CLI::App& program);
void add_mesh_command(CLI::App& program);
void add_keys_command(CLI::App& program);
// Cards to plan for.
void add_hardware_command(CLI::App& program);
// `command_line` is recorded in the summary of the run.
void add_train_command(CLI::App& program, const std::string& command_line);
// Ends by CLI::RuntimeError with the exit code of a rank that failed.
void add_launch_command(CLI::App& program);
void add_eval_command(CLI::App& program);
void add_generate_command(CLI::App& program);
void add_units_command(CLI::App& program);
// Ends by CLI::RuntimeError with exit code 3 where findings count as failures.
void add_diagnose_command(CLI::App& program);
// With the command below it.
void add_trace_command(CLI::App& program);
void add_program_command(CLI::App& program);
void add_plan_command(CLI::App& program);
void add_walk_command(CLI::App& program);
// Checkpoints to folders of Hugging Face, and back.
void add_export_command(CLI::App& program);
void add_import_command(CLI::App& program);
// With the commands below it.
void add_layout_command(CLI::App& program);
void add_layout_show_command(CLI::App& layout);
void add_layout_simulate_command(CLI::App& layout);
void add_layout_sweep_command(CLI::App& layout);
// With the benches below, each a command of its own.
void add_bench_command(CLI::App& program);
void add_bench_step_command(CLI::App& bench);
void add_bench_memory_command(CLI::App& bench);
void add_bench_window_command(CLI::App& bench);
void add_bench_published_command(CLI::App& bench);
void add_bench_timing_command(CLI::App& bench);
void add_bench_simulated_command(CLI::App& bench);
void add_bench_checkpoint_command(CLI::App& bench);

// With the commands below it.
void add_checkpoint_command(CLI::App& program);
void add_checkpoint_inspect_command(CLI::App& checkpoint);
void add_checkpoint_verify_command(CLI::App& checkpoint);
void add_checkpoint_diff_command(CLI::App& checkpoint);

// Lets `command` take the path of a checkpoint (resolve_checkpoint).
CLI::Option* add_checkpoint_argument(CLI::App& command, const std::string& name, std::string& path);
// Throws Error: a request where `path` is no checkpoint, a failure where it is one that is damaged.
std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path);
// Lets `command` take CONFIG, stored in `file`, and any number of --section.key=value.
CLI::Option* add_config_arguments(CLI::App& command, std::string& file);
// Separated by blanks, but for those between quotes, which are dropped: "--shard.residency='window 2'" is one word.
std::vector<std::string> words_of(const std::string& text);
// To `output`, or to standard output where that is empty. Throws Error (request) where it cannot be written.
void write_result(const std::string& command, const std::string& text, const std::string& output);
// What was given besides options of the command, and what `options` of it stand for. Throws Error (request) for options
// that nobody knows, and for keys that are given twice.
Overrides overrides_given_to(const CLI::App& command, const Overrides& options = {});
// CONFIG with what was given besides, and with `more`. Throws Error (request) also where the run reads nothing of one
// of them. Warnings are said on standard error; of processes that share a run, by rank 0.
ResolvedConfig read_config_given_to(const CLI::App& command, const std::string& file, const Overrides& more = {});

// What `weft --version` prints.
std::string version_text();

}  // namespace weft
