#include "veloxquant/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "veloxquant/cache.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr LayerShape kShape = {.kv_heads = 2, .q_heads = 4, .dim_k = 64, .dim_v = 64, .layer = 3};

std::vector<std::string> problems_of(std::string_view text, const std::vector<std::string>& sets = {}) {
  try {
    (void)parse_method(text, sets);
  } catch (const QuantizerConfigError& error) {
    return error.problems();
  }
  return {};
}

/// Those of the method and the general ones.
std::vector<OptionSpec> all_options(const MethodDef& def) { return parse_method(def.name).options.specs(); }

/// One legal value beside the default.
std::string other_value(const OptionSpec& spec) {
  switch (spec.type) {
    case OptionType::boolean:
      return spec.def == OptionValue(true) ? "false" : "true";
    case OptionType::integer: {
      const auto smallest = static_cast<int64_t>(spec.min);
      return std::to_string(spec.def == OptionValue(smallest) ? smallest + 1 : smallest);
    }
    case OptionType::real:
      return to_string(OptionValue(spec.def == OptionValue(spec.max) ? spec.min : spec.max));
    case OptionType::choice: {
      const bool first = spec.def == OptionValue(std::string(spec.choices.front()));
      return std::string(first ? spec.choices.back() : spec.choices.front());
    }
  }
  return "";
}

std::vector<std::string> texts_out_of_range(const OptionSpec& spec) {
  std::vector<std::string> texts = {"nonsense", "", "nan", "1e999"};
  if (spec.min == -0x1p63) return {"nonsense", "", "9223372036854775808"};
  if (spec.type == OptionType::integer) {
    texts.push_back(std::to_string(static_cast<int64_t>(spec.min) - 1));
    texts.push_back(std::to_string(static_cast<int64_t>(spec.max) + 1));
  } else if (spec.type == OptionType::real) {
    texts.push_back(to_string(OptionValue(spec.min - 1)));
    texts.push_back(to_string(OptionValue(spec.max * 2 + 1)));
  }
  return texts;
}

TEST(registry, names_are_sorted_unique_and_complete) {
  std::vector<std::string_view> names;
  for (const MethodDef* def : method_table()) names.push_back(def->name);
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  for (const char* wanted : {"exact", "kivi", "turboquant_rvq"}) {
    ASSERT_NE(find_method(wanted), nullptr) << wanted;
    EXPECT_EQ(find_method(wanted)->name, wanted);
  }
  EXPECT_EQ(find_method("method_registry"), nullptr);
  EXPECT_EQ(find_method(""), nullptr);
}

TEST(registry, records_are_filled_in) {
  const std::set<std::string_view> families = {"quantization", "eviction", "hybrid", "baseline"};
  for (const MethodDef* def : method_table()) {
    EXPECT_TRUE(families.contains(def->family)) << def->name;
    EXPECT_FALSE(def->title.empty() || def->summary.empty()) << def->name;
    EXPECT_TRUE(def->build || !def->options.empty()) << def->name;
    for (const Telemetry& entry : def->telemetry) {
      EXPECT_FALSE(entry.name.empty() || entry.meaning.empty()) << def->name;
    }
  }
}

TEST(registry, every_option_has_a_meaning_a_legal_default_and_names_of_its_own) {
  for (const MethodDef* def : method_table()) {
    const MethodSpec spec = parse_method(def->name);
    std::set<std::string_view> names;
    for (const OptionSpec& option : spec.options.specs()) {
      SCOPED_TRACE(std::string(def->name) + "." + std::string(option.name));
      EXPECT_FALSE(option.meaning.empty());
      EXPECT_TRUE(names.insert(option.name).second);
      EXPECT_TRUE(option.alias.empty() || names.insert(option.alias).second);
      Options options = spec.options;
      EXPECT_EQ(options.set(option.name, option.def), std::nullopt) << "the default";
      EXPECT_EQ(options.set_text(option.name, to_string(option.def)), std::nullopt) << "the default as text";
    }
  }
}

