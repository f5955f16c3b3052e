#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <iostream>
#include <string>
#include <string_view>
#include <system_error>

#include "parallel/comm/process_environment.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/standard_error.h"
#include "tools/command/commands.h"

namespace {

constexpr int wrong_request = 2;
using weft::failed_run;

// Loading a kernel at its first use may wait for running kernels. A kernel of NCCL runs until its peer's kernel starts,
// and the peer's host may wait in the same way (CUDA's programming guide, "Lazy Loading"). So a process that is one of
// several loads its kernels before any runs.
void load_kernels_at_once() {
  if (weft::find_siblings()) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

// The next file to be opened would take the number of a standard stream that is closed. So /dev/null takes it, opened
// such that every use of the stream still fails.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Each rank keeps the files of a checkpoint open that it reads, and ranks may be threads of one process.
void allow_all_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

// The help of every command, which CLI11 gives of the first level alone. An argument that may be given as an option too
// is required once.
class WholeHelp final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    if (positional || !option->get_positional()) return CLI::Formatter::make_option(option, positional);
    const std::string name = make_option_name(option, false) + " " + option->get_name(/*positional=*/true);
    return fmt::format("  {:<{}}in place of the argument\n", name, get_column_width() - 2);
  }
  std::string make_expanded(const CLI::App* command) const override {
    const CLI::App* above = command->get_parent();
    std::string text = above->get_parent() ? above->get_name() + " " : "";
    text += CLI::Formatter::make_expanded(command);
    for (const CLI::App* nested : command->get_subcommands({})) text += "\n" + make_expanded(nested);
    return text;
  }
};

using AddCommand = void (*)(CLI::App&);

void add_commands(CLI::App& above, std::initializer_list<AddCommand> commands) {
  for (const AddCommand add : commands) add(above);
}

// A command of which only its subcommands do something.
void add_group(CLI::App& program, const char* name, const char* help, std::initializer_list<AddCommand> subcommands) {
  CLI::App* group = program.add_subcommand(name, help);
  group->require_subcommand(1);
  add_commands(*group, subcommands);
}

int run(int count, char** arguments) {
  load_kernels_at_once();
  allow_all_files();
  CLI::App program{"Weft trains hybrid dense/MoE language models."};
  program.name("weft");
  program.set_version_flag(
      "--version", [] { return weft::version_text(weft::DeviceKind::cuda); }, "print versions and exit");
  program.formatter(std::make_shared<WholeHelp>());
  program.failure_message([](const CLI::App* app, const CLI::Error& error) {
    // CLI11 calls an argument by the option that may stand in its place.
    if (error.what() != std::string_view("--config is required")) return CLI::FailureMessage::simple(app, error);
    return CLI::FailureMessage::simple(app, CLI::RequiredError("CONFIG"));
  });
  program.set_help_all_flag("--help-all", "print the help of every command");
  program.require_subcommand(1);
  weft::add_init_command(program);
  weft::add_train_command(program, weft::shell_text({arguments, arguments + count}));
  add_commands(program, {weft::add_launch_command, weft::add_check_command, weft::add_units_command,
                         weft::add_program_command, weft::add_plan_command, weft::add_walk_command});
  add_group(program, "layout", "blocks of the stages: memory, time and bubble",
            {weft::add_layout_show_command, weft::add_layout_simulate_command, weft::add_layout_sweep_command});
  add_commands(program, {weft::add_diagnose_command, weft::add_receipt_command, weft::add_report_command});
  add_group(program, "trace", "time of recorded steps", {weft::add_trace_sum_command, weft::add_trace_costs_command});
  add_group(program, "data", "texts as tokens",
            {weft::add_data_tokenize_command, weft::add_data_train_tokenizer_command, weft::add_data_inspect_command,
             weft::add_data_samples_command});
  add_commands(program, {weft::add_eval_command, weft::add_generate_command});
  add_group(program, "checkpoint", "contents, integrity and differences of checkpoints",
            {weft::add_checkpoint_inspect_command, weft::add_checkpoint_verify_command,
             weft::add_checkpoint_diff_command, weft::add_checkpoint_upcycle_command});
  add_group(program, "bench", "the numbers in the documentation",
            {weft::add_bench_step_command, weft::add_bench_moe_command, weft::add_bench_products_command,
             weft::add_bench_memory_command, weft::add_bench_window_command, weft::add_bench_timing_command,
             weft::add_bench_checkpoint_command, weft::add_bench_data_command, weft::add_bench_published_command,
             weft::add_bench_defaults_command});
  add_commands(program, {weft::add_mesh_command, weft::add_keys_command, weft::add_hardware_command,
                         weft::add_export_command, weft::add_import_command});
  try {
    program.parse(count, arguments);
  } catch (const CLI::RuntimeError& ended) {
    return ended.get_exit_code();
  } catch (const CLI::ParseError& error) {
    const CLI::App* group = &program;
    std::string above;  // "bench "
    for (; !group->get_subcommands().empty(); above += group->get_name() + " ")
      group = group->get_subcommands().front();
    if (group->get_require_subcommand_min() > 0 && !group->remaining().empty()) {
      weft::fail_request("weft: error: unknown command {}{}; see weft {}--help", above, group->remaining().front(),
                         above);
    }
    // Help and version end parsing by the same exception, with exit code 0.
    return program.exit(error) == 0 ? 0 : wrong_request;
  }
  return 0;
}

