#include "floors.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/tools/standard_headers.h"

namespace weft {
namespace {

const std::filesystem::path source_root = WEFT_SOURCE_DIR;

// Every file below the root with its path from there. Hidden folders, build trees (whatever their name) and what
// .gitignore keeps out of the repository are not ours to judge.
std::vector<std::string> source_files() {
  std::vector<std::string> paths;
  for (auto entry = std::filesystem::recursive_directory_iterator(source_root);
       entry != std::filesystem::recursive_directory_iterator(); ++entry) {
    const std::filesystem::path& path = entry->path();
    const std::string relative = path.lexically_relative(source_root);
    if (entry->is_directory()) {
      const bool ours = !relative.starts_with('.') && !relative.starts_with("build") && relative != "runs" &&
                        relative != "data" && relative != "third_party" &&
                        !std::filesystem::exists(path / "CMakeCache.txt");
      if (!ours) entry.disable_recursion_pending();
    } else {
      paths.push_back(relative);
    }
  }
  return paths;
}

bool is_source_of_a_floor(const std::string& path) {
  const std::string top = *std::filesystem::path(path).begin(), extension = std::filesystem::path(path).extension();
  const bool source = extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
  return source && (top == "parallel" || top == "layers" || top == "trainer" || top == "tools");
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(source_root / path).rdbuf();
  return text.str();
}

TEST(Floors, IncludesPointDown) {
  int read = 0;
  for (const std::string& path : source_files()) {
    if (!is_source_of_a_floor(path)) continue;
    ++read;
    for (const std::string& fault : include_faults(path, text_of(path))) ADD_FAILURE() << fault;
  }
  EXPECT_GT(read, 40) << "sources below " << source_root;
}

TEST(Floors, NothingKeepsStateForTheWholeProcess) {
  for (const std::string& path : source_files()) {
    if (!is_source_of_a_floor(path)) continue;
    for (const std::string& fault : state_faults(path, text_of(path))) ADD_FAILURE() << fault;
  }
}

TEST(Floors, CodeStandsInItsFolders) {
  for (const std::string& path : source_files()) {
    for (const std::string& fault : place_faults(path)) ADD_FAILURE() << fault;
  }
}

TEST(Floors, NoFunctionIsLong) {
  for (const std::string& path : source_files()) {
    if (!is_source_of_a_floor(path)) continue;
    for (const std::string& fault : long_functions(path, text_of(path))) ADD_FAILURE() << fault;
  }
}

TEST(Floors, NoErrorIsSwallowed) {
  for (const std::string& path : source_files()) {
    // Below, what cannot throw on gives up in silence: destructors, and calls that another error has ended.
    if (!path.starts_with("trainer/") && !path.starts_with("tools/")) continue;
    for (const std::string& fault : swallowed_errors(path, text_of(path))) ADD_FAILURE() << fault;
  }
}

// It throws where standard error cannot be written; say() of parallel/runtime/standard_error.h does not.
TEST(Floors, NothingThrowsBecauseOfStandardError) {
  for (const std::string& path : source_files()) {
    if (!is_source_of_a_floor(path)) continue;
    EXPECT_EQ(code_of(text_of(path)).find("print(stderr"), std::string::npos) << path;
  }
}

TEST(Floors, NoTypeIsDefinedTwice) {
  std::map<std::string, std::string> file_of;
  for (const std::string& path : source_files()) {
    // What stands in for a header of the product defines what that defines.
    const bool test = path.starts_with("tests/") && !path.starts_with("tests/cuda_emulator/include/");
    const std::string extension = std::filesystem::path(path).extension();
    if (!is_source_of_a_floor(path) && !(test && (extension == ".h" || extension == ".cpp"))) continue;
    for (const std::string& type : defined_types(text_of(path))) {
      const auto [found, fresh] = file_of.try_emplace(type, path);
      EXPECT_TRUE(fresh) << type << " is defined in " << found->second << " and in " << path;
    }
  }
  EXPECT_GT(file_of.size(), 400u);
}

// Also what is included by way of our own headers counts: those are the same for every compiler.
std::set<std::string> headers_within_reach(const std::map<std::string, Includes>& includes, const std::string& path) {
  std::set<std::string> standard, seen = {path};
  for (std::vector<std::string> left = {path}; !left.empty();) {
    const std::string file = left.back();
    left.pop_back();
    const Includes& of = includes.at(file);
    standard.insert(of.standard.begin(), of.standard.end());
    for (const std::string& own : of.own) {
      for (const std::string& at :
           {own, (std::filesystem::path(file).parent_path() / own).lexically_normal().string()}) {
        if (includes.contains(at) && seen.insert(at).second) left.push_back(at);
      }
    }
  }
  return standard;
}

TEST(Floors, NoFileLeavesItsStandardHeadersToTheCompiler) {
  std::map<std::string, std::string> texts;
  std::map<std::string, Includes> includes;
  for (const std::string& path : source_files()) {
    if (!is_source_of_a_floor(path) && !(path.starts_with("tests/") && is_source_of_a_floor("tools/" + path))) continue;
    texts[path] = text_of(path);
    includes[path] = includes_of(texts[path]);
  }
  for (const auto& [path, text] : texts) {
    for (const std::string& missing : missing_headers(text, headers_within_reach(includes, path))) {
      ADD_FAILURE() << path << ": " << missing;
    }
  }
  EXPECT_GT(texts.size(), 800u);
}

// The checks themselves: each rule against a line that breaks it and one that does not.

std::size_t include_fault_count(std::string_view path, std::string_view header) {
  return include_faults(path, fmt::format("#pragma once\n\n#include \"{}\"\n", header)).size();
}

TEST(FloorsCheck, CatchesIncludesThatPointUp) {
  const std::string_view runtime = "parallel/runtime/tensor.h", mesh = "parallel/mesh/mesh.h",
                         comm = "parallel/comm/communicator.h", shard = "parallel/shard/unit.h",
                         pipeline = "parallel/pipeline/program/action.h", layers = "layers/kernels/routing.h",
                         trainer = "trainer/config/config.h", tools = "tools/command.h";
  const std::vector<std::string_view> all = {runtime, mesh, comm, shard, pipeline, layers, trainer, tools};
  // Row by row, who may include whom; the columns are in the order of `all`.
  const std::vector<std::pair<std::string_view, std::string_view>> table = {
      {runtime, "x......."},  {mesh, "xx......"},   {comm, "x.x....."},    {shard, "xxxx...."},
      {pipeline, "xxx.x..."}, {layers, "xxx..x.."}, {trainer, "xxxxxxx."}, {tools, "xxxxxxxx"},
  };
  for (const auto& [path, allowed] : table) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(include_fault_count(path, all[i]), allowed[i] == 'x' ? 0u : 1u) << path << " includes " << all[i];
    }
  }
}