TEST(registry, every_option_takes_another_value_by_name_and_alias) {
  for (const MethodDef* def : method_table()) {
    for (const OptionSpec& option : all_options(*def)) {
      for (const std::string_view name : {option.name, option.alias}) {
        if (name.empty()) continue;
        const std::string assignment = std::string(name) + "=" + other_value(option);
        SCOPED_TRACE(std::string(def->name) + ": " + assignment);
        const std::vector<std::string> sets = {assignment};
        EXPECT_THAT(problems_of(def->name, sets), IsEmpty());
        const MethodSpec spec = parse_method(std::string(def->name) + "(" + assignment + ")");
        EXPECT_TRUE(spec.options.explicitly_set(option.name));
        EXPECT_EQ(to_string(spec.options.value(option.name)), other_value(option));
      }
    }
  }
}

TEST(registry, out_of_range_values_are_named_with_their_range) {
  for (const MethodDef* def : method_table()) {
    for (const OptionSpec& option : all_options(*def)) {
      for (const std::string& text : texts_out_of_range(option)) {
        const std::vector<std::string> sets = {std::string(option.name) + "=" + text};
        EXPECT_THAT(problems_of(def->name, sets),
                    ElementsAre(AllOf(HasSubstr(std::string(def->name)), HasSubstr(std::string(option.name)),
                                      HasSubstr("'" + text + "'"), HasSubstr(option.range_text()))));
      }
    }
  }
}

TEST(registry, every_option_is_read_when_a_cache_is_built) {
  for (const MethodDef* def : built_methods()) {
    const MethodSpec spec = parse_method(def->name);
    const KVCache cache(spec, kShape);
    const std::vector<std::string> unread = spec.options.unread();  // of the spec; the cache reads its copy too
    for (const std::string& name : cache.method().options.unread()) {
      EXPECT_EQ(std::ranges::count(unread, name), 0) << def->name << " has an option that nobody reads: " << name;
    }
  }
}

/// Only budgets depend on other options, and numbers of channels on the head size: a value that does not fit is refused
/// under the option's name.
void expect_built_or_named(const MethodDef& def, const OptionSpec& option, const std::vector<std::string>& sets) {
  const MethodSpec spec = parse_method(def.name, sets);
  try {
    KVCache(spec, kShape);
  } catch (const QuantizerConfigError& error) {
    EXPECT_TRUE(def.chooses_rows || def.standalone) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(std::string(option.name))) << sets[0];
  }
}

TEST(registry, every_other_value_builds) {
  for (const MethodDef* def : built_methods()) {
    for (const OptionSpec& option : all_options(*def)) {
      if (option.type == OptionType::real) continue;  // an end of the range may need another option beside it
      const std::vector<std::string> sets = {std::string(option.name) + "=" + other_value(option)};
      expect_built_or_named(*def, option, sets);
    }
  }
}

TEST(registry, both_ends_of_every_integer_range_build) {
  for (const MethodDef* def : built_methods()) {
    for (const OptionSpec& option : all_options(*def)) {
      if (option.type != OptionType::integer || option.name == "seed") continue;
      for (const double end : {option.min, option.max}) {
        const std::vector<std::string> sets = {std::string(option.name) + "=" + std::to_string(std::llround(end))};
        expect_built_or_named(*def, option, sets);
      }
    }
  }
}

TEST(parse_method, blanks_are_ignored) {
  const MethodSpec spec = parse_method("  kivi ( bits = 4 ,\tgroup= 64 ) ");
  EXPECT_EQ(spec.def->name, "kivi");
  EXPECT_EQ(spec.options.integer("bits"), 4);
  EXPECT_EQ(spec.options.integer("kivi_group_size"), 64);
  EXPECT_EQ(spec.options.integer("residual_length"), 128);
}

TEST(parse_method, sets_win_over_the_text_and_the_last_set_wins) {
  const std::vector<std::string> sets = {"bits=3", " bit_width_inlier = 8"};
  EXPECT_EQ(parse_method("kivi(bits=4)", sets).options.integer("bits"), 8);
  const std::vector<std::string> bad = {"bits"};
  EXPECT_THAT(problems_of("kivi", bad), ElementsAre("expected name=value, got 'bits'"));
}

TEST(parse_method, all_problems_are_reported_at_once) {
  const std::vector<std::string> sets = {"seed=x"};
  EXPECT_THAT(
      problems_of("kivi(bits=9, grup=3, residual_length=-1)", sets),
      ElementsAre("kivi: bit_width_inlier: got '9', allowed 1..8", "kivi has no option 'grup'; did you mean 'group'?",
                  HasSubstr("kivi: residual_length: got '-1', allowed 0.."),
                  "kivi: seed: got 'x', allowed any 64-bit integer"));
}

