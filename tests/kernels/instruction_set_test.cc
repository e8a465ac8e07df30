#include "kernels/instruction_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/tile.h"
#include "veloxquant/errors.h"

namespace veloxquant::kernels {
namespace {

TEST(instruction_set, is_the_best_until_another_is_wanted) {
  const auto all = instruction_sets();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(instruction_set(), all.front());
  for (std::string_view name : all) {
    EXPECT_TRUE(use_instruction_set(name));
    EXPECT_EQ(instruction_set(), name);
    EXPECT_EQ(instruction_sets(), all) << "the others can still be had";
    if (name == "avx512_vnni") EXPECT_STREQ(tile_kernels().name, "vnni");
    if (name == "avx2") EXPECT_STREQ(tile_kernels().name, "avx2");
  }
  EXPECT_FALSE(use_instruction_set("avx1024"));
  EXPECT_EQ(instruction_set(), all.back()) << "a name that is not there changes nothing";
}

TEST(instruction_set, the_environment_must_name_one_that_is_there) {
  ::setenv("VELOXQUANT_ISA", "avx1024", 1);
  try {
    obey_environment();
    FAIL() << "taken";
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("avx1024"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(instruction_sets().front()), std::string::npos);
  }
  const std::string last(instruction_sets().back());
  ::setenv("VELOXQUANT_ISA", last.c_str(), 1);
  obey_environment();
  EXPECT_EQ(instruction_set(), last);
}

}  // namespace
}  // namespace veloxquant::kernels
