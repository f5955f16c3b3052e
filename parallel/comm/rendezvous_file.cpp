// Three kinds of files. Each is written under another name and then renamed, so that no rank reads an incomplete file:
//   prefix.opened    by rank 0: the meeting is open; carries a token that no other run has
//   prefix.rank3     by rank 3: has come; repeats rank 0's token and carries its own token
//   prefix.answer    by rank 0: the bytes it brought, or why all end; repeats the tokens of all ranks
// A file of an earlier run, even of a run with the same name, repeats no token of this run and is ignored.
#include "parallel/comm/rendezvous_kinds.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds poll_interval{20};
constexpr std::size_t longest_reason = 4096;
constexpr const char* magic = "weft-meeting-1";

class FileRendezvous final : public Rendezvous {
 public:
  FileRendezvous(std::string prefix, const RendezvousOptions& options)
      : prefix_(std::move(prefix)), options_(options) {}

  std::string meet(std::string_view purpose, std::string_view brought) override {
    ++meeting_;
    purpose_ = purpose;
    const auto deadline = Clock::now() + options_.timeout;
    return options_.rank == 0 ? host(brought, deadline) : join(deadline);
  }

 private:
  // The beginning of every file; files of other meetings begin differently.
  std::string heading() const {
    return fmt::format("{} {} {}\n{}\n{}\n", magic, options_.world, meeting_, options_.run, purpose_);
  }
  std::string name_of_rank(int rank) const { return fmt::format("{}.rank{}", prefix_, rank); }

  void put(const std::string& path, const std::string& text) const {
    const std::string aside = fmt::format("{}.{}.tmp", path, getpid());
    {
      std::ofstream file(aside, std::ios::binary);
      file << text;
      if (!file.flush()) fail_request("rendezvous file://{}: {} cannot be written", prefix_, aside);
    }
    if (std::rename(aside.c_str(), path.c_str()) != 0) {
      fail_request("rendezvous file://{}: {} cannot be renamed to {}", prefix_, aside, path);
    }
  }
  // The text after the heading, or nothing if there is no such file of this meeting.
  std::optional<std::string> get(const std::string& path) const {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::string begin = heading();
    if (!text.starts_with(begin)) return std::nullopt;
    return text.substr(begin.size());
  }

  std::string host(std::string_view brought, Clock::time_point deadline) {
    // The other ranks write only in reply to this token, so a file that repeats the token belongs to this meeting.
    const std::string token = new_run_token();
    put(prefix_ + ".opened", heading() + token);
    std::vector<std::string> tokens(options_.world);
    while (true) {
      std::vector<int> missing;
      for (int rank = 1; rank < options_.world; ++rank) {
        std::string& of_rank = tokens[rank];
        if (!of_rank.empty()) continue;
        const auto text = get(name_of_rank(rank));
        if (text && text->starts_with(token + " ")) {
          of_rank = text->substr(token.size() + 1);
        } else {
          missing.push_back(rank);
        }
      }
      const std::string known = fmt::format("{} {}\n", token, fmt::join(tokens, " "));
      if (missing.empty()) {
        put(prefix_ + ".answer", heading() + known + "come\n" + std::string(brought));
        return std::string(brought);
      }
      if (Clock::now() >= deadline) {
        const std::string reason = missing_text("file://" + prefix_, options_, purpose_, missing);
        put(prefix_ + ".answer", heading() + known + "ended\n" + reason);
        fail("{}", reason);
      }
      std::this_thread::sleep_for(poll_interval);
    }
  }

  std::string join(Clock::time_point deadline) {
    const std::string own = new_run_token();
    std::string opened;
    while (true) {
      // Rank 0 may open a new meeting after this rank has read the file of an earlier run.
      if (const auto token = get(prefix_ + ".opened"); token && *token != opened) {
        opened = *token;
        put(name_of_rank(options_.rank), fmt::format("{}{} {}", heading(), opened, own));
      }
      if (const auto answer = get(prefix_ + ".answer")) {
        std::istringstream words(answer->substr(0, answer->find('\n')));
        const std::vector<std::string> tokens{std::istream_iterator<std::string>(words), {}};
        if (std::ranges::find(tokens, own) != tokens.end()) {
          const std::string rest = answer->substr(answer->find('\n') + 1);
          const std::string result = rest.substr(rest.find('\n') + 1);
          std::remove(name_of_rank(options_.rank).c_str());
          if (!rest.starts_with("come\n")) fail("{}", shown(result, longest_reason));
          return result;
        }
      }
      if (Clock::now() >= deadline + (opened.empty() ? milliseconds(0) : rendezvous_grace)) {
        std::ifstream file(prefix_ + ".opened", std::ios::binary);
        const std::string found{std::istreambuf_iterator<char>(file), {}};
        fail("rendezvous file://{}: rank {} waited {} ms at \"{}\" for rank 0, which {}", prefix_, options_.rank,
             options_.timeout.count(), purpose_,
             !opened.empty() ? "did not answer"
             : found.empty() ? "did not come"
                             : fmt::format("did not come; what is there belongs to another run or meeting: \"{}\"",
                                           shown(found.substr(0, found.rfind('\n')))));
      }
      std::this_thread::sleep_for(poll_interval);
    }
  }

  const std::string prefix_;
  const RendezvousOptions options_;
  std::string purpose_;
  std::int64_t meeting_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_file_rendezvous(const std::string& prefix, const RendezvousOptions& options) {
  return std::make_unique<FileRendezvous>(prefix, options);
}

}  // namespace weft
