#include "veloxquant/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "config/seed_signature.h"
#include "veloxquant/errors.h"
#include "veloxquant/layer_cache.h"

namespace veloxquant {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::string> problems_of_json(std::string_view text) {
  try {
    (void)config_from_json(text);
  } catch (const QuantizerConfigError& error) {
    return error.problems();
  }
  return {};
}

/// A default as Python writes it.
std::string python(const OptionValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return "None";
  if (const bool* b = std::get_if<bool>(&value)) return *b ? "True" : "False";
  if (const std::string* s = std::get_if<std::string>(&value)) return "'" + *s + "'";
  if (const IntegerList* list = std::get_if<IntegerList>(&value)) {
    std::string text = "(";
    for (int64_t i : *list) text += (text.size() > 1 ? "," : "") + std::to_string(i);
    return text + ")";
  }
  if (const double* x = std::get_if<double>(&value)) {
    const std::string text = to_string(value);
    return *x == static_cast<int64_t>(*x) ? text + ".0" : text;
  }
  return to_string(value);
}

TEST(config, fields_order_and_defaults_are_those_of_the_original_signature) {
  const auto text = testing_config::seed_text();
  if (!text) GTEST_SKIP() << "the API reference of the original system is not there";
  const std::vector<testing_config::SeedField> seed = testing_config::seed_fields(*text);
  ASSERT_EQ(seed.size(), 225u);
  std::vector<std::string> members;
  const KVCacheConfig defaults;
  KVCacheConfig::for_each_field(defaults, [&](std::string_view name, const auto&) { members.emplace_back(name); });
  ASSERT_EQ(members.size(), seed.size());
  ASSERT_EQ(flat_fields().size(), seed.size());
  for (size_t i = 0; i < seed.size(); ++i) {
    EXPECT_EQ(members[i], seed[i].name);
    EXPECT_EQ(flat_fields()[i].name, seed[i].name);
    if (flat_fields()[i].spec == nullptr) {
      EXPECT_THAT(seed[i].def, testing::AnyOf("None", "<factory>")) << seed[i].name;
      continue;
    }
    EXPECT_EQ(python(flat_fields()[i].spec->def), seed[i].def) << seed[i].name;
    EXPECT_EQ(python(KVCacheConfig{}.get(seed[i].name)), seed[i].def) << seed[i].name;
  }
}

TEST(config, methods_that_share_a_field_agree_on_its_default) {
  for (const MethodDef* def : method_table()) {
    for (const OptionSpec& row : def->options) {
      const FlatField* field = find_field(row.name);
      if (field == nullptr) continue;
      EXPECT_EQ(row.def, field->spec->def) << def->name << "." << row.name;
      EXPECT_EQ(row.type, field->spec->type) << def->name << "." << row.name;
    }
  }
}

TEST(config, there_are_37_structs_and_their_members_hold_the_defaults) {
  EXPECT_EQ(std::variant_size_v<MethodOptions>, 37u);
  EXPECT_EQ(options_structs().size(), 37u);
  EXPECT_EQ(H2OOptions{}.h2o_budget, 512);
  EXPECT_EQ(H2OOptions{}.h2o_decay, 0.98);
  EXPECT_EQ(KVTCOptions{}.kvtc_bit_choices, (IntegerList{0, 1, 2, 3, 4, 6, 8}));
  EXPECT_EQ(QFiltersOptions{}.qfilters_min_retention, 0.9);
  EXPECT_EQ(RocketKVOptions{}.rocketkv_page_size, std::nullopt);
  const auto members = [](std::string_view name) {
    std::vector<std::string> found;
    for (const OptionsStruct& group : options_structs()) {
      if (group.name != name) continue;
      for (const FlatField* field : group.fields) found.emplace_back(field->name);
    }
    return found;
  };
  EXPECT_THAT(members("KIVIOptions"), ElementsAre("residual_length", "kivi_group_size", "n_sink_tokens"));
  EXPECT_THAT(members("VecInferOptions"), ElementsAre("key_sub_dim", "value_sub_dim", "key_codebook_bits",
                                                      "value_codebook_bits", "residual_length"));
  EXPECT_THAT(members("KittyOptions"),
              ElementsAre("kitty_hi_fraction", "kitty_hi_bit", "kitty_lo_bit", "kitty_group_size"));
}

TEST(config, a_field_knows_whether_it_was_set) {
  KVCacheConfig config{.method = "h2o", .h2o_budget = 512};
  EXPECT_TRUE(config.h2o_budget.explicitly_set());
  EXPECT_FALSE(config.h2o_decay.explicitly_set());
  EXPECT_EQ(config.origin("h2o_budget"), KVCacheConfig::Origin::flat);
  EXPECT_EQ(config.origin("h2o_decay"), KVCacheConfig::Origin::defaulted);
  config.h2o_decay = 0.5;
  EXPECT_EQ(config.h2o_decay, 0.5);
  EXPECT_EQ(method_spec(config).options.real("h2o_decay"), 0.5);
  EXPECT_NE(config, KVCacheConfig{.method = "h2o"});
}

// Flat or not, struct or not, the struct's value equal to the default or not.
TEST(config, a_flat_field_wins_over_the_struct_and_the_struct_over_the_default) {
  for (bool flat : {false, true}) {
    for (bool structed : {false, true}) {
      for (int64_t inside : {512, 300}) {
        KVCacheConfig config{.method = "h2o"};
        if (structed) config.options = H2OOptions{.h2o_budget = inside};
        if (flat) config.h2o_budget = 200;
        const int64_t wanted = flat ? 200 : structed ? inside : 512;
        EXPECT_EQ(method_spec(config).options.integer64("h2o_budget"), wanted);
        EXPECT_EQ(config.get("h2o_budget"), OptionValue(wanted));
      }
    }
  }
  // Even where it is set to its default (#662), with one warning.
  KVCacheConfig config{.method = "h2o", .h2o_budget = 512};
  config.options = H2OOptions{.h2o_budget = 300};
  EXPECT_EQ(method_spec(config).options.integer("h2o_budget"), 512);
  EXPECT_THAT(config.notes(), ElementsAre("h2o_budget: 512 is taken and not 300 of H2OOptions"));
}

TEST(config, the_struct_of_another_method_is_refused) {
  KVCacheConfig config{.method = "h2o"};
  config.options = SnapKVOptions{};
  EXPECT_THAT(config.problems(), ElementsAre("options: got SnapKVOptions, allowed H2OOptions for h2o"));
  config.method = "turboquant_rvq";
  EXPECT_THAT(config.problems(), ElementsAre("options: got SnapKVOptions, allowed none for turboquant_rvq"));
}

TEST(config, several_problems_come_in_one_error) {
  KVCacheConfig config{.method = "h2o", .head_dim = 0, .seed = 1, .h2o_budget = -1, .h2o_decay = 0.0, .nsn_bits = 3};
  EXPECT_THAT(config.problems(), UnorderedElementsAre("head_dim: got '0', allowed 1..65536",
                                                      HasSubstr("h2o_budget: got '-1', allowed 0.."),
                                                      HasSubstr("h2o_decay: got '0', allowed above 0, up to 1"),
                                                      HasSubstr("nsn_bits: got '3', allowed 1..2")));
  EXPECT_THROW(method_spec(config), QuantizerConfigError);
  // A method's own range is narrower than the field's.
  EXPECT_THAT((KVCacheConfig{.bit_width_inlier = 8}).problems(),
              ElementsAre("turboquant_rvq: bit_width_inlier: got '8', allowed 1..4"));
  EXPECT_THAT((KVCacheConfig{.method = "h2p"}).problems(),
              ElementsAre(HasSubstr("method: unknown method 'h2p'; did you mean 'h2o'?")));
  EXPECT_THAT((KVCacheConfig{.method = "h2o", .h2o_budget = 10}).problems(),
              ElementsAre(AllOf(HasSubstr("h2o_budget"), HasSubstr("10"))));
}

TEST(config, numbers_that_are_none_are_out_of_every_range) {
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1e300}) {
    for (const FlatField& field : flat_fields()) {
      if (field.spec == nullptr || field.spec->type != OptionType::real) continue;
      EXPECT_THROW(KVCacheConfig().set(field.name, bad), QuantizerConfigError) << field.name << " " << bad;
    }
  }
}

