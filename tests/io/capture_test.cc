#include "io/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/capture_files.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using namespace testing_files;
using testing::HasSubstr;

std::string problem(const TemporaryFolder& folder) {
  try {
    read_capture(folder.path());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(capture, a_folder_is_read_with_its_shapes) {
  const TemporaryFolder folder;
  write_capture(folder, {.tokens = 5, .q_heads = 4, .kv_heads = 2, .dim = 3, .layers = {0, 12}});
  const std::vector<CapturedLayer> layers = read_capture(folder.path());
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[1].shape.layer, 12);
  EXPECT_EQ(layers[1].shape.q_heads, 4);
  EXPECT_EQ(layers[1].shape.kv_heads, 2);
  EXPECT_EQ(layers[1].shape.dim_k, 3);
  EXPECT_EQ(layers[1].shape.input, DType::f16);
  EXPECT_EQ(layers[1].scale, 0.25f);
  EXPECT_EQ(layers[1].q.size(), 5u * 4 * 3);
  const Tensor k = layers[1].rows(Side::key, {2, 4});
  EXPECT_EQ(k.tokens, 2);
  EXPECT_EQ(static_cast<const std::byte*>(k.data) - layers[1].k_raw.data(), 2 * 2 * 3 * 2);
  EXPECT_EQ(f32_from_f16(*static_cast<const uint16_t*>(k.data)), layers[1].k[2 * 2 * 3]);
}

TEST(capture, what_is_wrong_with_meta_json_is_named) {
  const TemporaryFolder folder;
  EXPECT_THAT(problem(folder), HasSubstr("meta.json: No such file"));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "not valid JSON at byte 2"},
      {"[]", "found array, wanted an object"},
      {"{}", "tokens is missing"},
      {R"({"tokens": "5"})", "tokens is of type string, wanted a number"},
      {R"({"tokens": 0})", "tokens is 0, wanted 1..1048576"},
      {R"({"tokens": 1e99})", "tokens is 1e+99"},
      {R"({"tokens": 5.5, "layers": []})", "tokens is 5.5, wanted an integer"},
      {R"({"tokens": 5, "layers": []})", "layers is missing or empty"},
      {R"({"tokens": 5, "layers": [7]})", "layers[0]: found number, wanted an object"},
      {R"({"tokens": 5, "layers": [{"layer": 0}]})", "layers[0]: n_head is missing"},
      {R"({"tokens": 5, "layers": [{"layer": 0, "n_head": 3, "n_head_kv": 2, "head_dim": 4}]})",
       "n_head is 3, wanted a multiple of n_head_kv = 2"},
      {R"({"tokens": 5, "layers": [{"layer": 0, "n_head": 2, "n_head_kv": 2, "head_dim": 4, "scale": 0}]})",
       "scale is 0, wanted 1e-06..1000000"},
      {R"({"tokens": 5, "layers": [{"layer": 0, "n_head": 2, "n_head_kv": 2, "head_dim": 4, "scale": 1,
           "max_bias": 8}]})",
       "max_bias is 8, wanted 0..0"},
      {std::string(1 << 19, '['), "not valid JSON"},
  };
  for (const auto& [meta, expected] : cases) {
    write_text(folder.file("meta.json"), meta);
    EXPECT_THAT(problem(folder), HasSubstr(expected));
  }
}

TEST(capture, what_is_wrong_with_a_tensor_is_named) {
  const TemporaryFolder folder;
  write_capture(folder, {.tokens = 5, .q_heads = 2, .kv_heads = 1, .dim = 3, .layers = {0}});
  const std::string k = folder.file("layer00_k.npy");
  write_text(k, tensor_file(5, 2, 3, 1));
  EXPECT_THAT(problem(folder), HasSubstr("layer00_k.npy: shape is [5, 2, 3], wanted [5, 1, 3]"));
  write_text(k, npy(npy_header("<i4", "(5, 1, 3)"), std::string(60, '\0')));
  EXPECT_THAT(problem(folder), HasSubstr("element type is int32, wanted float16 or float32"));
  write_text(k, npy(npy_header("<f4", "(5, 1, 3)"), std::string(60, '\0')));
  EXPECT_THAT(problem(folder), HasSubstr("layer00_v.npy: element type is float16, wanted float32 as in"));
  std::string data = f16_data(15, 1);
  data[2 * 7 + 1] = '\x7e';  // NaN
  write_text(k, npy(npy_header("<f2", "(5, 1, 3)"), data));
  EXPECT_THAT(problem(folder), HasSubstr("layer00_k.npy: nan at token 2, head 0, channel 1; wanted finite numbers"));
  std::filesystem::remove(k);
  EXPECT_THAT(problem(folder), HasSubstr("layer00_k.npy: No such file"));
}

}  // namespace
}  // namespace veloxquant