TEST(parse_method, unknown_methods_name_the_nearest_and_all) {
  EXPECT_THAT(problems_of("kivy"), ElementsAre(AllOf(HasSubstr("unknown method 'kivy'; did you mean 'kivi'?"),
                                                     HasSubstr("exact, h2o, kivi, "))));
  EXPECT_THAT(problems_of("zzz"),
              ElementsAre(AllOf(HasSubstr("unknown method 'zzz' ("), HasSubstr("exact, h2o, kivi"))));
}

TEST(parse_method, an_option_of_another_method_names_its_owner) {
  EXPECT_THAT(problems_of("turboquant_rvq(kivi_group_size=64)"),
              ElementsAre("turboquant_rvq has no option 'kivi_group_size'; it belongs to kivi, kivi_sink"));
  EXPECT_THAT(problems_of("exact(bits=4)"),
              ElementsAre("exact has no option 'bits'; it belongs to kivi, kivi_sink, turboquant_rvq"));
  EXPECT_THAT(problems_of("kivi(zzzzzzzzzz=4)"),
              ElementsAre(HasSubstr("it has bit_width_inlier, bits, kivi_group_size")));
}

TEST(parse_method, syntax_errors_say_where) {
  EXPECT_THAT(problems_of(""), ElementsAre("expected the name of a method at character 1 of ''"));
  EXPECT_THAT(problems_of("kivi("), ElementsAre("expected the name of an option at character 6 of 'kivi('"));
  EXPECT_THAT(problems_of("kivi()"), ElementsAre("expected the name of an option at character 6 of 'kivi()'"));
  EXPECT_THAT(problems_of("kivi(bits)"), ElementsAre("expected '=' at character 10 of 'kivi(bits)'"));
  EXPECT_THAT(problems_of("kivi(bits=)"), ElementsAre("expected a value at character 11 of 'kivi(bits=)'"));
  EXPECT_THAT(problems_of("kivi(bits=4"), ElementsAre("expected ',' or ')' at character 12 of 'kivi(bits=4'"));
  EXPECT_THAT(problems_of("kivi(bits=4,)"), ElementsAre(HasSubstr("expected the name of an option at character 13")));
  EXPECT_THAT(problems_of("kivi(bits=4))"), ElementsAre("expected the end at character 13 of 'kivi(bits=4))'"));
  EXPECT_THAT(problems_of("kivi exact"), ElementsAre("expected the end at character 6 of 'kivi exact'"));
  EXPECT_THAT(problems_of("kivi(bits=(4))"), ElementsAre(HasSubstr("expected a value at character 11")));
  EXPECT_THAT(problems_of("kivi(bits=4)+"), ElementsAre(HasSubstr("expected the name of a method at character 14")));
}

TEST(parse_method, a_syntax_error_hides_no_other_problem) {
  EXPECT_THAT(problems_of("kivi(bits=9"), ElementsAre("expected ',' or ')' at character 12 of 'kivi(bits=9'",
                                                      "kivi: bit_width_inlier: got '9', allowed 1..8"));
}

TEST(parse_method, an_option_given_twice_is_a_problem) {
  EXPECT_THAT(problems_of("kivi(bits=2,bit_width_inlier=4)"), ElementsAre("kivi: bit_width_inlier is given twice"));
}

TEST(parse_method, compositions_without_a_method_that_chooses_rows_are_refused) {
  EXPECT_THAT(problems_of("kivi+exact"), ElementsAre(AllOf(HasSubstr("kivi + exact: the first part has to choose rows"),
                                                           HasSubstr("h2o, knorm, snapkv, streaming_llm, tova"))));
  EXPECT_THAT(problems_of("kivi+exact+kivi"), ElementsAre(HasSubstr("expected the end at character 11"),
                                                          HasSubstr("the first part has to choose rows")));
  EXPECT_THAT(problems_of("snapkv+h2o"), ElementsAre(HasSubstr("snapkv + h2o: the second part has to say how")));
  EXPECT_THAT(problems_of("kivy+exact"), ElementsAre(HasSubstr("unknown method 'kivy'")));
}

