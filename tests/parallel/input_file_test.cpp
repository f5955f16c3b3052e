// Files that others may write to: what is read, what is refused, and what is said of one that becomes shorter.
#include "parallel/runtime/input_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

class InputFiles : public testing::Test {
 protected:
  InputFiles() {
    std::string name = std::filesystem::temp_directory_path() / "weft-input-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~InputFiles() override { std::filesystem::remove_all(folder_); }

  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "nothing was refused";
  }

  std::filesystem::path folder_;
};

TEST_F(InputFiles, GiveTheirBytes) {
  const InputFile file(put("text", "0123456789"));
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(file.text(), "0123456789");
  std::vector<std::uint8_t> bytes(3);
  file.read(7, bytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "789");
  EXPECT_THROW(file.read(8, bytes), Error);
  EXPECT_EQ(read_whole_file(put("empty", "")), "");
}

TEST_F(InputFiles, SayWhatIsNoFile) {
  EXPECT_NE(refusal([&] { InputFile((folder_ / "gone").string()); }).find("No such file"), std::string::npos);
  EXPECT_NE(refusal([&] { InputFile(put("empty", "")); }).find("the file is empty"), std::string::npos);
  const std::string pipe = (folder_ / "pipe").string(), socket_name = (folder_ / "socket").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(socket_name.begin(), socket_name.end(), address.sun_path);
  const int server = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  // At once: nobody will ever write to the pipe.
  for (const std::string& name : {pipe, socket_name, std::string("/dev/zero"), folder_.string()}) {
    EXPECT_EQ(refusal([&] { InputFile file(name); }), "\"" + name + "\": it is not a regular file");
    EXPECT_EQ(refusal([&] { read_whole_file(name); }), "\"" + name + "\": it is not a regular file");
  }
  close(server);
}

// Mapped, this would be a signal.
TEST_F(InputFiles, CutShortIsAnErrorWithAName) {
  const std::string name = put("long", std::string(1 << 20, 'x'));
  const InputFile file(name);
  std::filesystem::resize_file(name, 5000);
  std::vector<std::uint8_t> bytes(4096);
  file.read(0, bytes);
  EXPECT_EQ(refusal([&] { file.read(4096, bytes); }),
            "\"" + name + "\": it was cut short while it was read: it ends before byte 5000");
  EXPECT_NE(refusal([&] { file.text(); }).find("it was cut short"), std::string::npos);
}

}  // namespace
}  // namespace weft
