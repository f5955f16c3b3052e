#include "parallel/runtime/nvtx.h"

#ifdef WEFT_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <unistd.h>

#include <cstddef>

namespace weft {
namespace {

nvtxDomainHandle_t native(void* domain) {
  return static_cast<nvtxDomainHandle_t>(domain);
}

// 0 if the tool does not know schemas; the tool then shows ranges without payload.
std::uint64_t register_schema(nvtxDomainHandle_t domain) {
  const auto entry = [](std::uint64_t type, const char* name, const char* description, std::size_t offset) {
    nvtxPayloadSchemaEntry_t result{};
    result.type = type;
    result.name = name;
    result.description = description;
    result.offset = offset;
    return result;
  };
  const nvtxPayloadSchemaEntry_t entries[] = {
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT64, "bytes", "exchanged, gathered or reduced", offsetof(NvtxPayload, bytes)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT32, "microbatch", "-1: none", offsetof(NvtxPayload, microbatch)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT32, "step", "from 1", offsetof(NvtxPayload, step)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_INT32, "stage", "-1: none", offsetof(NvtxPayload, stage)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE, "phase",
            "F, B, I, W, R, gather, reshard, reduce, message, update or step", offsetof(NvtxPayload, phase)),
      entry(NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE, "family",
            "dense, experts, embedding, head, root, routing, passage or -", offsetof(NvtxPayload, family))};
  nvtxPayloadSchemaAttr_t schema{};
  schema.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE |
                     NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES |
                     NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
  schema.name = "weft.range";
  schema.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
  schema.entries = entries;
  schema.numEntries = std::size(entries);
  schema.payloadStaticSize = sizeof(NvtxPayload);
  return nvtxPayloadSchemaRegister(domain, &schema);
}

}  // namespace

NvtxDomain::NvtxDomain() : domain_(nvtxDomainCreateA("weft")), schema_(register_schema(native(domain_))) {
  nvtxDomainNameCategoryA(native(domain_), nvtx_step_category, "step");
  for (const Lane lane : all_lanes) {
    nvtxDomainNameCategoryA(native(domain_), nvtx_category(lane), std::string(name_of(lane)).c_str());
  }
}

NvtxDomain::~NvtxDomain() {
  nvtxDomainDestroy(native(domain_));
}

NvtxDomain::Name NvtxDomain::registered(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto [entry, fresh] = names_.try_emplace(text);
  if (fresh) entry->second.handle_ = nvtxDomainRegisterStringA(native(domain_), entry->first.c_str());
  return entry->second;
}

NvtxRange::NvtxRange(const NvtxDomain& domain, NvtxDomain::Name name, std::uint32_t category,
                     const NvtxPayload& payload)
    : domain_(domain) {
  const nvtxPayloadData_t data{domain.schema_, sizeof payload, &payload};
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.category = category;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = static_cast<nvtxStringHandle_t>(name.handle_);
  if (domain.schema_ != 0) {
    attributes.payloadType = NVTX_PAYLOAD_TYPE_EXT;
    attributes.reserved0 = 1;  // number of payloads
    attributes.payload.ullValue = reinterpret_cast<std::uintptr_t>(&data);
  }
  nvtxDomainRangePushEx(native(domain.domain_), &attributes);
}

NvtxRange::~NvtxRange() {
  nvtxDomainRangePop(native(domain_.domain_));
}

void nvtx_name_thread(const std::string& name) {
  nvtxNameOsThreadA(static_cast<std::uint32_t>(gettid()), name.c_str());
}

}  // namespace weft

#else

namespace weft {

NvtxDomain::NvtxDomain() = default;
NvtxDomain::~NvtxDomain() = default;
NvtxDomain::Name NvtxDomain::registered(const std::string&) {
  return {};
}
NvtxRange::NvtxRange(const NvtxDomain& domain, NvtxDomain::Name, std::uint32_t, const NvtxPayload&) : domain_(domain) {}
NvtxRange::~NvtxRange() = default;
void nvtx_name_thread(const std::string&) {}

}  // namespace weft

#endif