TEST(parse_method, hostile_texts_are_refused) {
  for (const std::string& text :
       {std::string(1 << 20, '('), std::string(1 << 20, 'k'), "kivi(" + std::string(1 << 20, 'b') + "=1)",
        "kivi(bits=" + std::string(1 << 20, '9') + ")", std::string("\xff\xfe\0kivi", 7), std::string("kivi\0", 5)}) {
    const std::vector<std::string> problems = problems_of(text);
    ASSERT_FALSE(problems.empty());
    for (const std::string& problem : problems) {
      EXPECT_LT(problem.size(), 400u);
      EXPECT_TRUE(std::ranges::all_of(problem, [](char c) { return c >= ' ' && c <= '~'; })) << problem;
    }
  }
}

RC_GTEST_PROP(parse_method, any_text_is_taken_or_refused, ()) {
  static const std::vector<std::string> kPieces = {"kivi", "exact", "bits", "group", "(",    ")",    "=",    ",",
                                                   "+",    "4",     "-1",   " ",     "none", "\xff", "seed", "x"};
  const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kPieces));
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  try {
    RC_ASSERT(parse_method(text).def != nullptr);
  } catch (const QuantizerConfigError& error) {
    RC_ASSERT(!error.problems().empty());
  }
}

std::string shape_problem(std::string_view method, const LayerShape& shape) {
  try {
    check_method(parse_method(method), shape);
  } catch (const QuantizerConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(check_method, problems_name_layer_and_method) {
  LayerShape shape = kShape;
  EXPECT_EQ(shape_problem("kivi", shape), "");
  shape.q_heads = 3;
  EXPECT_EQ(shape_problem("kivi", shape), "layer 3: kivi: q_heads: got 3, allowed multiples of 2 (kv_heads)");
  shape.dim_v = 0;
  shape.kv_heads = -1;
  EXPECT_THAT(shape_problem("kivi", shape), AllOf(HasSubstr("kv_heads: got -1"), HasSubstr("dim_v: got 0")));
}

TEST(check_method, a_residual_scale_needs_the_laplace_table) {
  EXPECT_EQ(shape_problem("turboquant_rvq(residual_scale=0.1)", kShape), "");
  EXPECT_EQ(shape_problem("turboquant_rvq(residual_scale=0.1,residual_codebook=laplace)", kShape), "");
  EXPECT_THAT(shape_problem("turboquant_rvq(residual_scale=0.1,residual_codebook=joint)", kShape),
              HasSubstr("residual_scale"));
}

TEST(recipes, codecs_have_the_bytes_of_the_specification) {
  const auto recipe = [](std::string_view text) {
    const MethodSpec spec = parse_method(text);
    return build_recipe(spec, {.shape = {.dim_k = 128, .dim_v = 128}, .store = DType::f16, .seed = 1});
  };
  EXPECT_EQ(recipe("exact").key->bytes(1), 256u);
  const Recipe kivi = recipe("kivi");
  EXPECT_EQ(kivi.key->format().unit_rows, 32);
  EXPECT_EQ(kivi.key->bytes(32), 32u * 48u);
  EXPECT_EQ(kivi.value->bytes(1), 48u);
  EXPECT_EQ(kivi.placement->frontier(Side::key, 255), 128);
  EXPECT_EQ(kivi.placement->frontier(Side::value, 255), 127);
  EXPECT_EQ(recipe("kivi(residual=1)").placement->frontier(Side::key, 33), 32) << "R' is a whole group";
  EXPECT_EQ(recipe("kivi(residual=100,flush_rule=aligned_window)").placement->frontier(Side::key, 200), 64);
  for (int bits = 1; bits <= 4; ++bits) {
    const std::string text = "turboquant_rvq(bits=" + std::to_string(bits) + ",value_codec=";
    const auto stream_bytes = static_cast<size_t>(16 * bits);
    EXPECT_EQ(recipe(text + "exact)").key->bytes(1), 2 * stream_bytes + 2);
    EXPECT_EQ(recipe(text + "exact)").value->bytes(1), 256u);
    EXPECT_EQ(recipe(text + "int8)").value->bytes(1), 130u);
    EXPECT_EQ(recipe(text + "turboquant_mse)").value->bytes(1), stream_bytes + 2);
  }
}

TEST(telemetry, an_empty_kivi_cache_compresses_by_one) {
  for (const Telemetry& entry : find_method("kivi")->telemetry) {
    if (entry.name == "effective_compression_ratio") {
      EXPECT_EQ(entry.value(CacheStats{}), 1.0);
    } else if (entry.name == "effective_avg_bits") {
      EXPECT_EQ(entry.value(CacheStats{}), 16.0);
    }
  }
}

}  // namespace
}  // namespace veloxquant
