// Devices that need not be there: cuDNN chooses engines for a device by its properties, which may be given as JSON.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <ostream>
#include <string>

namespace weft {

struct DescribedDevice {
  const char* name = "";
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  std::int64_t shared_memory = 0, memory = 0;  // per block on request; of the device

  std::string json() const {
    return fmt::format(
        R"({{"deviceName":"{}","cudaDeviceId":0,"deviceVer":{},"driverVer":13000,"maxGridSize":[2147483647,65535,65535],)"
        R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":{},"warpSize":32,)"
        R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,)"
        R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,)"
        R"("pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":{},"smClockRateKHz":1980000,)"
        R"("memClockRateKHz":3201000,"l2CacheSize":62914560}})",
        name, compute_capability * 10, multiprocessors, shared_memory, memory);
  }
};

inline constexpr DescribedDevice described_devices[] = {
    {"NVIDIA A100-SXM4-80GB", 80, 108, 166912, 85'000'000'000},
    {"NVIDIA H200", 90, 132, 232448, 150'754'820'096},
    {"NVIDIA B200", 100, 148, 232448, 192'000'000'000},
};

inline void PrintTo(const DescribedDevice& device, std::ostream* out) {
  *out << device.name;
}

}  // namespace weft