TEST(FloorsCheck, RoomsOfTheTrainerLeanOneWay) {
  const std::vector<std::string> rooms = {"config",    "tokenizer",   "jinja",   "data",     "plan",       "costs",
                                          "layout",    "optimizer",   "rank",    "resolve",  "checkpoint", "run",
                                          "inference", "huggingface", "measure", "planning", "diagnosis"};
  for (std::size_t low = 0; low < rooms.size(); ++low) {
    for (std::size_t high = low + 1; high < rooms.size(); ++high) {
      EXPECT_EQ(include_fault_count(fmt::format("trainer/{}/file.cpp", rooms[low]),
                                    fmt::format("trainer/{}/file.h", rooms[high])),
                1u)
          << rooms[low] << " includes " << rooms[high];
    }
  }
  EXPECT_EQ(include_fault_count("trainer/diagnosis/file.cpp", "trainer/measure/file.h"), 0u);
  EXPECT_EQ(include_fault_count("trainer/costs/file.cpp", "trainer/data/file.h"), 1u);
  EXPECT_EQ(include_faults("trainer/file.h", "").size(), 1u);
}

TEST(FloorsCheck, KernelsSeeNoSegment) {
  for (const char* path : {"layers/kernels/routing.h", "layers/kernels/cuda/routing.cu"}) {
    EXPECT_EQ(include_fault_count(path, "layers/model_config.h"), 1u) << path;
    EXPECT_EQ(include_fault_count(path, "layers/kernels/context.h"), 0u) << path;
    EXPECT_EQ(include_fault_count(path, "parallel/shard/unit.h"), 1u) << path;
  }
  EXPECT_EQ(include_fault_count("layers/router.h", "layers/kernels/routing.h"), 0u);
}

