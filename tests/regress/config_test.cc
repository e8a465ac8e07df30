// Options that are declared act, options that cannot act are refused, and nothing is ignored in silence.
#include "kernels/support.h"

#include <limits>

#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// Texts of legal values other than the default.
std::vector<std::string> other_values(const OptionSpec& option) {
  std::vector<std::string> texts;
  const bool none = std::holds_alternative<std::monostate>(option.def);
  switch (option.type) {
    case OptionType::choice:
      for (std::string_view choice : option.choices) {
        if (none || choice != std::get<std::string>(option.def)) texts.emplace_back(choice);
      }
      break;
    case OptionType::integer: {
      const int64_t value = none ? static_cast<int64_t>(std::min(100.0, option.max)) : std::get<int64_t>(option.def);
      texts.push_back(std::to_string(static_cast<double>(value) < option.max ? value + 1 : value - 1));
      if (static_cast<double>(3 * value + 40) <= option.max) texts.push_back(std::to_string(3 * value + 40));
      break;
    }
    case OptionType::real:
      texts.push_back(none ? "0.05" : to_string(OptionValue(std::get<double>(option.def) / 2 + option.min)));
      break;
    case OptionType::text:
    case OptionType::integers:
    case OptionType::array:
    case OptionType::map:
      ADD_FAILURE() << option.name << " of a method that can be built needs values here";
      break;
    case OptionType::boolean:
      texts.emplace_back(option.def == OptionValue(true) ? "false" : "true");
      break;
  }
  return texts;
}

// The ends of a range are legal too.
std::vector<std::string> extreme_values(const OptionSpec& option) {
  if (option.type == OptionType::real) {
    return {to_string(option.min_excluded ? option.min + 1e-9 : option.min), to_string(option.max)};
  }
  if (option.type != OptionType::integer) return {};
  const auto end = [](double x) {
    const bool inside = std::fabs(x) < 0x1p63;
    return inside  ? static_cast<int64_t>(x)
           : x < 0 ? std::numeric_limits<int64_t>::min()
                   : std::numeric_limits<int64_t>::max();
  };
  return {to_string(end(option.min)), to_string(end(option.max))};
}

std::vector<OptionSpec> options_of(const MethodDef& def) {
  std::vector<OptionSpec> options = def.options;
  options.insert(options.end(), general_options().begin(), general_options().end());
  return options;
}

// Everything that can be seen from outside after 300 tokens. Input in fp32 that no half type holds.
struct Seen {
  std::vector<float> out, keys, values;
  size_t used = 0;
  bool refused = false, waits = false;
  bool operator==(const Seen&) const = default;
};

Seen seen(const MethodSpec& method) {
  const LayerShape shape{.kv_heads = 2, .q_heads = 4, .dim_k = 64, .dim_v = 64};
  Sequences data(shape, 1, 301);
  for (std::vector<float>* x : {&data.k, &data.v}) {
    for (float& v : *x) v *= 1.0003f;
  }
  Seen result;
  std::optional<KVCache> built;
  try {
    built.emplace(method, shape);
  } catch (const QuantizerConfigError&) {
    return {.out = {}, .keys = {}, .values = {}, .used = 0, .refused = true, .waits = false};
  }
  KVCache& cache = *built;
  try {
    cache.append(data.keys({0, 250}), data.values({0, 250}), {Phase::prefill_more, {}});
    cache.append(data.keys({250, 290}), data.values({250, 290}), {Phase::prefill_last, {}});
    result.out = data.feed(cache, {7, 3}, 290);  // many queries and few
    (void)cache.update_and_fetch(data.keys({300, 301}), data.values({300, 301}));
    result.waits = cache.peek().staging_bytes > 0;
  } catch (const CapacityError&) {
    result.refused = true;
  } catch (const ValueError&) {  // no queries where they are asked for
    return {.out = {}, .keys = {}, .values = {}, .used = 1, .refused = true, .waits = false};
  }
  result.keys = cache.decode(Side::key);
  result.values = cache.decode(Side::value);
  result.used = cache.used_bytes();
  EXPECT_EQ(cache.method().options.unread(), std::vector<std::string>()) << "declared and never read";
  return result;
}

// raullenchai/Rapid-MLX#1196, PR#1199
TEST(Config, BL_114_the_live_cache_has_the_codec_that_was_asked_for) {
  const LayerShape shape = one_head(128);
  const Pool pool;
  KVCache cache = make("kivi(bits=8)", shape);
  int at = 0;
  for (int n : {500, 1000, 499, 1}) {
    cache.append(pool.view(at, 1, n, 1, 128), pool.view(at + 1, 1, n, 1, 128));
    at += n;
    const CacheStats stats = cache.peek();  // while the call runs
    EXPECT_EQ(stats.nominal_bits, 8);
    EXPECT_GT(stats.staging_bytes, 0u);
    cache.commit();
  }
  const CacheStats stats = cache.peek();
  EXPECT_GT(stats.key.coded_rows, 1800);
  const double share =
      static_cast<double>(cache.used_bytes()) / static_cast<double>(stats.key.fp16_bytes + stats.value.fp16_bytes);
  EXPECT_GT(share, 0.5);
  EXPECT_LT(share, 0.62);  // 9 bits of 16, and 128 exact values
}

