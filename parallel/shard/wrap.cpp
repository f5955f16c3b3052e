#include "parallel/shard/wrap.h"

#include <algorithm>

#include "parallel/runtime/error.h"
#include "parallel/runtime/parsed_number.h"

namespace weft {
namespace {

struct WrapWord {
  WrapKind kind;
  std::string_view word;
  bool has_amount;
};
constexpr WrapWord wrap_words[] = {{WrapKind::block, "block", false},
                                   {WrapKind::half_block, "half_block", false},
                                   {WrapKind::blocks, "blocks", true},
                                   {WrapKind::minimum_bytes, "minimum_bytes", true},
                                   {WrapKind::root, "root", false}};

bool is_root(const WrapPolicies& policies, Family family) {
  const auto found = policies.find(family);
  return found != policies.end() && found->second.kind == WrapKind::root;
}

}  // namespace

std::string text_of(const WrapPolicy& policy) {
  const auto& word = wrap_words[static_cast<std::size_t>(policy.kind)];
  return word.has_amount ? fmt::format("{} {}", word.word, policy.amount) : std::string(word.word);
}

WrapPolicy parse_wrap(std::string_view text) {
  const std::size_t space = text.find(' ');
  const std::string_view word = text.substr(0, space);
  const std::string_view number = space == std::string_view::npos ? std::string_view{} : text.substr(space + 1);
  const auto known = std::ranges::find(wrap_words, word, &WrapWord::word);
  WrapPolicy policy;
  bool valid = known != std::end(wrap_words) && known->has_amount == (space != std::string_view::npos);
  if (valid) policy.kind = known->kind;
  if (valid && known->has_amount) {
    policy.amount = parsed_number<decltype(policy.amount)>(number).value_or(0);
    valid = policy.amount >= 1;
  }
  if (!valid) {
    fail_request(
        "\"{}\" is no way to wrap parameters; write \"block\", \"half_block\", \"blocks N\", \"minimum_bytes N\" or "
        "\"root\", where N is at least 1",
        text);
  }
  return policy;
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