TEST(FloorsCheck, CatchesRoomsOfToolsThatSeeOneAnother) {
  for (const char* room : {"plan", "layout", "program", "walk", "bench", "checkpoint", "run", "run_page"}) {
    const std::string path = fmt::format("tools/{}/file.cpp", room), header = fmt::format("tools/{}/file.h", room);
    for (const char* base : {"tools/command/commands.h", "tools/report/report_parts.h", "trainer/data/data.h"}) {
      EXPECT_EQ(include_fault_count(path, base), 0u) << path << " includes " << base;
    }
    EXPECT_EQ(include_fault_count("tools/report/file.cpp", header), 1u) << header;
    EXPECT_EQ(include_fault_count("tools/walk/file.cpp", header), room == std::string_view("walk") ? 0u : 1u) << header;
  }
  EXPECT_EQ(include_fault_count("tools/run/command_train.cpp", "tools/plan/plan_reports.h"), 0u);
  EXPECT_EQ(include_fault_count("tools/plan/plan_explain.cpp", "tools/run/file.h"), 1u);
}

TEST(FloorsCheck, SaysWhereAndWhat) {
  EXPECT_EQ(include_faults("layers/block.cpp", "#include \"layers/block.h\"\n\n#include \"trainer/data/data.h\"\n"),
            std::vector<std::string>{"layers/block.cpp:3: layers may not include \"trainer/data/data.h\""});
}

TEST(FloorsCheck, CatchesIncludesThatEvadeTheFloors) {
  EXPECT_EQ(include_fault_count("layers/block.cpp", "block.h"), 1u);
  EXPECT_EQ(include_fault_count("layers/block.cpp", "tests/helper.h"), 1u);
  EXPECT_EQ(include_fault_count("layers/block.cpp", "layers/../trainer/data.h"), 1u);
  EXPECT_EQ(include_faults("layers/block.cpp", "  #  include <trainer/data/data.h>").size(), 1u);
  EXPECT_EQ(include_faults("layers/block.cpp", "#include <../trainer/data.h>").size(), 1u);
  EXPECT_EQ(include_faults("parallel/other/file.h", "").size(), 1u);
  EXPECT_EQ(include_faults("parallel/file.h", "").size(), 1u);
  // What only looks like one.
  EXPECT_EQ(include_faults("layers/block.cpp", "#include <vector>\n#include <oneapi/dnnl/dnnl.hpp>\n").size(), 0u);
  EXPECT_EQ(include_faults("layers/block.cpp", "// #include \"trainer/data/data.h\"\n").size(), 0u);
}

TEST(FloorsCheck, CatchesLastingState) {
  for (std::string_view line :
       {"int counter = 0;", "std::vector<int> cache;", "inline bool enabled{true};", "static int counter;",
        "  static std::map<int, int> cache;", "  static int calls = 0;", "thread_local Context* context = nullptr;",
        "  thread_local int rank;", "bool Engine::started = false;", "std::atomic<bool> stop{false};",
        "const_iterator place = 0;", "Engine* engine;", "float table[256];", "  static float table[256];",
        "  static inline int count = 0;", "static auto cache = make_cache();"}) {
    EXPECT_EQ(state_faults("layers/block.cpp", line).size(), 1u) << line;
  }
}

TEST(FloorsCheck, LeavesConstantsTypesAndFunctionsAlone) {
  for (std::string_view line : {"constexpr int rounds = 8;",
                                "const std::string name = \"a\";",
                                "inline constexpr std::array all = {1, 2};",
                                "  static constexpr int size = 4;",
                                "  static const std::regex include(pattern);",
                                "  static const std::vector<int> table = {1};",
                                "struct State;",
                                "struct State {",
                                "enum class Kind : int { a };",
                                "using Clock = std::chrono::steady_clock;",
                                "namespace fs = std::filesystem;",
                                "template <typename T>",
                                "std::vector<int> make(int count) {",
                                "static int square(int x) { return x * x; }",
                                "Tensor::~Tensor() = default;",
                                "Tensor& Tensor::operator=(Tensor&& other) noexcept {",
                                "bool operator==(const A&, const A&);",
                                "  int local = 0;",
                                "}  // namespace weft",
                                "extern \"C\" {",
                                "  static Device& cpu();",
                                "// static int in_a_comment = 0;",
                                "/* words\nint counter = 0;\n*/",
                                "  auto t = R\"(\nint counter = 0;\n)\";",
                                "  const char* text = \"\\\"; static int x = 0;\";",
                                "  const char quote = '\"';\n  int y = 1'000;",
                                "int main(int argc, char** argv) {",
                                "auto f() -> int;",
                                "WEFT_MULTIVERSION void add(const float* a) {"}) {
    EXPECT_EQ(state_faults("layers/block.cpp", line), std::vector<std::string>{}) << line;
  }
}