// A value below and one above the range that the schema states.
TEST(config, every_number_is_checked_at_both_ends_whatever_the_method) {
  for (const FlatField& field : flat_fields()) {
    if (field.spec == nullptr || field.name == "seed") continue;
    const OptionSpec& spec = *field.spec;
    std::vector<OptionValue> bad;
    if (spec.type == OptionType::integer && spec.max < 0x1p63 && spec.min > -0x1p63) {
      bad = {static_cast<int64_t>(spec.min) - 1, static_cast<int64_t>(spec.max) + 1};
    } else if (spec.type == OptionType::real) {
      bad = {spec.min_excluded ? spec.min : spec.min - 1, spec.max * 2 + 1};
    } else if (spec.type == OptionType::integers) {
      bad = {IntegerList{}, IntegerList{static_cast<int64_t>(spec.max) + 1}, IntegerList{-1}};
    } else if (spec.type == OptionType::choice) {
      bad = {std::string("something else")};
    }
    if (spec.type != OptionType::text) bad.push_back(spec.type == OptionType::boolean ? OptionValue(int64_t{1}) : true);
    if (!spec.nullable()) bad.emplace_back();
    for (const OptionValue& value : bad) {
      try {
        KVCacheConfig().set(field.name, value);
        ADD_FAILURE() << field.name << " took " << to_string(value);
      } catch (const QuantizerConfigError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr(std::string(field.name)), HasSubstr(spec.range_text())));
      }
    }
  }
}

