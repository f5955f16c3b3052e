// One rank of a meeting over MPI, started by mpirun: rendezvous_rank SCENARIO FOLDER. Leaves what it got, or why it
// did not, in FOLDER/outcome.RANK. It stays until all have done so, since mpirun ends all once one has ended badly.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "parallel/comm/process_environment.h"
#include "parallel/comm/rendezvous.h"
#include "parallel/runtime/error.h"

namespace {

using namespace weft;
using std::chrono::milliseconds;

std::string act(const std::string& scenario, const ProcessPlace& place) {
  const auto meeting = [&](int timeout, int world = 0) {
    return make_rendezvous("mpi://", {.rank = place.rank,
                                      .world = world > 0 ? world : place.world,
                                      .run = "test",
                                      .timeout = milliseconds(timeout)});
  };
  const bool last = place.rank == place.world - 1;
  const std::map<std::string, std::function<std::string()>> scenarios = {
      {"meet",
       [&] {
         const auto all = meeting(20'000);
         const std::string id = all->meet("id", place.rank == 0 ? std::string("a\0b\n c", 6) : "not this");
         const std::string nothing = all->meet("start", "");
         return id + nothing + all->meet("large", place.rank == 0 ? std::string(60'000, 'x') : "");
       }},
      {"late",
       [&] {
         const auto all = meeting(20'000);
         const auto begin = std::chrono::steady_clock::now();
         if (place.rank == 0) std::this_thread::sleep_for(milliseconds(1500));
         const std::string got = all->meet("start", "yes");
         // All left MPI's initialisation at about the same time.
         const bool waited = std::chrono::steady_clock::now() - begin > milliseconds(500);
         return waited ? got : "it too early";
       }},
      {"missing",
       [&] {
         const auto all = meeting(4000);
         if (last) fail("stays away");
         return all->meet("start");
       }},
      {"without 0",
       [&] {
         const auto all = meeting(4000);
         if (place.rank == 0) fail("stays away");
         return all->meet("start");
       }},
      {"uninitialised",
       [&] {
         if (last) fail("stays away");
         return meeting(1000)->meet("start");
       }},
      {"elsewhere", [&] { return meeting(5000)->meet(last ? "groups" : "start"); }},
      {"miscounted", [&] { return meeting(5000, place.world + 1)->meet("start"); }},
      {"twice",
       [&] {
         meeting(5000)->meet("start");
         return meeting(5000)->meet("start");
       }},
  };
  return scenarios.at(scenario)();
}

}  // namespace

int main(int, char** arguments) {
  const std::filesystem::path folder = arguments[2];
  const ProcessPlace place = *find_process_place();
  std::string outcome;
  try {
    outcome = "got " + act(arguments[1], place);
  } catch (const Error& error) {
    outcome = (error.kind() == ErrorKind::request ? "request " : "failure ") + std::string(error.what());
  }
  const auto file_of = [&](int rank) { return folder / fmt::format("outcome.{}", rank); };
  std::ofstream(folder / fmt::format("aside.{}", place.rank), std::ios::binary) << outcome;
  std::filesystem::rename(folder / fmt::format("aside.{}", place.rank), file_of(place.rank));
  for (int rank = 0; rank < place.world; ++rank) {
    for (int polls = 0; polls < 1000 && !std::filesystem::exists(file_of(rank)); ++polls) {
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
}