// Wherever a function stands, one line more than the most is found, and all its lines count.
TEST(FloorsCheck, MeasuresFunctions) {
  for (const auto& [before, after] :
       {std::pair("void f(int a = {}, std::vector<int> b = {1}) {", "}"),
        {"template <typename T>\nstruct A {\n  int x = 1;\n\n public:\n  // Words {\n  A(int x)\n      : x(x) {",
         "  }\n};"},
        {"#include <a>\n#define open {\nnamespace a {\nclass B final : public A {\n  auto g() {", "  }\n};\n}"},
        {"const auto h = [](const A& a) {", "};"},
        {"struct C { int x; };\nint table[] = {1,\n2};\nextern \"C\" {\nint f() {", "}\n}"}}) {
    const std::string_view head = before;
    const bool two = head.ends_with(": x(x) {");  // lines of the declaration
    for (const std::size_t lines : {most_function_lines, most_function_lines + 1}) {
      std::string text(head);
      for (std::size_t i = two ? 3 : 2; i < lines; ++i) text += "\n    if (x) { y = \"}\"; }";
      EXPECT_EQ(long_functions("layers/block.cpp", text + "\n" + after).size(), lines - most_function_lines) << text;
    }
  }
}

// The first is what g++ 13 refused and g++ 12 did not.
TEST(FloorsCheck, NamesMissingHeaders) {
  const std::string enumeration = "#include <string>\nenum class Kind : std::uint8_t { a, b };\nstd::string name();\n";
  EXPECT_EQ(missing_headers(enumeration, {"string"}), std::vector<std::string>{"std::uint8_t wants <cstdint>"});
  EXPECT_EQ(missing_headers(enumeration, {"string", "cstdint"}), std::vector<std::string>{});
  EXPECT_EQ(missing_headers("std::vector<int> a; std::sort(a); std::sort(b); // std::map\n\"std::set\"", {"vector"}),
            std::vector<std::string>{"std::sort wants <algorithm>"});
  EXPECT_EQ(missing_headers("std::string_view a;", {"string"}), std::vector<std::string>{});
  const Includes both = includes_of("#include <map>\n  #include \"layers/block.h\"\n// #include <set>\n");
  EXPECT_EQ(both.standard, std::vector<std::string>{"map"});
  EXPECT_EQ(both.own, std::vector<std::string>{"layers/block.h"});
}

TEST(FloorsCheck, CatchesErrorsThatAreNotLookedAt) {
  EXPECT_EQ(swallowed_errors("trainer/a.cpp", "  } catch (const Error&) {\n    return std::nullopt;\n").size(), 1u);
  EXPECT_EQ(swallowed_errors("trainer/a.cpp", "  } catch (const Error& error) {\n  // catch (const Error&)\n").size(),
            0u);
}

TEST(FloorsCheck, FindsTypesThatOtherFilesCouldDefineToo) {
  EXPECT_EQ(
      defined_types(
          "namespace weft {\n\nstruct Finding {\n  int rank = 0;\n};\nclass Walk final : public Observer {\n"
          "};\nenum class Kind : std::uint8_t { a, b };\nnamespace cuda {\nstruct Event {\n};\n}  // namespace cuda\n"
          "struct After {\n};\n}  // namespace weft\n"),
      (std::vector<std::string>{"weft::Finding", "weft::Walk", "weft::Kind", "weft::cuda::Event", "weft::After"}));
  // Declared, of one file alone, a member, a specialisation, a function's return type, words.
  EXPECT_EQ(defined_types("namespace weft {\nclass Console;\nnamespace {\nstruct Own {\n};\n}  // namespace\n"
                          "struct Outer::Inner {\n};\ntemplate <>\nstruct Traits<int> {\n};\nstruct Plan plan() {\n}\n"
                          "// struct Word {\n}  // namespace weft\n"),
            std::vector<std::string>{});
}

TEST(FloorsCheck, CatchesCodeInOtherPlaces) {
  EXPECT_EQ(place_faults("utils/helper.cpp").size(), 1u);
  EXPECT_EQ(place_faults("main.cpp").size(), 1u);
  EXPECT_EQ(place_faults("scripts/run.sh").size(), 1u);
  EXPECT_EQ(place_faults("toolsmith/run.sh").size(), 1u);
  EXPECT_EQ(place_faults("tools/run.sh").size(), 0u);
  EXPECT_EQ(place_faults("docs/page.md").size(), 0u);
}

}  // namespace
}  // namespace weft
