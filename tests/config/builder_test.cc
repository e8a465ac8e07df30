#include "veloxquant/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::string> problems_of(const KVCacheConfig& config) {
  try {
    (void)KVCacheFactory::create(config);
  } catch (const QuantizerConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(builder, the_example_of_the_original_system_builds) {
  const AnyCache cache = KVCacheBuilder()
                             .with_method("turboquant_prod")
                             .with_head_dim(128)
                             .with_bit_width(2, 3)
                             .with_jl_dim(128)
                             .with_seed(42)
                             .build();
  EXPECT_TRUE(std::holds_alternative<VectorCache>(cache));
}

TEST(builder, every_call_sets_its_field) {
  KVCacheBuilder builder;
  builder.with_method("turboquant_mse")
      .with_head_dim(64)
      .with_bit_width(3, 4)
      .with_jl_dim(32)
      .with_n_outlier_channels(8)
      .with_n_calib_tokens(50)
      .with_vectorized_attend(false)
      .with_outlier_two_stream()
      .with_fused_query_dot()
      .with_seed(7)
      .with_precision(DType::bf16)
      .with_capacity(1000)
      .with_sliding_window(100);
  const KVCacheConfig wanted{.method = "turboquant_mse",
                             .head_dim = 64,
                             .bit_width_inlier = 3,
                             .bit_width_outlier = 4,
                             .jl_dim = 32,
                             .n_outlier_channels = 8,
                             .n_calib_tokens = 50,
                             .enable_vectorized_attend = false,
                             .enable_outlier_two_stream = true,
                             .enable_fused_query_dot = true,
                             .seed = 7,
                             .dtype = "bf16",
                             .capacity = 1000,
                             .sliding_window = 100};
  EXPECT_EQ(builder.config(), wanted);
  EXPECT_THAT(builder.problems(), IsEmpty());
  EXPECT_TRUE(std::holds_alternative<SlidingWindowKVCache>(builder.build()));
  KVCacheBuilder with_struct;
  with_struct.with_method("h2o").with_options(H2OOptions{.h2o_budget = 100});
  EXPECT_TRUE(std::holds_alternative<LayerCache>(with_struct.build()));
}

TEST(builder, each_rule_has_its_error) {
  const auto only = [](const KVCacheBuilder& builder) {
    const std::vector<std::string> problems = builder.problems();
    EXPECT_THAT(problems, SizeIs(1)) << testing::PrintToString(problems);
    EXPECT_THROW(builder.build(), QuantizerConfigError);
    return problems.empty() ? std::string() : problems.front();
  };
  const auto method = [](std::string name) { return KVCacheBuilder().with_method(std::move(name)); };
  EXPECT_THAT(only(method("turboqant_mse")), HasSubstr("did you mean 'turboquant_mse'"));
  for (int64_t dim : {1, 3, 80, 96}) EXPECT_THAT(only(method("qjl").with_head_dim(dim)), HasSubstr("powers of two"));
  EXPECT_THAT(only(method("kivi").with_bit_width(0)), AllOf(HasSubstr("bit_width_inlier"), HasSubstr("1..8")));
  EXPECT_THAT(only(method("kivi").with_bit_width(9)), AllOf(HasSubstr("bit_width_inlier"), HasSubstr("1..8")));
  EXPECT_THAT(only(method("kivi").with_bit_width(IntegerList{})), HasSubstr("bit_width_inlier"));
  EXPECT_THAT(only(method("kivi").with_bit_width(IntegerList{2, 0})), HasSubstr("bit_width_inlier"));
  EXPECT_THAT(method("kivi").with_bit_width(IntegerList{2, 4}).problems(), Contains(HasSubstr("for_model")));
  EXPECT_THAT(only(method("turboquant_prod").with_jl_dim(0)), HasSubstr("jl_dim"));
  EXPECT_THAT(only(method("turboquant_mse").with_jl_dim(129)), AllOf(HasSubstr("jl_dim"), HasSubstr("128")));
  EXPECT_THAT(only(method("kivi").with_jl_dim(129)), AllOf(HasSubstr("jl_dim"), HasSubstr("1..128")));
  EXPECT_THAT(method("qjl").with_jl_dim(16 * 128).problems(), IsEmpty());
  EXPECT_THAT(method("qjl").with_jl_dim(16 * 128 + 1).problems(), testing::Not(IsEmpty()));
  EXPECT_THAT(only(method("kivi").with_n_outlier_channels(-1)), HasSubstr("n_outlier_channels"));
  EXPECT_THAT(method("turboquant_mse").with_n_outlier_channels(128).problems(),
              Contains(AllOf(HasSubstr("n_outlier_channels"), HasSubstr("127"))));
  EXPECT_THAT(only(method("kivi").with_n_calib_tokens(0)), HasSubstr("n_calib_tokens"));
  EXPECT_THAT(only(method("kivi").with_capacity(0)), HasSubstr("capacity"));
  EXPECT_THAT(only(method("qjl").with_sliding_window(0)), HasSubstr("sliding_window"));
  EXPECT_THAT(only(method("kivi").with_sliding_window(5)), AllOf(HasSubstr("sliding_window"), HasSubstr("qjl")));
  EXPECT_THAT(only(method("kivi").with_artifact_store(nullptr)), HasSubstr("store: got null"));
  EXPECT_THAT(method("kivi").with_observer(nullptr).problems(), Contains(HasSubstr("observers: got null")));
  EXPECT_THAT(only(method("gear")), HasSubstr("gear can be configured but not built yet"));
}

TEST(builder, several_problems_come_in_one_error) {
  const auto problems = KVCacheBuilder()
                            .with_method("qjl")
                            .with_head_dim(96)
                            .with_jl_dim(0)
                            .with_n_calib_tokens(-3)
                            .with_capacity(0)
                            .problems();
  EXPECT_THAT(problems, SizeIs(4));
}

TEST(factory, other_head_sizes_are_for_the_factory) {
  for (int64_t dim : {64, 80, 96, 112, 128, 192, 256}) {
    EXPECT_THAT(problems_of({.method = "turboquant_rvq", .head_dim = dim}), IsEmpty());
    EXPECT_THAT(problems_of({.method = "qjl", .head_dim = dim}), IsEmpty());
  }
}

TEST(factory, every_method_is_built_or_says_which_can_be) {
  for (const MethodDef* def : method_table()) {
    const std::vector<std::string> problems = problems_of({.method = std::string(def->name)});
    if (def->build) {
      EXPECT_THAT(problems, IsEmpty()) << def->name;
    } else {
      EXPECT_THAT(problems, ElementsAre(AllOf(HasSubstr(std::string(def->name)), HasSubstr("not built yet"),
                                              HasSubstr("turboquant_rvq"))))
          << def->name;
    }
  }
}

TEST(factory, standalone_methods_are_the_five_of_the_original) {
  EXPECT_THAT(standalone_methods(), ElementsAre("polar", "qjl", "spectral", "turboquant_mse", "turboquant_prod"));
  EXPECT_TRUE(is_standalone("qjl"));
  EXPECT_FALSE(is_standalone("kivi"));
}

}  // namespace
}  // namespace veloxquant
