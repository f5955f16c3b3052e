#include "parallel/shard/wrap.h"

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

bool takes_amount(WrapKind kind) {
  return kind == WrapKind::blocks || kind == WrapKind::minimum_bytes;
}

bool is_root(const WrapPolicies& policies, Family family) {
  const auto found = policies.find(family);
  return found != policies.end() && found->second.kind == WrapKind::root;
}

}  // namespace

WrapPolicy parse_wrap(std::string_view text) {
  const std::size_t space = text.find(' ');
  const bool has_amount = space != std::string_view::npos;
  const std::string_view number = has_amount ? text.substr(space + 1) : std::string_view{};
  const auto kind = value_named<WrapKind>(text.substr(0, space));
  WrapPolicy policy{kind.value_or(WrapKind::block)};
  bool valid = kind && takes_amount(*kind) == has_amount;
  if (valid && has_amount) {
    policy.amount = parsed_number<decltype(policy.amount)>(number).value_or(0);
    valid = policy.amount >= 1;
  }
  if (!valid) {
    fail_request(
        "\"{}\" is no way to wrap parameters; write \"parameter\", \"block\", \"half_block\", \"blocks N\", "
        "\"minimum_bytes N\", \"buckets\" or \"root\", where N is at least 1",
        text);
  }
  return policy;
}

std::string to_string(const WrapPolicy& policy) {
  const std::string_view name = name_of(policy.kind);
  return takes_amount(policy.kind) ? fmt::format("{} {}", name, policy.amount) : std::string(name);
}

std::vector<std::string> wrap_warnings(const WrapPolicies& policies) {
  std::vector<std::string> warnings;
  if (is_root(policies, Family::dense)) {
    const bool all = is_root(policies, Family::embedding) && is_root(policies, Family::head);
    warnings.push_back(
        all ? "wrap \"root\" for dense, embedding and head: everything is gathered at once: peak is the whole stage; "
              "this is for diagnosis, wrap dense parameters by block"
            : "wrap \"root\" for dense: the dense parameters of all blocks are gathered at once: peak is the whole "
              "stage; this is for diagnosis, wrap them by block");
  }
  if (is_root(policies, Family::experts)) {
    warnings.push_back(
        "wrap \"root\" for experts: the expert banks of all blocks are gathered at once; this is for diagnosis, wrap "
        "them by block");
  }
  return warnings;
}

}  // namespace weft