// VeloxQuant-MLX#504, PR#512
TEST(Config, BL_115_every_declared_option_does_something) {
  // Kept for files of the original system, where they chose between equal implementations or had another life.
  const std::set<std::string_view> accepted = {"h2o_rope_base", "snap_backend",           "snap_batched_scoring",
                                               "snap_dtype",    "tova_backend",           "enable_vectorized_attend",
                                               "fused_sdpa",    "enable_fused_query_dot", "use_metal_kernels"};
  const std::set<std::string_view> outlier_streams = {"enable_outlier_two_stream", "n_outlier_channels",
                                                      "n_calib_tokens", "bit_width_outlier"};
  for (const MethodDef* def : built_methods()) {
    // Budgets that 300 tokens exceed.
    const std::string base = std::string(def->name) + (def->name == "streaming_llm" ? "(window=100)"
                                                       : def->chooses_rows          ? "(budget=100)"
                                                                                    : "");
    const Seen plain = seen(parse_method(base));
    for (const OptionSpec& option : options_of(*def)) {
      if (accepted.contains(option.name)) continue;
      // They act together: tests/codec/vector_methods_test.cc.
      if (def->standalone && outlier_streams.contains(option.name)) continue;
      // Of the variant with a sketch.
      if (option.name == "jl_dim" && def->name == "turboquant_mse") continue;
      // Methods without random numbers have no use for a seed.
      if (option.name == "seed" && !def->name.starts_with("turboquant") && def->name != "qjl") continue;
      // They have no coded rows.
      if (option.name == "attend_precision" && (def->name == "exact" || def->chooses_rows)) continue;
      bool differs = false;
      for (const std::string& value : other_values(option)) {
        const std::string set = std::string(option.name) + "=" + value;
        differs |= seen(parse_method(base, std::span(&set, 1))) != plain;
      }
      EXPECT_TRUE(differs) << def->name << ": " << option.name << " changes nothing";
    }
  }
}

// VeloxQuant-MLX#359
TEST(Config, BL_116_every_declared_option_can_be_set_by_every_name) {
  for (const MethodDef* def : built_methods()) {
    for (const OptionSpec& option : options_of(*def)) {
      std::vector<std::string> values = other_values(option);
      values.push_back(to_string(option.def));
      for (std::string& value : extreme_values(option)) values.push_back(std::move(value));
      for (const std::string& value : values) {
        for (std::string_view name : {option.name, option.alias}) {
          if (name.empty()) continue;
          const std::string set = std::string(name) + "=" + value;
          SCOPED_TRACE(std::string(def->name) + " " + set);
          const MethodSpec inside = parse_method(std::string(def->name) + "(" + set + ")");
          const MethodSpec beside = parse_method(def->name, std::span(&set, 1));
          for (const MethodSpec* spec : {&inside, &beside}) {
            EXPECT_EQ(to_string(spec->options.value(option.name)), value);
            EXPECT_TRUE(spec->options.explicitly_set(option.name));
            try {
              KVCache(*spec, one_head(64));
            } catch (const QuantizerConfigError& error) {  // a budget needs its parts to fit, and says so
              EXPECT_NE(std::string(error.what()).find(option.name), std::string::npos) << error.what();
            }
          }
        }
      }
    }
  }
}

// ggml-org/llama.cpp#10378
TEST(Config, BL_119_every_codec_runs_on_every_instruction_set) {
  const LayerShape shape{.kv_heads = 2, .q_heads = 4, .dim_k = 80, .dim_v = 96};
  const Sequences data(shape, 1, 160);
  const auto run = [&data](KVCache& cache) {
    cache.append(data.keys({0, 150}), data.values({0, 150}));
    return data.feed(cache, {9, 1}, 150);
  };
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache best = make(method, shape);
    const auto expected = run(best);
    const auto bytes = best.state();
    kernels::for_every_target([&](int64_t) {
      KVCache cache = make(method, shape);
      EXPECT_LT(relative_l2(run(cache), expected), 1e-5);
      // Scores come from weights, whose last bits are the instruction set's.
      if (!cache.method().def->chooses_rows) {
        EXPECT_EQ(cache.state(), bytes);
      }
    });
  }
}

// VeloxQuant-MLX#81, PR#94: a window belongs to the call here; as an option it must be refused by name
TEST(Config, BL_120_an_option_of_the_seed_that_is_not_there_is_refused) {
  const std::string set = "sliding_window=16";
  for (const MethodDef* def : method_table()) {
    try {
      parse_method(def->name, std::span(&set, 1));
      ADD_FAILURE() << def->name << " took it";
    } catch (const QuantizerConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("sliding_window"), std::string::npos) << error.what();
    }
  }
}

