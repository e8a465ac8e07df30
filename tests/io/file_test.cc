#include "io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/capture_files.h"
#include "io/versions.h"

namespace veloxquant {
namespace {

using namespace testing_files;
using testing::HasSubstr;

template <class Function>
std::string problem(Function&& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(read_file, gives_all_bytes_up_to_the_limit) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  write_text(path, "abc");
  EXPECT_EQ(read_file(path, 3).size(), 3u);
  EXPECT_THAT(problem([&] { read_file(path, 2); }), HasSubstr("more than 2 bytes"));
  write_text(path, std::string(3 << 20, 'x'));
  EXPECT_EQ(read_file(path, 4 << 20).size(), size_t{3 << 20});
  write_text(path, "");
  EXPECT_TRUE(read_file(path, 10).empty());
}

TEST(read_file, says_why_not) {
  EXPECT_THAT(problem([] { read_file("/nowhere/a", 10); }), HasSubstr("can't read /nowhere/a: No such file"));
  EXPECT_THAT(problem([] { read_file("/", 10); }), HasSubstr("Is a directory"));
  EXPECT_THAT(problem([] { read_file("/dev/zero", 1000); }), HasSubstr("more than 1000 bytes"));
}

TEST(write_file, replaces_the_whole_file_and_leaves_nothing_else) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.json");
  write_text(path, "a longer text");
  write_file(path, "short");
  EXPECT_EQ(read_text(path), "short");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(write_file, follows_a_link) {
  const TemporaryFolder folder;
  write_text(folder.file("real"), "old");
  std::filesystem::create_symlink(folder.file("real"), folder.file("link"));
  write_file(folder.file("link"), "new");
  EXPECT_EQ(read_text(folder.file("real")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
}

TEST(write_file, a_full_device_is_an_error) {
  EXPECT_THAT(problem([] { write_file("/dev/full", "text"); }), HasSubstr("can't write /dev/full: No space left"));
  struct stat info {};
  ASSERT_EQ(::stat("/dev/full", &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode)) << "the device is still one";
}

TEST(check_writable, refuses_what_write_file_could_not_write) {
  const TemporaryFolder folder;
  EXPECT_EQ(problem([&] { check_writable(folder.file("new.json")); }), "");
  EXPECT_EQ(folder.entries(), 0u) << "nothing is left behind";
  EXPECT_EQ(problem([] { check_writable("/dev/null"); }), "");
  EXPECT_THAT(problem([] { check_writable("/nowhere/a.json"); }), HasSubstr("/nowhere/a.json: No such file"));
  EXPECT_THAT(problem([&] { check_writable(folder.path()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(problem([] { check_writable(""); }), HasSubstr("can't write ''"));
  write_text(folder.file("file"), "");
  EXPECT_THAT(problem([&] { check_writable(folder.file("file/a.json")); }), HasSubstr("Not a directory"));
}

TEST(versions, the_project_has_one_version) {
  EXPECT_THAT(read_text(VQ_SOURCE_DIR "/CMakeLists.txt"), HasSubstr("VERSION " + std::string(kVersion)));
  for (const char* name : {"Highway 1.", "Eigen 3.", "fmt ", "nlohmann-json 3.", "xxHash 0."}) {
    EXPECT_THAT(library_versions(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace veloxquant
