#include "tests/tools/standard_headers.h"

#include <fmt/format.h>

#include <map>
#include <regex>
#include <sstream>

#include "tests/tools/floors.h"

namespace weft {
namespace {

const std::map<std::string, std::string>& header_of_names() {
  struct Row {
    const char *header, *names;
  };
  static const std::vector<Row> rows = {
      {"algorithm",
       "adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal "
       "equal_range fill fill_n find find_if find_if_not for_each includes inplace_merge is_sorted "
       "lexicographical_compare lower_bound max max_element merge min min_element minmax_element "
       "none_of nth_element partial_sort remove_if replace reverse rotate set_difference "
       "set_symmetric_difference shuffle sort stable_partition stable_sort transform unique "
       "upper_bound"},
      {"array", "array"},
      {"atomic",
       "atomic atomic_ref atomic_signal_fence atomic_thread_fence memory_order_acq_rel "
       "memory_order_acquire memory_order_relaxed memory_order_release memory_order_seq_cst"},
      {"bit", "bit_cast bit_ceil bit_width countl_zero countr_zero endian has_single_bit popcount rotl rotr"},
      {"cctype", "isalnum isalpha isdigit isspace isxdigit tolower toupper"},
      {"charconv", "from_chars to_chars"},
      {"chrono", "chrono milli"},
      {"cmath",
       "abs cbrt ceil cos erf exp exp2 fabs floor fma fmax fmin fmod frexp hypot ilogb isfinite "
       "isinf isnan ldexp llround log log10 log2 lround nan nanf nearbyint nextafter pow round "
       "signbit sin sqrt tanh"},
      {"compare", "partial_ordering strong_ordering"},
      {"condition_variable", "condition_variable"},
      {"cstddef", "byte nullptr_t ptrdiff_t size_t"},
      {"cstdint",
       "int16_t int32_t int64_t int8_t intptr_t uint16_t uint32_t uint64_t uint8_t uintmax_t "
       "uintptr_t"},
      {"cstdio",
       "FILE fclose ferror fflush fopen fprintf fputs fread fwrite printf remove rename snprintf "
       "sscanf vfprintf"},
      {"cstdlib", "abort aligned_alloc atoi calloc exit free getenv malloc strtod strtoll strtoull system"},
      {"cstring", "memcmp memcpy memmove memset strchr strcmp strerror strlen"},
      {"ctime", "time"},
      {"deque", "deque"},
      {"exception",
       "current_exception exception exception_ptr make_exception_ptr rethrow_exception terminate "
       "uncaught_exceptions"},
      {"filesystem", "filesystem"},
      {"fstream", "fstream ifstream ofstream"},
      {"functional", "cref function greater hash less less_equal not_fn plus ref reference_wrapper"},
      {"future", "async future future_status packaged_task promise"},
      {"initializer_list", "initializer_list"},
      {"ios", "ios ios_base streamoff streamsize"},
      {"iostream", "cerr cin cout"},
      {"iterator",
       "back_inserter distance inserter istream_iterator istreambuf_iterator make_move_iterator next "
       "prev ssize"},
      {"limits", "numeric_limits"},
      {"list", "list"},
      {"map", "map multimap"},
      {"memory", "addressof make_shared make_unique make_unique_for_overwrite shared_ptr unique_ptr weak_ptr"},
      {"mutex", "call_once defer_lock lock_guard mutex once_flag scoped_lock timed_mutex unique_lock"},
      {"new", "bad_alloc"},
      {"numbers", "numbers"},
      {"numeric", "accumulate exclusive_scan gcd inclusive_scan inner_product iota lcm partial_sum reduce"},
      {"optional", "make_optional nullopt nullopt_t optional"},
      {"ostream", "ostream"},
      {"queue", "priority_queue queue"},
      {"random",
       "minstd_rand mt19937 mt19937_64 normal_distribution random_device uniform_int_distribution "
       "uniform_real_distribution"},
      {"ranges", "views"},
      {"regex", "regex regex_match regex_replace regex_search smatch"},
      {"set", "multiset set"},
      {"source_location", "source_location"},
      {"span", "as_bytes as_writable_bytes span"},
      {"sstream", "istringstream ostringstream stringbuf stringstream"},
      {"stdexcept", "invalid_argument logic_error out_of_range runtime_error"},
      {"string", "getline stod stoi stoll string to_string"},
      {"string_view", "string_view"},
      {"system_error", "errc error_code system_error"},
      {"thread", "jthread this_thread thread"},
      {"tuple", "apply forward_as_tuple ignore make_tuple tie tuple"},
      {"type_traits",
       "conditional_t decay_t enable_if_t false_type invoke_result_t is_const_v is_floating_point_v "
       "is_integral_v is_pointer_v is_same_v is_trivially_copyable_v remove_const_t remove_cvref_t "
       "remove_pointer_t remove_reference_t true_type underlying_type_t void_t"},
      {"unordered_map", "unordered_map"},
      {"unordered_set", "unordered_set"},
      {"utility",
       "as_const declval exchange forward index_sequence integer_sequence make_pair move pair swap "
       "to_underlying unreachable"},
      {"variant", "get_if holds_alternative monostate variant visit"},
      {"vector", "vector"},
  };
  static const std::map<std::string, std::string> table = [] {
    std::map<std::string, std::string> header_of;
    for (const Row& row : rows) {
      std::istringstream names(row.names);
      for (std::string name; names >> name;) header_of[name] = row.header;
    }
    return header_of;
  }();
  return table;
}

// Headers whose own declarations cannot do without another's names.
const std::map<std::string, std::set<std::string>>& brought_by() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"charconv", {"system_error"}},
      {"filesystem", {"string", "system_error"}},
      {"fmt/ranges.h", {"fmt/format.h"}},
      {"fstream", {"ios", "ostream", "string"}},
      {"iostream", {"ios", "ostream"}},
      {"map", {"tuple", "utility"}},
      {"ostream", {"ios"}},
      {"span", {"array", "cstddef"}},
      {"sstream", {"ios", "ostream", "string"}},
      {"string", {"cstddef", "string_view"}},
      {"array", {"cstddef"}},
      {"cstdio", {"cstddef"}},
      {"cstdlib", {"cstddef"}},
      {"cstring", {"cstddef"}},
      {"vector", {"cstddef"}},
  };
  return table;
}

}  // namespace