// ml-explore/mlx-lm PR#968, PR#1074
TEST(Config, BL_122_a_window_and_quantisation_work_together) {
  const LayerShape shape{.kv_heads = 1, .q_heads = 2, .dim_k = 64, .dim_v = 64};
  const Sequences data(shape, 1, 200);
  const float sinks[] = {0.5f, -1.0f};
  for (int bits : {2, 3, 4, 8}) {
    if (kSanitized && bits != 3) continue;
    for (bool with_sinks : {false, true}) {
      KVCache cache = make("kivi(group=16,residual=16,bits=" + std::to_string(bits) + ")", shape);
      for (int at = 0; at < 200; ++at) {
        DenseRows rows = stored_rows(cache, 0);
        rows.k.insert(rows.k.end(), data.k.begin() + at * 64, data.k.begin() + (at + 1) * 64);
        rows.v.insert(rows.v.end(), data.v.begin() + at * 64, data.v.begin() + (at + 1) * 64);
        rows.rows = at + 1;
        AttendIn in = data.attend_in({at, at + 1});
        in.window = 64;
        if (with_sinks) in.sinks = sinks;
        const auto out = cache.step(in, data.keys({at, at + 1}), data.values({at, at + 1}));
        ASSERT_LT(relative_l2(out, reference_attention(shape, rows, data.q.data() + at * 128, 1, in)), 1e-5) << at;
      }
    }
  }
}

// VeloxQuant-MLX PR#374: no option of these methods takes a list
TEST(Config, BL_125_a_list_is_refused_and_not_cut_to_its_first_number) {
  for (const char* value : {"8,4,2,1,1,0,0,0", "4,2", "-1", "abc", "2.5", "2 4", "0x2", ""}) {
    const std::string set = std::string("bits=") + value;
    for (const char* method : {"kivi", "turboquant_rvq"}) {
      try {
        parse_method(method, std::span(&set, 1));
        ADD_FAILURE() << method << " took " << set;
      } catch (const QuantizerConfigError& error) {
        const std::string allowed = std::string_view(method) == "kivi" ? "1..8" : "1..4";
        EXPECT_NE(std::string(error.what()).find(allowed), std::string::npos) << error.what();
      }
    }
  }
  try {
    parse_method("kivi(bits=4,2)");
    ADD_FAILURE() << "a list was taken";
  } catch (const QuantizerConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("character 14"), std::string::npos) << error.what();
  }
}

// ggml-org/llama.cpp#26382
TEST(Config, BL_149_unset_follows_the_method_and_is_not_the_default_spelt_out) {
  const auto value_codec = [](const MethodSpec& spec, const LayerShape& shape) {
    return build_recipe(spec, {shape, DType::f16, 42}).value->name();
  };
  const LayerShape shape = one_head(64);
  const MethodSpec unset = parse_method("turboquant_rvq(bits=4)"),
                   exact = parse_method("turboquant_rvq(bits=4,value_codec=exact)");
  EXPECT_FALSE(unset.options.explicitly_set("value_codec"));
  EXPECT_TRUE(exact.options.explicitly_set("value_codec"));
  EXPECT_EQ(value_codec(unset, shape), "f16");
  EXPECT_EQ(value_codec(exact, shape), "f16");
  EXPECT_EQ(value_codec(parse_method("turboquant_rvq(bits=4,value_codec=turboquant_mse)"), shape), "codebook4");
  EXPECT_THROW(parse_method("turboquant_rvq(value_codec=kivi)"), QuantizerConfigError);

  // residual_scale means laplace; only where the table was not chosen.
  const auto check = [&](const char* text) { check_method(parse_method(text), shape); };
  EXPECT_NO_THROW(check("turboquant_rvq(residual_scale=0.1)"));
  EXPECT_NO_THROW(check("turboquant_rvq(residual_scale=0.1,codebook=laplace)"));
  EXPECT_THROW(check("turboquant_rvq(residual_scale=0.1,codebook=joint)"), QuantizerConfigError);
  EXPECT_NO_THROW(check("turboquant_rvq(residual_scale=none,codebook=joint)"));

  // Without values there is no cache of either kind, and the layer is named.
  LayerShape no_values{.kv_heads = 1, .q_heads = 1, .dim_k = 64, .dim_v = 0, .layer = 5};
  for (const char* text : {"turboquant_rvq(bits=4)", "turboquant_rvq(bits=4,value_codec=exact)",
                           "turboquant_rvq(bits=4,value_codec=turboquant_mse)", "kivi(bits=8)", "exact"}) {
    try {
      KVCache cache = make(text, no_values);
      ADD_FAILURE() << text << " took a shape without values";
    } catch (const QuantizerConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("layer 5"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("dim_v"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace veloxquant::test
