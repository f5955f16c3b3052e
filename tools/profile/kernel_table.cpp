// A table of a GPU's time without Nsight, as a library that the driver and NVTX load into the program (tools/gpu.sh
// table).
//   CUDA_INJECTION64_PATH=LIBRARY NVTX_INJECTION64_PATH=LIBRARY KERNEL_TABLE=out.tsv weft train ...
//   --profiling.first_step=4
// Counts kernels, copies and fills between cudaProfilerStart and cudaProfilerStop. The first lines of the table give
// the length of that interval and the part without running kernels. Two lists follow, each longest first. The first is
// by action and segment, as named by the ranges of the domain `weft` ("F attention", inside experts "F experts
// products"). Stage and block are left out, so that equal segments add up. The second is by kernel within these. Work
// outside all ranges is under "-".
#include <cupti.h>
#include <cxxabi.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct Work {
  std::uint64_t calls = 0, nanoseconds = 0;
  int registers = 0;
  std::uint64_t grid = 0, block = 0;  // of the last call
};
struct Launch {
  std::string kernel;
  std::uint64_t begin, end;
  int registers;
  std::uint64_t grid, block;
};

struct Table {
  CUpti_SubscriberHandle subscriber = nullptr;
  std::mutex mutex;                                 // guards the fields below
  std::multimap<std::uint32_t, Launch> launches;    // by correlation: one, or several for a graph
  std::map<std::uint32_t, std::uint64_t> range_of;  // by correlation: index of a range
  std::vector<std::string> ranges;                  // by index, from 1
  std::map<std::string, std::uint64_t> number_of;
  std::map<std::thread::id, std::vector<std::string>> open;  // open ranges, by their labels
};
// The table of the process, as CUPTI and NVTX have one client per process. It lives until the process ends.
Table& table() {
  static Table* const whole = new Table;
  return *whole;
}

// "PP:0F blocks.1.experts" as "F experts", "unshard blocks.3.mlp" as "unshard mlp".
std::string family_of(const std::string& range) {
  const std::size_t space = range.find(' ');
  std::string action = range.substr(0, space), segment = space == std::string::npos ? "" : range.substr(space);
  if (action.rfind("PP:", 0) == 0) action.erase(0, action.find_first_not_of("0123456789", 3));
  if (const std::size_t dot = segment.rfind('.'); dot != std::string::npos) segment = " " + segment.substr(dot + 1);
  return action + segment;
}

std::string plain_name(const char* mangled) {
  int status = 0;
  char* plain = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? plain : mangled;
  std::free(plain);
  if (const std::size_t arguments = name.rfind(")("); arguments != std::string::npos) name.resize(arguments + 1);
  return name.substr(0, 160);
}

void CUPTIAPI give(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
  *size = 8 << 20;
  *most = 0;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, *size));
}

void add(std::uint32_t correlation, Launch launch) {
  const std::lock_guard lock(table().mutex);
  table().launches.emplace(correlation, std::move(launch));
}

void CUPTIAPI take(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto* kernel = reinterpret_cast<CUpti_ActivityKernel10*>(record);
        const auto count = [](auto x, auto y, auto z) { return static_cast<std::uint64_t>(x) * y * z; };
        add(kernel->correlationId, {plain_name(kernel->name), kernel->start, kernel->end, kernel->registersPerThread,
                                    count(kernel->gridX, kernel->gridY, kernel->gridZ),
                                    count(kernel->blockX, kernel->blockY, kernel->blockZ)});
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* copy = reinterpret_cast<CUpti_ActivityMemcpy6*>(record);
        add(copy->correlationId,
            {"[copy, kind " + std::to_string(copy->copyKind) + "]", copy->start, copy->end, 0, copy->bytes, 0});
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto* fill = reinterpret_cast<CUpti_ActivityMemset4*>(record);
        add(fill->correlationId, {"[fill]", fill->start, fill->end, 0, fill->bytes, 0});
        break;
      }
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto* external = reinterpret_cast<CUpti_ActivityExternalCorrelation*>(record);
        const std::lock_guard lock(table().mutex);
        table().range_of[external->correlationId] = external->externalId;
        break;
      }
      default:
        break;
    }
  }
  std::free(buffer);
}

template <typename Key, typename Print>
void print_longest_first(std::FILE* out, const std::map<Key, Work>& works, double span, Print print) {
  std::vector<std::pair<Key, Work>> sorted(works.begin(), works.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.nanoseconds > b.second.nanoseconds; });
  for (const auto& [key, work] : sorted) {
    const auto nanoseconds = static_cast<double>(work.nanoseconds);
    std::fprintf(out, "%.3f\t%.2f\t%llu\t%.2f\t", nanoseconds / 1e6, 100.0 * nanoseconds / span,
                 static_cast<unsigned long long>(work.calls), nanoseconds / 1e3 / static_cast<double>(work.calls));
    print(key, work);
  }
}