TEST(config, unknown_names_are_errors_everywhere_and_the_nearest_is_named) {
  EXPECT_THAT(problems_of_json(R"({"h2o_buget": 4})"),
              ElementsAre("unknown field 'h2o_buget'; did you mean 'h2o_budget'?"));
  KVCacheConfig config;
  EXPECT_THROW(config.set("h2o_buget", int64_t{4}), QuantizerConfigError);
  EXPECT_THROW(config.get("h2o_buget"), QuantizerConfigError);
  config.extensions["flush_rul"] = std::string("aligned_window");
  EXPECT_THAT(config.problems(), ElementsAre("unknown field 'flush_rul'; did you mean 'flush_rule'?"));
}

TEST(config, options_of_another_method_are_notes) {
  KVCacheConfig config{.method = "kivi", .h2o_budget = 100};
  config.set("snap_kernel", int64_t{7});
  EXPECT_THAT(config.problems(), IsEmpty());
  EXPECT_THAT(config.notes(), UnorderedElementsAre("h2o_budget: has no effect with kivi; it belongs to h2o",
                                                   "snap_kernel: has no effect with kivi; it belongs to snapkv"));
  EXPECT_THAT(config.describe(), AllOf(HasSubstr("kivi\n"), HasSubstr("h2o_budget: has no effect")));
}

TEST(config, extensions_reach_the_method) {
  KVCacheConfig config{.method = "kivi"};
  config.set("flush_rule", std::string("aligned_window"));
  EXPECT_EQ(config.origin("flush_rule"), KVCacheConfig::Origin::extension);
  EXPECT_EQ(method_spec(config).options.choice("flush_rule"), "aligned_window");
  EXPECT_EQ(config.describe(), "kivi(flush_rule=aligned_window)");
}

TEST(config, a_list_of_bits_needs_a_whole_model) {
  const KVCacheConfig config{.method = "kivi", .bit_width_inlier = IntegerList{2, 4}};
  EXPECT_THAT(config.problems(),
              ElementsAre("bit_width_inlier: got 2 numbers, allowed one; use for_model, which has a layer for each"));
  EXPECT_THAT((KVCacheConfig{.method = "kivi", .bit_width_inlier = IntegerList{}}).problems(), testing::Not(IsEmpty()));
}

// --- JSON ----------------------------------------------------------------------------------------

KVCacheConfig filled() {
  KVCacheConfig config{.method = "h2o", .seed = -7, .dtype = "bf16", .h2o_budget = 512, .kvtc_bit_choices = {}};
  config.kvtc_bit_choices = IntegerList{0, 2, 8};
  config.smooth_factors = ArrayValue{{2, 3}, {1, 2, 3, 4, 5, 6.5f}};
  config.a2ats_rope_scaling = MapValue{{"type", std::string("llama3")}, {"factor", 8.0}};
  config.qfilters_min_retention = std::nullopt;
  config.options = H2OOptions{.h2o_grace = 3};
  config.extensions["query_source"] = std::string("proxy");
  return config;
}

