#include "parallel/comm/rendezvous.h"

#include <algorithm>

#include "parallel/comm/rendezvous_kinds.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

std::optional<int> port_number(std::string_view text) {
  const auto port = parsed_number<int>(text);
  return port && *port >= 1 && *port <= 65535 ? port : std::nullopt;
}

// A single rank has no other rank to wait for.
class LoneRendezvous final : public Rendezvous {
 public:
  std::string meet(std::string_view, std::string_view brought) override { return std::string(brought); }
};

}  // namespace

std::unique_ptr<Rendezvous> make_rendezvous(const std::string& address, const RendezvousOptions& options) {
  require(options.rank >= 0 && options.rank < options.world, "a rank is below the number of ranks");
  constexpr std::string_view tcp = "tcp://", file = "file://";
  if (address.starts_with(tcp)) {
    const std::size_t colon = address.rfind(':');
    const auto port = port_number(std::string_view(address).substr(colon + 1));
    std::string host = address.substr(tcp.size(), std::max(colon, tcp.size()) - tcp.size());
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (colon < tcp.size() || !port || host.empty()) {
      fail_request("rendezvous \"{}\" has no host and port; write tcp://host:port with a port from 1 to 65535",
                   address);
    }
    if (options.world == 1) return std::make_unique<LoneRendezvous>();
    return options.rank == 0 ? make_tcp_host(address, host, *port, options)
                             : make_tcp_guest(address, host, *port, options);
  }
  if (address.starts_with(file) && address.size() > file.size() + 1 && address[file.size()] == '/') {
    if (options.world == 1) return std::make_unique<LoneRendezvous>();
    return make_file_rendezvous(address.substr(file.size()), options);
  }
  if (address == "mpi://") {
    if (options.world == 1) return std::make_unique<LoneRendezvous>();
    return make_mpi_rendezvous(options);
  }
  fail_request("rendezvous \"{}\" is neither tcp://host:port nor file:///folder/name nor mpi://", address);
}

std::string missing_text(std::string_view address, const RendezvousOptions& options, std::string_view purpose,
                         std::span<const int> missing) {
  return fmt::format("rendezvous {}: rank 0 waited {} ms at \"{}\" for {}, which did not come", address,
                     options.timeout.count(), purpose, ranks_text(missing));
}

std::string shown(std::string_view text, std::size_t longest) {
  std::string result;
  for (const char byte : text.substr(0, longest)) {
    if (byte >= ' ' && byte <= '~') {
      result += byte;
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
  }
  return text.size() > longest ? result + "..." : result;
}

std::optional<std::string> default_rendezvous_address(const EnvironmentLookup& lookup) {
  const auto host = lookup("MASTER_ADDR"), port_text = lookup("MASTER_PORT");
  if (!host && !port_text) return std::nullopt;
  if (!host || !port_text) {
    fail_request("of MASTER_ADDR and MASTER_PORT only {} is set; set both, or name a rendezvous",
                 host ? "MASTER_ADDR" : "MASTER_PORT");
  }
  const auto port = port_number(*port_text);
  if (!port || *port == 65535) fail_request("MASTER_PORT={} is no port below 65535", *port_text);
  const bool numeric_six = host->find(':') != std::string::npos;
  return numeric_six ? fmt::format("tcp://[{}]:{}", *host, *port + 1) : fmt::format("tcp://{}:{}", *host, *port + 1);
}

}  // namespace weft