void report() {
  cuptiActivityFlushAll(1);
  const char* path = std::getenv("KERNEL_TABLE");
  std::FILE* out = path ? std::fopen(path, "w") : stderr;
  const std::lock_guard lock(table().mutex);
  if (!out || table().launches.empty()) return;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  std::map<std::string, Work> by_range;
  std::map<std::pair<std::string, std::string>, Work> by_kernel;
  for (const auto& [correlation, launch] : table().launches) {
    const auto found = table().range_of.find(correlation);
    const std::string range = found == table().range_of.end() ? "-" : table().ranges[found->second - 1];
    spans.emplace_back(launch.begin, launch.end);
    for (Work* work : {&by_range[range], &by_kernel[{range, launch.kernel}]}) {
      ++work->calls;
      work->nanoseconds += launch.end - launch.begin;
      work->registers = launch.registers;
      work->grid = launch.grid;
      work->block = launch.block;
    }
  }
  std::sort(spans.begin(), spans.end());
  std::uint64_t busy = 0, reached = 0;
  for (const auto& [from, to] : spans) {
    if (to <= reached) continue;
    busy += to - std::max(from, reached);
    reached = to;
  }
  const auto span = static_cast<double>(reached - spans.front().first);
  std::fprintf(out, "span %.3f ms, busy %.3f ms, idle %.2f %%, %zu launches\n\n", span / 1e6,
               static_cast<double>(busy) / 1e6, 100.0 * (1.0 - static_cast<double>(busy) / span), spans.size());
  std::fprintf(out, "ms\t%% of span\tcalls\tmean us\trange\n");
  print_longest_first(out, by_range, span,
                      [&](const std::string& range, const Work&) { std::fprintf(out, "%s\n", range.c_str()); });
  std::fprintf(out, "\nms\t%% of span\tcalls\tmean us\tregisters\tgrid or bytes\tblock\trange\tkernel\n");
  print_longest_first(out, by_kernel, span, [&](const auto& key, const Work& work) {
    std::fprintf(out, "%d\t%llu\t%llu\t%s\t%s\n", work.registers, static_cast<unsigned long long>(work.grid),
                 static_cast<unsigned long long>(work.block), key.first.c_str(), key.second.c_str());
  });
  if (path) std::fclose(out);
}

// Activity kinds to record. RUNTIME and DRIVER are needed because external correlations belong to them.
void record(bool on) {
  for (const auto kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
        CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION}) {
    on ? cuptiActivityEnable(kind) : cuptiActivityDisable(kind);
  }
}

void CUPTIAPI called(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (domain != CUPTI_CB_DOMAIN_RUNTIME_API || call->callbackSite != CUPTI_API_EXIT) return;
  if (id == CUPTI_RUNTIME_TRACE_CBID_cudaProfilerStart_v4000) record(true);
  if (id == CUPTI_RUNTIME_TRACE_CBID_cudaProfilerStop_v4000) {
    cuptiActivityFlushAll(1);
    record(false);
  }
}

// NVTX handles: strings and domains are pointers to their texts.
template <typename Handle>
Handle handle_of(const char* text) {
  return reinterpret_cast<Handle>(new std::string(text));  // never freed, like the program's handles
}
nvtxDomainHandle_t create_domain(const char* name) {
  return handle_of<nvtxDomainHandle_t>(name);
}
nvtxStringHandle_t register_string(nvtxDomainHandle_t, const char* text) {
  return handle_of<nvtxStringHandle_t>(text);
}
// Work inside an action ("products") has the labels of both: "F experts products".
std::string label_of(const std::vector<std::string>& open, const std::string& name) {
  const bool inside = !open.empty() && open.back().find(' ') != std::string::npos;
  return inside ? open.back() + " " + name : family_of(name);
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  if (*reinterpret_cast<const std::string*>(domain) != "weft") return 0;
  const bool registered = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(table().mutex);
    std::vector<std::string>& open = table().open[std::this_thread::get_id()];
    const std::string label =
        registered ? label_of(open, *reinterpret_cast<const std::string*>(event->message.registered)) : "-";
    const auto [place, fresh] = table().number_of.try_emplace(label, table().ranges.size() + 1);
    if (fresh) table().ranges.push_back(label);
    number = place->second;
    open.push_back(label);
  }
  cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, number);
  return 0;
}
int pop(nvtxDomainHandle_t domain) {
  if (*reinterpret_cast<const std::string*>(domain) != "weft") return 0;
  {
    const std::lock_guard lock(table().mutex);
    std::vector<std::string>& open = table().open[std::this_thread::get_id()];
    if (!open.empty()) open.pop_back();
  }
  std::uint64_t last = 0;
  cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
  return 0;
}

template <typename Function>
NvtxFunctionPointer erased(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  cuptiActivityRegisterCallbacks(give, take);
  cuptiSubscribe(&table().subscriber, called, nullptr);
  for (const auto id :
       {CUPTI_RUNTIME_TRACE_CBID_cudaProfilerStart_v4000, CUPTI_RUNTIME_TRACE_CBID_cudaProfilerStop_v4000}) {
    cuptiEnableCallback(1, table().subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, id);
  }
  std::atexit(report);
  return 1;
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable core2 = nullptr;
  unsigned size = 0;
  if (!callbacks || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core2, &size) == 0) return 0;
  *core2[NVTX_CBID_CORE2_DomainCreateA] = erased(create_domain);
  *core2[NVTX_CBID_CORE2_DomainRegisterStringA] = erased(register_string);
  *core2[NVTX_CBID_CORE2_DomainRangePushEx] = erased(push);
  *core2[NVTX_CBID_CORE2_DomainRangePop] = erased(pop);
  return 1;
}