TEST(config_json, a_round_trip_keeps_values_and_what_was_set) {
  for (const KVCacheConfig& config :
       {KVCacheConfig{}, filled(), KVCacheConfig{.method = "kivi", .fused_sdpa = std::nullopt}}) {
    const std::string text = to_json(config);
    const KVCacheConfig back = config_from_json(text);
    EXPECT_EQ(back, config) << text;
    EXPECT_EQ(to_json(back), text);
    EXPECT_EQ(std::hash<KVCacheConfig>()(back), std::hash<KVCacheConfig>()(config));
  }
  EXPECT_EQ(to_json(KVCacheConfig{}), "{}");
}

TEST(config_json, every_field_survives) {
  for (const FlatField& field : flat_fields()) {
    if (field.spec == nullptr || field.name == "method") continue;
    KVCacheConfig config;
    config.set(field.name, field.spec->def);
    const KVCacheConfig back = config_from_json(to_json(config));
    EXPECT_EQ(back, config) << field.name;
    EXPECT_EQ(back.origin(field.name), KVCacheConfig::Origin::flat) << field.name;
  }
}

TEST(config_json, all_problems_of_a_file_are_reported_at_once) {
  EXPECT_THAT(problems_of_json(R"({"method": "h2o", "h2o_budget": "many", "seed": 1e30, "tova_nsink": 1,
                                   "h2o_decay": null, "key_codebook": [[1, 2], [3]], "options": {"h2o_grce": 1}})"),
              UnorderedElementsAre(AllOf(HasSubstr("h2o_budget: got"), HasSubstr("many"), HasSubstr("allowed 0..")),
                                   AllOf(HasSubstr("seed: got"), HasSubstr("any 64-bit integer")),
                                   HasSubstr("unknown field 'tova_nsink'; did you mean 'tova_n_sink'?"),
                                   AllOf(HasSubstr("h2o_decay: got"), HasSubstr("null")),
                                   AllOf(HasSubstr("key_codebook: got"), HasSubstr("an array of finite numbers")),
                                   HasSubstr("options: H2OOptions has no field 'h2o_grce'")));
}

TEST(config_json, rules_of_the_method_are_said_beside_problems_of_the_text) {
  EXPECT_THAT(problems_of_json(R"({"method": "h2p", "seeed": 1})"),
              UnorderedElementsAre(HasSubstr("unknown field 'seeed'; did you mean 'seed'?"),
                                   HasSubstr("unknown method 'h2p'; did you mean 'h2o'?")));
  EXPECT_THAT(problems_of_json(R"({"method": "h2o", "h2o_budget": 10, "seeed": 1})"),
              UnorderedElementsAre(HasSubstr("'seeed'"), HasSubstr("h2o_budget: got 10, allowed more than")));
}

TEST(config_json, what_is_no_configuration_is_refused_with_a_reason) {
  const std::string deep(100, '[');
  for (const std::string& text : {std::string(),
                                  std::string("{"),
                                  std::string("[]"),
                                  std::string("3"),
                                  std::string("{\"seed\": 1e999}"),
                                  std::string("{\"seed\": 18446744073709551615}"),
                                  std::string("{\"seed\": 99999999999999999999999}"),
                                  std::string("{\"method\": \"\xff\"}"),
                                  std::string("{\"\xc3\": 1}"),
                                  "{\"key_codebook\": " + deep,
                                  std::string("{\"method\": 7}"),
                                  std::string("{\"method\": \"none\"}"),
                                  std::string("{\"seed\": 1, \"seed\": 2}"),
                                  std::string("{\"observers\": []}"),
                                  std::string("{\"store\": null}"),
                                  std::string("{\"options\": {}}"),
                                  std::string("{\"head_dim\": 128.5}"),
                                  std::string("{\"dtype\": \"f8\"}"),
                                  std::string("{\"seed\": true}"),
                                  std::string("\0\0\0", 3),
                                  std::string("{\"capacity\": 0}")}) {
    EXPECT_THAT(problems_of_json(text), testing::Not(IsEmpty())) << text;
    for (const std::string& problem : problems_of_json(text)) {
      EXPECT_LT(problem.size(), 2000u);
      for (char c : problem) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << problem;
    }
  }
}