// The message of a broken statement names its place in the sources (require() in parallel/runtime/error.h). The build
// folder is removed from it, and so is the number of an error of the JSON library.
std::string without_folders(std::string message) {
  constexpr std::string_view number = "[json.exception.";
  for (std::size_t at = 0; (at = message.find(number, at)) != std::string::npos;) {
    const std::size_t close = message.find("] ", at);
    message.erase(at, close == std::string::npos ? number.size() : close + 2 - at);
  }
  const std::size_t end = message.find(": required: ");
  if (end == std::string::npos) return message;
  const std::size_t begin = message.rfind(' ', end - 1) + 1;  // 0 if there is none
  for (const char* folder : {"/parallel/", "/layers/", "/trainer/", "/tools/"}) {
    const std::size_t at = message.rfind(folder, end);
    if (at != std::string::npos && at >= begin) message.erase(begin, at + 1 - begin);
  }
  return message;
}

// Reports that standard output could not be written, unless the reader of a pipe has closed it.
int lost_output(const std::string& reason) {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  const bool closed = poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
  if (!closed) weft::say("weft: standard output could not be written{}\n", reason.empty() ? "" : ": " + reason);
  return failed_run;
}

// The exit code of a command after its output is flushed: the command's code, or failed_run if output was lost.
int after_output(int code) {
  std::cout.flush();
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const int lost = lost_output(errno == 0 ? "" : std::strerror(errno));
  return code == 0 || code == weft::stopped_by_signal ? lost : code;
}

}  // namespace

int main(int count, char** arguments) {
  hold_standard_streams();
  // A closed pipe becomes a write error instead of a signal, so that a run can save before it exits. So does a file at
  // the size limit of the process, as on a full disk.
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  // CUDA reads the variable once, when a GPU is first used. With its default of eight hardware queues, a rank's lanes
  // and the streams of its products would share queues and wait for each other needlessly.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  try {
    return after_output(run(count, arguments));
  } catch (const weft::Error& error) {
    const bool request = error.kind() != weft::ErrorKind::failure;
    weft::say("{}{}\n", request ? "" : "weft: ", without_folders(error.what()));
    return request ? wrong_request : failed_run;
  } catch (const std::filesystem::filesystem_error& error) {
    // A path that cannot be is a fault of the request; a file system that fails later is none.
    bool request = false;
    for (const std::errc reason :
         {std::errc::permission_denied, std::errc::filename_too_long, std::errc::not_a_directory,
          std::errc::too_many_symbolic_link_levels, std::errc::invalid_argument}) {
      request = request || error.code() == reason;
    }
    const std::string path = error.path1().empty() ? "\"\"" : error.path1().string();
    weft::say("{}{}: {}\n", request ? "" : "weft: ", path, error.code().message());
    return request ? wrong_request : failed_run;
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) return lost_output(error.code().message());
    weft::say("weft: {}\n", error.what());
    return failed_run;
  } catch (const std::exception& error) {
    weft::say("weft: {}\n", weft::error_text(error));
    return failed_run;
  }
}
