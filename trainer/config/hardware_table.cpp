#include "trainer/config/hardware_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/config/config_messages.h"

namespace weft {
namespace {

constexpr double gib = 0x1p30;

// Products alone reach more. The rest of a block (norms, attention's exponentials, rotary embedding) has no time of its
// own in the model of costs. This figure pays for it.
constexpr Figure half_reached{
    0.5,
    "chosen: published training runs reach 38 to 61 % of the dense peak (Llama 3 405B 38-43 %, PaLM 46 %, torchtitan "
    "8B "
    "39-46 %, llm.c and llmq 46-61 %); what is no product has no time of its own in the model and is in this share"};
constexpr Figure eight{8, "DGX and HGX boards carry eight cards"};
constexpr Figure nvlink_latency{3e-6, "estimate: a hop of a small message over NVLink"};
constexpr Figure pcie_latency{1e-5, "estimate: a hop of a small message over PCIe"};
constexpr Figure network_latency{1e-5, "estimate: a hop of a small message over InfiniBand"};
constexpr Figure pcie5_to_host{55e9, "estimate: PCIe 5.0 x16 has 63 GB/s in one direction; copies reach about 55"};
constexpr Figure pcie4_to_host{25e9, "estimate: PCIe 4.0 x16 has 32 GB/s in one direction; copies reach about 25"};
constexpr Figure eighth_of_2_tb{
    256e9, "DGX H100, H200, B200 and A100 640 GB data sheets: 2 TB of system memory for eight cards"};
constexpr Figure nvlink4{450e9, "NVIDIA's data sheet: NVLink 900 GB/s, both directions together"};
constexpr Figure nvlink3{300e9, "NVIDIA's data sheet: NVLink 600 GB/s, both directions together"};
constexpr Figure eight_of_400{400e9, "DGX H100, H200 and B200 user guides: eight ConnectX-7 of 400 Gbit/s, one a card"};
constexpr Figure eight_of_200{200e9, "DGX A100 user guide: eight ConnectX-6 of 200 Gbit/s for the cards, one each"};
constexpr Figure one_of_200{25e9, "assumed: one adapter of 200 Gbit/s; such servers have no usual number of them"};
constexpr Figure hopper_16bit{
    989.4e12, "NVIDIA's data sheet, SXM: bfloat16 on tensor cores 1,979 TFLOP/s with sparsity, dense half of it"};
constexpr Figure hopper_8bit{
    1978.9e12, "NVIDIA's data sheet, SXM: FP8 on tensor cores 3,958 TFLOP/s with sparsity, dense half of it"};
constexpr Figure hopper_8bit_blocks{
    1731.5e12,
    "NVIDIA's blog on cuBLAS 12.9: large products with scales of blocks are up to 1.75 times as fast as in bfloat16"};
constexpr Figure widened_8bit{200e9, "as in 16 bits: factors of 8 bits are widened to bfloat16"};
constexpr Figure hopper_float32{66.9e12, "NVIDIA's data sheet, SXM: float32 (products are not done in TF32)"};
constexpr Figure ampere_16bit{312e12, "NVIDIA's data sheet: bfloat16 on tensor cores, dense"};
constexpr Figure ampere_float32{19.5e12, "NVIDIA's data sheet: float32 (products are not done in TF32)"};

// Cards of a board with NVLink.
constexpr Hardware on_board(Hardware card) {
  card.reached = half_reached;
  card.ranks_per_node = eight;
  card.link_latency = nvlink_latency;
  card.node_latency = network_latency;
  if (card.host_bytes_per_second.value == 0.0) card.host_bytes_per_second = pcie5_to_host;
  if (!card.host_memory) card.host_memory = eighth_of_2_tb;
  return card;
}
constexpr Hardware hopper(Hardware card) {
  card.flops_per_second_16bit = hopper_16bit;
  card.flops_per_second_float32 = hopper_float32;
  card.flops_per_second_8bit = hopper_8bit;
  card.flops_per_second_8bit_blocks = hopper_8bit_blocks;
  card.link_bytes_per_second = nvlink4;
  card.node_bytes_per_second = eight_of_400;
  return on_board(card);
}
constexpr Hardware ampere(Hardware card) {
  card.flops_per_second_16bit = ampere_16bit;
  card.flops_per_second_float32 = ampere_float32;
  card.link_bytes_per_second = nvlink3;
  card.node_bytes_per_second = eight_of_200;
  card.host_bytes_per_second = pcie4_to_host;
  return on_board(card);
}
constexpr Hardware on_pcie(Hardware card) {
  card.reached = half_reached;
  card.ranks_per_node = {8, "assumed: servers hold up to eight cards"};
  card.link_latency = pcie_latency;
  card.node_bytes_per_second = one_of_200;
  card.node_latency = network_latency;
  card.host_bytes_per_second = pcie4_to_host;
  return card;
}

constexpr std::array<Hardware, 8> rows = {
    hopper({
        .name = "h100",
        .summary = "NVIDIA H100 SXM 80 GB, nodes of 8 with NVLink, 400 Gbit/s a card between nodes",
        .memory = Figure{80 * gib, "80 GB is 80 GiB: nvidia-smi reports 81,559 MiB"},
        .reserved_memory = {2.0 * gib,
                            "estimate: 0.9 GiB that CUDA does not offer (79.1 of 80), about 0.5 for its context, 0.6 "
                            "for NCCL and libraries"},
        .memory_bytes_per_second = Figure{3.35e12, "NVIDIA's data sheet, SXM: HBM3"},
    }),
    hopper({
        .name = "h200",
        .summary = "NVIDIA H200 SXM 141 GB: the rates of an H100 and more memory",
        .memory = Figure{141 * gib, "141 GB is 141 GiB, less what the driver keeps: nvidia-smi reports 143,771 MiB"},
        .reserved_memory = {2.25 * gib,
                            "estimate: 1.2 GiB that CUDA does not offer (139.8 of 141), about 0.5 for its context, "
                            "0.6 for NCCL and libraries"},
        .memory_bytes_per_second = Figure{4.8e12, "NVIDIA's data sheet: HBM3e"},
    }),
    ampere({
        .name = "a100-80gb",
        .summary = "NVIDIA A100 SXM 80 GB, nodes of 8 with NVLink, 200 Gbit/s a card between nodes",
        .memory = Figure{80 * gib, "80 GB is 80 GiB: nvidia-smi reports 81,920 MiB"},
        .reserved_memory = {2.0 * gib,
                            "estimate: 0.9 GiB that CUDA does not offer (79.1 of 80), about 0.5 for its context, 0.6 "
                            "for NCCL and libraries"},
        .memory_bytes_per_second = Figure{2.039e12, "NVIDIA's data sheet, SXM: HBM2e"},
    }),
    ampere({
        .name = "a100-40gb",
        .summary = "NVIDIA A100 SXM 40 GB: the rates of the one of 80 GB and half its memory",
        .memory = Figure{40 * gib, "40 GB is 40 GiB: nvidia-smi reports 40,960 MiB"},
        .reserved_memory = {1.75 * gib,
                            "estimate: 0.5 GiB that CUDA does not offer (39.5 of 40), about 0.5 for its context, "
                            "0.75 for NCCL and libraries"},
        .memory_bytes_per_second = Figure{1.555e12, "NVIDIA's data sheet: HBM2"},
        .host_memory = Figure{128e9, "DGX A100 320 GB data sheet: 1 TB of system memory for eight cards"},
    }),
    on_board({
        .name = "b200",
        .summary = "NVIDIA B200 SXM 180 GB (HGX, 1,000 W), nodes of 8 with NVLink, 400 Gbit/s a card between nodes",
        .memory = Figure{180 * gib,
                         "180 GB of a DGX B200 (1,440 GB in eight), taken as GiB: nvidia-smi reports about 179 GiB"},
        .reserved_memory = {2.75 * gib,
                            "estimate: 1.6 GiB that CUDA does not offer (178.4 of 180), about 0.5 for its context, "
                            "0.6 for NCCL and libraries"},
        .memory_bytes_per_second = Figure{8e12, "NVIDIA's DGX B200 data sheet: HBM3e, 64 TB/s in eight"},
        .flops_per_second_16bit =
            {2250e12,
             "NVIDIA's HGX B200 figures: bfloat16 on tensor cores 4.5 PFLOP/s with sparsity, dense "
             "half of it"},
        .flops_per_second_float32 = {80e12, "NVIDIA's HGX B200 figures: float32 (products are not done in TF32)"},
        .flops_per_second_8bit =
            Figure{4500e12, "NVIDIA's HGX B200 figures: FP8 9 PFLOP/s with sparsity, dense half of it"},
        .link_bytes_per_second = {900e9, "NVIDIA's data sheet: NVLink 1.8 TB/s, both directions together"},
        .node_bytes_per_second = eight_of_400,
    }),
    on_pcie({
        .name = "l40s",
        .summary = "NVIDIA L40S 48 GB, nodes of 8 on PCIe without NVLink, one adapter of 200 Gbit/s a node",
        .memory =
            Figure{48 * gib, "48 GB is 48 GiB, of which error correction takes a part: nvidia-smi reports 46,068 MiB"},
        .reserved_memory = {4.75 * gib,
                            "estimate: 3.6 GiB for error correction and the driver (44.4 of 48 are offered), about "
                            "0.5 for the CUDA context, 0.65 for NCCL and libraries"},
        .memory_bytes_per_second = Figure{864e9, "NVIDIA's data sheet: GDDR6"},
        .flops_per_second_16bit = {362.05e12, "NVIDIA's data sheet: bfloat16 on tensor cores, dense"},
        .flops_per_second_float32 = {91.6e12, "NVIDIA's data sheet: float32 (products are not done in TF32)"},
        .flops_per_second_8bit = Figure{733e12, "NVIDIA's data sheet: FP8 on tensor cores, dense"},
        .link_bytes_per_second = {25e9,
                                  "PCIe 4.0 x16 has 32 GB/s in one direction (data sheet: 64 in both); about 25 reach "
                                  "their aim"},
    }),
    on_pcie({
        .name = "rtx4090",
        .summary =
            "NVIDIA GeForce RTX 4090 24 GB, nodes of 8 on PCIe without NVLink or peer access, one adapter a node",
        .memory = Figure{24 * gib, "24 GB is 24 GiB: PyTorch reports 23.6 GiB in all"},
        .reserved_memory = {1.5 * gib,
                            "estimate: 0.4 GiB that CUDA does not offer (23.6 of 24), about 0.5 for its context, 0.6 "
                            "for NCCL and libraries"},
        .memory_bytes_per_second = Figure{1.008e12, "NVIDIA's Ada white paper: GDDR6X"},
        .flops_per_second_16bit = {165.2e12,
                                   "NVIDIA's Ada white paper: bfloat16 on tensor cores with float32 sums, dense"},
        .flops_per_second_float32 = {82.6e12, "NVIDIA's Ada white paper: float32 (products are not done in TF32)"},
        .flops_per_second_8bit =
            Figure{330.3e12, "NVIDIA's Ada white paper: FP8 on tensor cores with float32 sums, dense"},
        .link_bytes_per_second = {12.5e9,
                                  "estimate: half of the 25 GB/s that PCIe 4.0 x16 reaches, because drivers offer no "
                                  "peer access and every byte goes through the host's memory"},
    }),
    // Half of the figures that docs/performance.md measures on two cores.
    Hardware{
        .name = "cpu",
        .summary = "a core for each rank, all in one machine",
        .memory = {},
        .reserved_memory = {0.0, "ranks are threads: what is beside their ledgers is the program's alone"},
        .flops_per_second_16bit = {200e9,
                                   "measured: half of what two cores of an AMD EPYC (Zen 4) do, docs/performance.md"},
        .flops_per_second_float32 = {100e9,
                                     "measured: half of what two cores of an AMD EPYC (Zen 4) do, docs/performance.md"},
        .flops_per_second_8bit = widened_8bit,
        .flops_per_second_8bit_blocks = widened_8bit,
        .reached = {1.0, "the rates are measured ones"},
        .ranks_per_node = {1 << 20, "all ranks are threads of one machine"},
        .link_bytes_per_second = {8e9, "estimate: copies in shared memory, most ranks copying at once"},
        .link_latency = {2e-6, "estimate: the meeting of threads"},
        .node_bytes_per_second = {8e9, "there is one machine: as inside it"},
        .node_latency = {2e-6, "there is one machine: as inside it"},
        .host_bytes_per_second = {8e9, "the device's memory is the host's: a copy inside it"},
    },
};

// Names used by vendors, clouds and users, and those that the driver and nvidia-smi tell.
constexpr std::pair<std::string_view, std::string_view> aliases[] = {
    {"h100-80gb", "h100"},
    {"h100-sxm", "h100"},
    {"h200-141gb", "h200"},
    {"h200-sxm", "h200"},
    {"a100", "a100-80gb"},
    {"b200-180gb", "b200"},
    {"l40s-48gb", "l40s"},
    {"rtx-4090", "rtx4090"},
    {"4090", "rtx4090"},
    {"NVIDIA H100 80GB HBM3", "h100"},
    {"NVIDIA H200", "h200"},
    {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
    {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
    {"NVIDIA B200", "b200"},
    {"NVIDIA L40S", "l40s"},
    {"NVIDIA GeForce RTX 4090", "rtx4090"},
};

}  // namespace

const Figure& Hardware::flops_per_second(DType factors) const {
  if (factors == DType::float32) return flops_per_second_float32;
  if (size_of(factors) == 2) return flops_per_second_16bit;
  if (!flops_per_second_8bit) {
    fail_request(
        "{} multiplies nothing in 8 bits: precision.compute = \"float8\" needs a card of compute capability 8.9 "
        "or later, such as h100, h200, b200, l40s and rtx4090",
        name);
  }
  return *flops_per_second_8bit;
}

const Figure& Hardware::flops_per_second(ProductFormat format) const {
  if (format == ProductFormat::float8) return flops_per_second(DType::float8_e4m3);
  if (!flops_per_second_8bit_blocks) {
    fail_request("{} has no products with scales of blocks: precision.compute = \"float8_blocks\" needs h100 or h200",
                 name);
  }
  return *flops_per_second_8bit_blocks;
}

std::optional<double> Hardware::moved_bytes_per_second() const {
  // In a step at an H200's power limit, AdamW and SwiGLU move 3.5 to 3.75 of 4.8 TB/s; a copy alone reaches 4.3.
  constexpr double share = 0.75;
  return memory_bytes_per_second ? std::optional(share * memory_bytes_per_second->value) : std::nullopt;
}

std::span<const Hardware> known_hardware() {
  return rows;
}

std::vector<std::string_view> aliases_of(std::string_view name) {
  std::vector<std::string_view> others;
  for (const auto& [alias, stands_for] : aliases) {
    if (stands_for == name) others.push_back(alias);
  }
  return others;
}

const Hardware* hardware_named(std::string_view name) {
  const auto alias = std::ranges::find(aliases, name, [](const auto& entry) { return entry.first; });
  const std::string_view searched = alias == std::end(aliases) ? name : alias->second;
  const auto found = std::ranges::find(rows, searched, &Hardware::name);
  return found == rows.end() ? nullptr : &*found;
}

const Hardware& find_hardware(std::string_view name) {
  if (const Hardware* hardware = hardware_named(name)) return *hardware;
  std::vector<std::string> names, words;
  for (const Hardware& hardware : known_hardware()) names.emplace_back(hardware.name);
  words = names;
  for (const auto& entry : aliases) words.emplace_back(entry.first);
  const auto nearest = nearest_word(name, words);
  fail_request("hardware {} is not known{}; known are {}", name,
               nearest ? fmt::format(" (did you mean {}?)", *nearest) : "", fmt::join(names, ", "));
}

}  // namespace weft
