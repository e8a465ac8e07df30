// The recipes of the caches of single vectors: their bytes, their options and what they build.
#include <gtest/gtest.h>

#include "codec_util.h"
#include "veloxquant/errors.h"
#include "veloxquant/registry.h"

namespace veloxquant::test {
namespace {

constexpr const char* kMethods[] = {"turboquant_mse", "turboquant_prod", "qjl"};

LayerShape shape_of(int dim) {
  LayerShape shape;
  shape.dim_k = shape.dim_v = dim;
  return shape;
}

Recipe recipe(const std::string& text, int dim = 128) {
  const MethodSpec spec = parse_method(text);
  check_method(spec, shape_of(dim));
  return build_recipe(spec, {shape_of(dim), DType::f16, 42});
}

size_t token_bytes(const std::string& text, int dim = 128) {
  const Recipe r = recipe(text, dim);
  return r.key->bytes(1) + r.value->bytes(1);
}

TEST(VectorMethods, bytes_are_the_formulas) {
  EXPECT_EQ(token_bytes("turboquant_mse"), 164u);
  EXPECT_EQ(token_bytes("turboquant_mse(bits=1)"), 18u + 130);
  EXPECT_EQ(token_bytes("turboquant_mse(bits=4)"), 66u + 130);
  EXPECT_EQ(token_bytes("turboquant_mse(bits=8)"), 130u + 130);
  EXPECT_EQ(token_bytes("turboquant_mse(value_codec=turboquant)"), 68u);
  EXPECT_EQ(token_bytes("turboquant_mse(two_stream=true,outliers=32,outlier_bits=3)"), 12u + 24 + 4 + 130);
  EXPECT_EQ(token_bytes("turboquant_mse(two_stream=true,outliers=5)", 13), 2u + 2 + 4 + 15);
  EXPECT_EQ(token_bytes("turboquant_prod"), 166u);
  EXPECT_EQ(token_bytes("turboquant_prod(bits=1)"), 20u + 130);
  EXPECT_EQ(token_bytes("turboquant_prod(m=64)"), 16u + 8 + 4 + 130);
  EXPECT_EQ(token_bytes("turboquant_prod(two_stream=true,outliers=32,outlier_bits=3)"), 44u + 130);
  EXPECT_EQ(token_bytes("qjl"), 148u);
  EXPECT_EQ(token_bytes("qjl(m=512)"), 196u);
  EXPECT_EQ(token_bytes("qjl(two_stream=true,outliers=8)"), 148u + 128 / 8 + 2);
  EXPECT_EQ(token_bytes("qjl(two_stream=true,outliers=2)"), 148u + 64 / 8 + 2);
}

TEST(VectorMethods, without_outliers_two_streams_are_one) {  // turboquant_mse acceptance 5
  const Rows k = gaussian_rows(64, 128, 1);
  for (const std::string method : kMethods) {
    const Recipe plain = recipe(method);
    const auto bytes = encode_blocks(*plain.key, k);
    for (const char* options : {"(two_stream=true)", "(two_stream=true,outliers=0)", "(outliers=8)"}) {
      const Recipe other = recipe(method + options);
      EXPECT_EQ(other.key->fit_rows(), 0);
      EXPECT_EQ(other.placement->name(), "direct");
      EXPECT_EQ(encode_blocks(*other.key, k), bytes) << method << options;
    }
  }
}

TEST(VectorMethods, keys_wait_until_there_are_enough_to_choose_channels) {
  for (const std::string method : kMethods) {
    const Recipe r = recipe(method + "(two_stream=true,outliers=8,calibration=50)");
    EXPECT_EQ(r.key->fit_rows(), 50);
    for (int rows : {0, 1, 49}) {
      EXPECT_EQ(r.placement->frontier(Side::key, rows), 0);
      EXPECT_EQ(r.placement->frontier(Side::value, rows), rows);
    }
    for (int rows : {50, 51, 1000}) EXPECT_EQ(r.placement->frontier(Side::key, rows), rows);
    EXPECT_EQ(recipe(method + "(two_stream=true,outliers=8)").key->fit_rows(), 200);
  }
}

TEST(VectorMethods, codecs_of_a_layer_share_no_random_numbers) {
  // The same rows as keys, as outlier channels and as values.
  const Rows x = gaussian_rows(64, 64, 2);
  const Recipe r = recipe("turboquant_mse(value_codec=turboquant)", 64);
  EXPECT_EQ(r.key->name(), r.value->name());
  EXPECT_NE(encode_blocks(*r.key, x), encode_blocks(*r.value, x));
}

TEST(VectorMethods, what_they_are) {
  for (const std::string method : kMethods) {
    const MethodDef* def = find_method(method);
    ASSERT_NE(def, nullptr);
    EXPECT_TRUE(def->standalone);
    EXPECT_EQ(def->cache_class, method == "qjl" ? "QJLKVCache" : "TurboQuantKVCache");
  }
}

TEST(VectorMethods, options_that_do_not_fit_the_head_are_named) {
  const auto problems = [](const std::string& text) { return method_problems(parse_method(text), shape_of(64)); };
  for (const std::string method : kMethods) {
    EXPECT_TRUE(problems(method + "(outliers=63)").empty());
    ASSERT_EQ(problems(method + "(outliers=64)").size(), 1u);
    EXPECT_NE(problems(method + "(outliers=64)")[0].find("n_outlier_channels: got 64, allowed up to 63"),
              std::string::npos);
    EXPECT_THROW(parse_method(method + "(calibration=0)"), QuantizerConfigError);
    EXPECT_THROW(parse_method(method + "(m=0)"), QuantizerConfigError);
  }
  for (const char* method : {"turboquant_mse", "turboquant_prod"}) {
    EXPECT_TRUE(problems(std::string(method) + "(m=64)").empty());
    EXPECT_EQ(problems(std::string(method) + "(m=65)").size(), 1u);
    EXPECT_THROW(parse_method(std::string(method) + "(bits=9)"), QuantizerConfigError);
    EXPECT_THROW(parse_method(std::string(method) + "(outlier_bits=0)"), QuantizerConfigError);
  }
  EXPECT_TRUE(problems("qjl(m=1024)").empty());
  EXPECT_EQ(problems("qjl(m=1025)").size(), 1u);
}

TEST(VectorMethods, kernel_options_change_nothing) {
  const Rows k = gaussian_rows(10, 64, 3);
  for (const std::string method : {"turboquant_mse", "turboquant_prod"}) {
    EXPECT_EQ(
        encode_blocks(*recipe(method + "(enable_vectorized_attend=false,enable_fused_query_dot=true)", 64).key, k),
        encode_blocks(*recipe(method, 64).key, k));
  }
}

}  // namespace
}  // namespace veloxquant::test
