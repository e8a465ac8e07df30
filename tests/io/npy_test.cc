#include "io/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "io/capture_files.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using namespace testing_files;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

NpyArray parse(const std::string& bytes) {
  return parse_npy(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.npy");
}

std::string problem(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

TEST(npy, both_formats_and_all_types_are_read) {
  for (const int major : {1, 2}) {
    const NpyArray f16 = parse(npy(npy_header("<f2", "(2, 1, 3)"), "abcdefghijkl", major));
    EXPECT_EQ(f16.type, NpyType::f16);
    EXPECT_THAT(f16.shape, ElementsAre(2, 1, 3));
    EXPECT_EQ(f16.data.size(), 12u);
    EXPECT_EQ(std::to_integer<char>(f16.data[0]), 'a');
    EXPECT_EQ(parse(npy(npy_header("<f4", "(1,)"), "abcd", major)).type, NpyType::f32);
    EXPECT_EQ(parse(npy(npy_header("<i4", "(1,)"), "abcd", major)).type, NpyType::i32);
  }
  EXPECT_THAT(parse(npy(npy_header("<f4", "()"), "abcd")).shape, IsEmpty()) << "a scalar";
  EXPECT_EQ(parse(npy(npy_header("<f4", "(0, 7)"), "")).data.size(), 0u);
}

TEST(npy, field_order_and_blanks_do_not_matter) {
  const NpyArray array = parse(npy("{ 'shape' : ( 2 , ),'fortran_order':False ,'descr':'<f2'}", "abcd"));
  EXPECT_THAT(array.shape, ElementsAre(2));
}

TEST(npy, other_types_and_orders_are_named) {
  EXPECT_EQ(problem(npy(npy_header("<f8", "(1,)"), "abcdefgh")),
            "x.npy: element type is '<f8', wanted '<f2', '<f4' or '<i4'");
  EXPECT_THAT(problem(npy(npy_header(">f4", "(1,)"), "abcd")), HasSubstr("'>f4'"));
  EXPECT_THAT(problem(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", "abcd")),
              HasSubstr("fortran_order is 'True', wanted False"));
  EXPECT_THAT(problem(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd")),
              HasSubstr("the header is damaged"));
  EXPECT_THAT(problem(npy(npy_header("<f4", "(1,)"), "abcd", 3)), HasSubstr("format 3.0, wanted 1.0 or 2.0"));
}

TEST(npy, data_of_another_size_is_refused) {
  EXPECT_EQ(problem(npy(npy_header("<f4", "(2, 3)"), "abc")), "x.npy: 3 bytes of data, wanted 24 for float32 [2, 3]");
  EXPECT_THAT(problem(npy(npy_header("<f4", "(1,)"), "abcde")), HasSubstr("5 bytes of data, wanted 4"));
}

TEST(npy, every_truncation_is_refused) {
  const std::string whole = npy(npy_header("<f2", "(2, 3)"), "abcdefghijkl");
  ASSERT_EQ(problem(whole), "");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(problem(whole.substr(0, size)), "") << size;
}

TEST(npy, hostile_headers_are_refused) {
  EXPECT_THAT(problem("not numpy at all"), HasSubstr("not a .npy file"));
  EXPECT_THAT(problem(npy(npy_header("<f4", "(4294967296, 4294967296, 4294967296)"), "")), HasSubstr("too large"));
  EXPECT_THAT(problem(npy(npy_header("<f4", "(99999999999999999999,)"), "")), HasSubstr("wanted sizes >= 0"));
  EXPECT_THAT(problem(npy(npy_header("<f4", "(-1,)"), "")), HasSubstr("wanted sizes >= 0"));
  EXPECT_THAT(problem(npy(npy_header("<f4", "(1,1,1,1,1,1,1,1,1)"), "abcd")), HasSubstr("more than 8 dimensions"));
  EXPECT_THAT(problem(npy("{'descr': '<f4'}", "")), HasSubstr("wanted descr, fortran_order and shape"));
  EXPECT_THAT(problem(npy("{'descr': '<f4", "")), HasSubstr("a text has no end"));
  EXPECT_THAT(problem(npy("{'other': 1}", "")), HasSubstr("unknown header field 'other'"));
  const std::string huge_header = std::string("\x93NUMPY\x02\0", 8) + "\xff\xff\xff\xff";
  EXPECT_THAT(problem(huge_header), HasSubstr("a header of 4294967295 bytes"));
}

RC_GTEST_PROP(npy, damaged_bytes_are_read_or_refused, ()) {
  std::string bytes = npy(npy_header("<f2", "(2, 3)"), "abcdefghijkl", *rc::gen::element(1, 2));
  const int changes = *rc::gen::inRange(1, 6);
  for (int i = 0; i < changes; ++i) bytes[*rc::gen::inRange<size_t>(0, bytes.size())] = *rc::gen::arbitrary<char>();
  try {
    const NpyArray array = parse(bytes);
    size_t elements = 1;
    for (const int64_t n : array.shape) elements *= static_cast<size_t>(n);
    RC_ASSERT(array.data.size() == elements * size_of(array.type));
  } catch (const FormatError&) {
    RC_SUCCEED("refused");
  }
}

TEST(npy, a_file_that_is_not_there_gives_the_systems_reason) {
  try {
    read_npy("/nowhere/x.npy");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "can't read /nowhere/x.npy: No such file or directory");
  }
}

}  // namespace
}  // namespace veloxquant
