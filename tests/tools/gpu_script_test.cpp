// The calls of tools/gpu.sh on a machine that is lent by the call: ten minutes and eight files. The script runs as it
// is, with a `timeout` that starts nothing and notes the limit, on cards of both sizes.
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "tests/tools/program.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class GpuScript : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    fs::create_directories(folder_ / "bin");
    fs::create_directories(folder_ / "tree/build-gpu");
    for (const char* name : {"tools", "configs"}) {
      fs::create_directory_symlink(fs::path(WEFT_SOURCE_DIR) / name, folder_ / "tree" / name);
    }
    fs::create_directories(folder_ / "tree/.gpu");
    std::ofstream(folder_ / "tree/.gpu/gpu-programs.tar.xz") << "programs";
    fs::create_symlink(WEFT_PROGRAM, folder_ / "tree/weft");
    command("nvidia-smi", "case \"$*\" in *memory.total*) echo \"$MEBIBYTES\";; *compute_cap*) echo 9.0;; esac");
    // What runs under a limit leaves its files.
    command("timeout", R"(echo "$2" >>"$LIMITS"
case "$*" in
  *unpack*) ln -s ../weft build-gpu/weft ;;
  *kernel_table*) for word; do case "$word" in *.toml) n=$(basename "$word" .toml); touch "$out/kernels_$n.tsv" "$out/trace_$n.json.gz";; esac; done ;;
esac)");
  }
  void command(const std::string& name, const std::string& text) const {
    const fs::path file = folder_ / "bin" / name;
    std::ofstream(file) << "#!/bin/bash\n" << text << "\n";
    fs::permissions(file, fs::perms::owner_all);
  }
  // The limits of all that a call runs, in seconds.
  std::vector<int> limits(int call, int mebibytes) const {
    const fs::path file = folder_ / "limits";
    fs::remove(file);
    fs::remove_all(folder_ / "out");
    fs::remove(folder_ / "tree/build-gpu/weft");  // each call may meet another machine
    const auto called =
        run(fmt::format("env PATH=\"$PWD/bin:$PATH\" LIMITS='{}' MEBIBYTES={} tree/tools/gpu.sh '{}' {}", file.string(),
                        mebibytes, (folder_ / "out").string(), call));
    EXPECT_EQ(called.exit_code, 0) << called.output << called.messages;
    std::ifstream in(file);
    std::vector<int> found;
    for (int limit = 0; in >> limit;) found.push_back(limit);
    return found;
  }
};

TEST_F(GpuScript, CallsTakeTenMinutesAndLeaveEightFiles) {
  for (const int mebibytes : {81559, 143771}) {
    for (int call = 1; call <= 6; ++call) {
      SCOPED_TRACE(fmt::format("call {} on a card of {} MiB", call, mebibytes));
      const std::vector<int> found = limits(call, mebibytes);
      EXPECT_GE(found.size(), 2u);
      EXPECT_LE(std::reduce(found.begin(), found.end()), 580) << fmt::format("{}", fmt::join(found, " "));
      const auto files = std::distance(fs::directory_iterator(folder_ / "out"), {});
      EXPECT_LE(files, 8);
      EXPECT_GE(files, 3) << "environment, summary and a text";
    }
  }
}

// And leaves the results of the call before as they are.
TEST_F(GpuScript, SaysWhatItDoesNotKnow) {
  fs::create_directories(folder_ / "out");
  put("out/summary.txt", "kernels 9 0\n");
  const auto called = run(fmt::format(
      "env PATH=\"$PWD/bin:$PATH\" LIMITS='{0}/limits' MEBIBYTES=1 tree/tools/gpu.sh '{0}/out' kernels nonsense",
      folder_.string()));
  EXPECT_EQ(called.exit_code, 2);
  EXPECT_NE(called.messages.find("there is no part 'nonsense'"), std::string::npos) << called.messages;
  EXPECT_EQ(run("cat out/summary.txt").output, "kernels 9 0\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "out"), {}), 1);
}

}  // namespace
}  // namespace weft