// --- the cache of a layer ------------------------------------------------------------------------

class SilentObserver {};

TEST(layer_cache, what_nothing_reads_is_refused_by_every_constructor) {
  KVCacheConfig config{.method = "h2o"};
  // Never looked into: both types have no content yet.
  const auto object = std::make_shared<SilentObserver>();
  config.observers = std::vector<std::shared_ptr<QuantizationObserver>>{
      std::shared_ptr<QuantizationObserver>(object, reinterpret_cast<QuantizationObserver*>(object.get()))};
  config.store = std::shared_ptr<ArtifactStore>(object, reinterpret_cast<ArtifactStore*>(object.get()));
  EXPECT_THAT(config.problems(), UnorderedElementsAre(HasSubstr("observers: got 1"), HasSubstr("store: artifacts")));
  EXPECT_THROW(H2OKVCache{config}, QuantizerConfigError);
  config.method = "qjl";
  EXPECT_THROW(QJLKVCache{config}, QuantizerConfigError);
  EXPECT_THROW(QJLKVCache(KVCacheConfig{.method = "qjl", .sliding_window = 4}), QuantizerConfigError);
}

TEST(layer_cache, refuses_what_is_not_its_method) {
  EXPECT_THROW(H2OKVCache(KVCacheConfig{.method = "tova"}), QuantizerConfigError);
  EXPECT_THROW(LayerCache(KVCacheConfig{.method = "h2o", .sliding_window = 4}), QuantizerConfigError);
  EXPECT_THROW(LayerCache(KVCacheConfig{.method = "qjl"}), QuantizerConfigError);
  try {
    LayerCache cache(KVCacheConfig{.method = "gear"});
    FAIL();
  } catch (const QuantizerConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("gear can be configured but not built yet"), HasSubstr("kivi")));
  }
}

TEST(layer_cache, takes_its_heads_from_the_first_call_and_queries_of_any_multiple) {
  H2OKVCache cache(KVCacheConfig{.method = "h2o", .head_dim = 4, .h2o_budget = 8, .h2o_n_sink = 1, .h2o_grace = 2});
  EXPECT_EQ(cache.offset(), 0);
  EXPECT_TRUE(cache.empty());
  EXPECT_EQ(cache.compression_ratio(), 1.0);
  std::vector<float> k(2 * 3 * 20 * 4), v(k.size()), q(2 * 6 * 20 * 4);
  for (size_t i = 0; i < k.size(); ++i) {
    k[i] = static_cast<float>(i % 7) - 3;
    v[i] = static_cast<float>(i % 5);
  }
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 3);
  const Tensor keys = Tensor::bhsd(k.data(), DType::f32, 2, 3, 20, 4),
               values = Tensor::bhsd(v.data(), DType::f32, 2, 3, 20, 4);
  const std::vector<float> out = cache.step({.q = Tensor::bhsd(q.data(), DType::f32, 2, 6, 20, 4)}, keys, values);
  EXPECT_EQ(out.size(), 2u * 20 * 6 * 4);
  EXPECT_EQ(cache.tokens_kept(), 8);
  EXPECT_EQ(cache.tokens_seen(), 2 * 3 * 20);
  EXPECT_EQ(cache.h2o_kept_bytes(), size_t{2 * 3 * 8 * 4 * 4});
  EXPECT_EQ(cache.compression_ratio(), 20.0 / 8);
  EXPECT_FALSE(cache.is_trimmable());
  EXPECT_EQ(cache.trim(3), 0);
  EXPECT_THROW(cache.step({.q = Tensor::bhsd(q.data(), DType::f32, 2, 4, 20, 4)}, keys, values), ShapeError);
  EXPECT_EQ(cache.offset(), 20);
  EXPECT_THROW(cache.telemetry("tova_kept_bytes"), UnsupportedOperation);
}

}  // namespace
}  // namespace veloxquant
