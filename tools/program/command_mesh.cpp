#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"

namespace weft {
namespace {

constexpr Group dense_groups[] = {Group::pp, Group::dp_replicate, Group::dp_shard, Group::cp, Group::tp};
constexpr Group expert_groups[] = {Group::pp, Group::edp, Group::ep, Group::etp};

struct MeshRequest {
  std::string file;
  std::optional<int> world;
  std::optional<int> data_shard;
  Degrees degrees;
  std::vector<CLI::Option*> options;  // of the world and its degrees
  bool json = false;
};

Json groups_json(const Mesh& mesh, std::span<const Group> groups) {
  Json result = Json::object();
  for (const Group group : groups) result[std::string(name_of(group))] = mesh.groups(group);
  return result;
}

Json mesh_json(const Mesh& mesh) {
  Json ranks = Json::array();
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    ranks.push_back({{"rank", rank},
                     {"pp", at.pp},
                     {"dp_replicate", at.dp_replicate},
                     {"dp_shard", at.dp_shard},
                     {"cp", at.cp},
                     {"tp", at.tp},
                     {"edp", at.edp},
                     {"ep", at.ep},
                     {"etp", at.etp}});
  }
  return {{"world", mesh.world()},
          {"dense", groups_json(mesh, dense_groups)},
          {"expert", groups_json(mesh, expert_groups)},
          {"ranks", std::move(ranks)}};
}

void append_groups(std::string& text, const Mesh& mesh, std::string_view grid, std::span<const Group> groups) {
  text += fmt::format("\n{} groups\n", grid);
  for (const Group group : groups) {
    text += fmt::format("  {:<13}", name_of(group));
    for (const auto& ranks : mesh.groups(group)) text += fmt::format(" [{}]", fmt::join(ranks, ","));
    text += '\n';
  }
}

std::string mesh_text(const Mesh& mesh) {
  const Degrees& d = mesh.degrees();
  std::string text = fmt::format("world {}\n", mesh.world());
  text += fmt::format("dense   pp {} x dp_replicate {} x dp_shard {} x cp {} x tp {}\n", d.pipeline, d.data_replicate,
                      d.data_shard, d.context, d.tensor);
  text += fmt::format("expert  pp {} x edp {} x ep {} x etp {}\n\n", d.pipeline, d.expert_data(), d.expert,
                      d.expert_tensor);
  constexpr auto row = "{:>7} {:>5} {:>13} {:>9} {:>5} {:>5}   {:>5} {:>5} {:>5}\n";
  text += fmt::format(row, "rank", "pp", "dp_replicate", "dp_shard", "cp", "tp", "edp", "ep", "etp");
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    text += fmt::format(row, rank, at.pp, at.dp_replicate, at.dp_shard, at.cp, at.tp, at.edp, at.ep, at.etp);
  }
  append_groups(text, mesh, "dense", dense_groups);
  append_groups(text, mesh, "expert", expert_groups);
  return text;
}

// Degrees given one by one. data_shard follows from the world if it is not given.
Degrees degrees_of(const MeshRequest& request) {
  Degrees degrees = request.degrees;
  degrees.data_shard = request.data_shard.value_or(request.world ? -1 : 1);
  if (degrees.data_shard == -1) {
    if (!request.world) fail_request("weft mesh: error: --data-shard -1 is the rest of the world; give --world");
    degrees.data_shard = 1;
    const auto errors = degree_errors({degrees.pipeline, degrees.data_replicate, 1, degrees.context, degrees.tensor});
    if (errors.empty()) {
      if (*request.world % degrees.world() != 0) {
        fail_request(
            "weft mesh: error: world {} is not a multiple of pipeline {} x data_replicate {} x context {} x "
            "tensor {} = {}",
            *request.world, degrees.pipeline, degrees.data_replicate, degrees.context, degrees.tensor, degrees.world());
      }
      degrees.data_shard = *request.world / degrees.world();
    }
  }
  const auto errors = degree_errors(degrees, request.world);
  if (!errors.empty()) fail_request("weft mesh: error: {}", fmt::join(errors, "\nweft mesh: error: "));
  return degrees;
}

void run_mesh(const CLI::App& command, const MeshRequest& request) {
  const bool degrees_given =
      std::ranges::any_of(request.options, [](const CLI::Option* option) { return option->count() > 0; });
  const Overrides overrides = overrides_given_to(command, {}, request.file);
  if (request.file.empty() != degrees_given || (degrees_given && !overrides.empty())) {
    fail_request(
        "weft mesh: error: give either CONFIG, with overrides such as --parallelism.tensor=2, or degrees such "
        "as --world 8 --tensor 2");
  }
  const Mesh mesh(degrees_given ? degrees_of(request) : read_config_given_to(command, request.file).config.parallelism);
  fmt::print("{}", request.json ? mesh_json(mesh).dump() + "\n" : mesh_text(mesh));
}

}  // namespace

void add_mesh_command(CLI::App& program) {
  const auto [command, request] =
      add_command<MeshRequest>(program, "mesh", "ranks, coordinates, dense and expert groups", run_mesh);
  Degrees& degrees = request.degrees;
  add_config_arguments(command, request.file);
  command.add_flag("--json", request.json, "print one JSON document");
  request.options = {
      command.add_option("--world", request.world, "ranks in all, where no CONFIG is given")->check(positive()),
      command.add_option("--pipeline", degrees.pipeline, "pipeline stages"),
      command.add_option("--tensor", degrees.tensor, "tensor-parallel ranks"),
      command.add_option("--context", degrees.context, "context-parallel ranks"),
      command.add_option("--data-replicate", degrees.data_replicate, "replicas of the shards"),
      command.add_option("--data-shard", request.data_shard,
                         "ranks that share shards; -1 or absent: the rest of the world"),
      command.add_option("--expert", degrees.expert, "ranks that share the experts"),
      command.add_option("--expert-tensor", degrees.expert_tensor, "ranks that split an expert"),
  };
}

}  // namespace weft