Includes includes_of(std::string_view text) {
  static const std::regex include(R"re(^\s*#\s*include\s*([<"])([^>"]*))re");
  Includes found;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    (match[1] == "<" ? found.standard : found.own).push_back(match[2]);
  }
  return found;
}

std::vector<std::string> missing_headers(std::string_view text, const std::set<std::string>& included) {
  std::set<std::string> there = included;
  for (const std::string& header : included) {
    if (const auto more = brought_by().find(header); more != brought_by().end()) there.merge(std::set(more->second));
  }
  static const std::regex name(R"(\b(std|fmt)::(\w+))");
  const std::string code = code_of(text);
  std::map<std::string, std::string> wanted;  // header to the first name
  for (std::sregex_iterator match(code.begin(), code.end(), name), end; match != end; ++match) {
    std::string header;
    if ((*match)[1] == "fmt") {
      header = (*match)[2] == "join" ? "fmt/ranges.h" : "fmt/format.h";
    } else if (const auto row = header_of_names().find((*match)[2]); row != header_of_names().end()) {
      header = row->second;
    }
    if (!header.empty() && !there.contains(header)) wanted.try_emplace(header, match->str());
  }
  std::vector<std::string> missing;
  for (const auto& [header, first] : wanted) missing.push_back(fmt::format("{} wants <{}>", first, header));
  return missing;
}

}  // namespace weft
