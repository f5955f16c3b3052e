// A stand-in for Nsight in tests: a library that NVTX loads (NVTX_INJECTION64_PATH). It writes a line for everything
// that the program tells it to the file named by WEFT_NVTX_RECORDING. Fields are separated by tabs:
//
//   domain NAME               schema NAME SIZE FIELD:TYPE:OFFSET ...       category NUMBER NAME
//   string TEXT               thread THREAD NAME
//   push THREAD CATEGORY BYTES MICROBATCH STEP STAGE PHASE FAMILY NAME     pop THREAD
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// The layout that the program's schema describes.
struct Payload {
  std::int64_t bytes;
  std::int32_t microbatch, step, stage;
  nvtxStringHandle_t phase, family;
};
constexpr std::uint64_t schema_number = 77;

// stdio locks a stream for each call, so lines of threads do not mix. Loaded once and for the process's life.
std::FILE* recording = nullptr;

[[gnu::format(printf, 1, 2)]] void write(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(recording, format, arguments);
  va_end(arguments);
  std::fflush(recording);
}

template <typename Handle>
Handle handle_of(const char* text) {
  return reinterpret_cast<Handle>(new std::string(text));  // until the process ends, as the program's handles do
}
template <typename Handle>
const char* text_of(Handle handle) {
  return reinterpret_cast<const std::string*>(handle)->c_str();
}

nvtxDomainHandle_t create_domain(const char* name) {
  write("domain\t%s\n", name);
  return handle_of<nvtxDomainHandle_t>(name);
}

nvtxStringHandle_t register_string(nvtxDomainHandle_t, const char* text) {
  write("string\t%s\n", text);
  return handle_of<nvtxStringHandle_t>(text);
}

void name_category(nvtxDomainHandle_t, std::uint32_t category, const char* name) {
  write("category\t%u\t%s\n", category, name);
}

void name_thread(std::uint32_t thread, const char* name) {
  write("thread\t%u\t%s\n", thread, name);
}

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  Payload payload{-1, -1, -1, -1, nullptr, nullptr};
  if (event->payloadType == NVTX_PAYLOAD_TYPE_EXT && event->reserved0 == 1) {
    const auto* data = reinterpret_cast<const nvtxPayloadData_t*>(event->payload.ullValue);
    if (data->schemaId == schema_number && data->size == sizeof payload) {
      std::memcpy(&payload, data->payload, sizeof payload);
    }
  }
  const bool registered = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
  const auto word_of = [](nvtxStringHandle_t handle) { return handle == nullptr ? "nothing" : text_of(handle); };
  write("push\t%d\t%u\t%lld\t%d\t%d\t%d\t%s\t%s\t%s%s\n", gettid(), event->category,
        static_cast<long long>(payload.bytes), payload.microbatch, payload.step, payload.stage, word_of(payload.phase),
        word_of(payload.family), registered ? text_of(event->message.registered) : "unregistered ",
        std::strcmp(text_of(domain), "weft") == 0 ? "" : " in another domain");
  return 0;
}

int pop(nvtxDomainHandle_t) {
  write("pop\t%d\n", gettid());
  return 0;
}

std::uint64_t register_schema(nvtxDomainHandle_t, const nvtxPayloadSchemaAttr_t* schema) {
  std::string fields;
  for (std::size_t i = 0; i < schema->numEntries; ++i) {
    const nvtxPayloadSchemaEntry_t& entry = schema->entries[i];
    fields += std::string("\t") + entry.name + ":" + std::to_string(entry.type) + ":" + std::to_string(entry.offset);
  }
  write("schema\t%s\t%zu%s\n", schema->name, schema->payloadStaticSize, fields.c_str());
  return schema_number;
}

template <typename Function>
NvtxFunctionPointer erased(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const char* path = std::getenv("WEFT_NVTX_RECORDING");
  if (path == nullptr || (recording = std::fopen(path, "w")) == nullptr) return 0;
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable core = nullptr, core2 = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &size) == 0 ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core2, &size) == 0) {
    return 0;
  }
  *core[NVTX_CBID_CORE_NameOsThreadA] = erased(name_thread);
  *core2[NVTX_CBID_CORE2_DomainCreateA] = erased(create_domain);
  *core2[NVTX_CBID_CORE2_DomainRegisterStringA] = erased(register_string);
  *core2[NVTX_CBID_CORE2_DomainNameCategoryA] = erased(name_category);
  *core2[NVTX_CBID_CORE2_DomainRangePushEx] = erased(push);
  *core2[NVTX_CBID_CORE2_DomainRangePop] = erased(pop);
  return 1;
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_PAYLOAD_MODULEID) return 0;
  module->segments->functionSlots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] =
      reinterpret_cast<std::intptr_t>(register_schema);
  return 1;
}
