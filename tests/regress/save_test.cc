// A restored state must be the state: all of it, only it, or none.
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// ggml-org/llama.cpp#27068, #27052
TEST(Save, BL_036_a_damaged_state_leaves_a_live_cache_untouched) {
  const Sequences data(one_head(32), 1, 64), live(one_head(32), 1, 60, 7);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache saved = make(method, data.shape), cache = make(method, data.shape), untouched = make(method, data.shape);
    data.feed(saved, {64});
    auto bytes = saved.state();
    bytes[bytes.size() * 7 / 8] ^= std::byte{1};
    live.feed(cache, {40});
    live.feed(untouched, {40});
    // Once in the middle of a call too, whose rows wait for their commit.
    for (Range r : {Range{40, 41}, Range{41, 60}}) {
      cache.append(live.keys(r), live.values(r));
      untouched.append(live.keys(r), live.values(r));
      EXPECT_THROW(cache.set_state(bytes), FormatError);
      EXPECT_EQ(cache.attend(live.attend_in(r)), untouched.attend(live.attend_in(r)));
      EXPECT_THROW(cache.set_state(bytes), FormatError);
      EXPECT_EQ(cache.state(), untouched.state());
    }
    cache.reset();
    data.feed(cache, {64});
    EXPECT_EQ(cache.state(), saved.state());
  }
}

// ggml-org/llama.cpp#26676, #25913, #28194
TEST(Save, BL_037_a_restored_cache_is_worth_the_tokens_it_reports) {
  const Sequences data(one_head(64), 1, 105);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache saved = make(method, data.shape), restored = make(method, data.shape);
    data.feed(saved, {100});
    restored.set_state(saved.state());
    EXPECT_EQ(restored.offset(), 100);
    EXPECT_EQ(data.feed(restored, ones(5), 100), data.feed(saved, ones(5), 100));
  }
}

// ml-explore/mlx-examples#977
TEST(Save, BL_039_a_state_holds_the_live_rows_and_no_more) {
  const LayerShape shape = one_head(32);
  const Sequences data(shape, 1, 256);
  for (const char* name : {"exact", "kivi", "kivi(group=4,residual=4)", "turboquant_rvq"}) {
    SCOPED_TRACE(name);
    const auto with_capacity = [&](const char* rows) {
      const std::string set = std::string("capacity=") + rows;
      return parse_method(name, std::span(&set, 1));
    };
    const MethodSpec spec = with_capacity("256");
    KVCache cache(spec, shape, arena_of_nan(spec, shape));
    const size_t empty = cache.state().size();
    data.feed(cache, {7});
    const size_t seven = cache.state().size();
    // Headers of the sequence and its table, and one frontier for each side.
    EXPECT_EQ(seven - empty, cache.used_bytes() + (4 + 3 + 2) * sizeof(int32_t));
    KVCache loaded(with_capacity("9"), shape, arena_of_nan(spec, shape));
    loaded.set_state(cache.state());
    EXPECT_EQ(loaded.size(), 7);
    EXPECT_EQ(data.step(loaded, {7, 8}), data.step(cache, {7, 8}));
    data.step(loaded, {8, 9});
    EXPECT_THROW(data.step(loaded, {9, 10}), CapacityError) << "the capacity of the writer came along";
    data.feed(cache, {248}, 8);
    EXPECT_EQ(cache.size(), 256);
  }
}

// raullenchai/Rapid-MLX#198
TEST(Save, BL_041_a_state_of_other_settings_is_refused_and_stays_usable) {
  const LayerShape shape = one_head(32);
  const Sequences data(shape, 1, 200);
  std::vector<std::vector<std::byte>> entries;
  for (int n : {5, 100, 200}) {
    KVCache cache = make("kivi(bits=4)", shape);
    data.feed(cache, {n});
    entries.push_back(cache.state());
  }
  for (const char* other :
       {"kivi(bits=8)", "exact", "turboquant_rvq", "kivi(bits=4,residual=64)", "kivi(bits=4,dtype=f32)"}) {
    KVCache cache = make(other, shape);
    data.feed(cache, {3});
    const auto before = cache.state();
    for (const auto& entry : entries) EXPECT_THROW(cache.set_state(entry), FormatError) << other;
    EXPECT_EQ(cache.state(), before);
  }
  KVCache back = make("kivi(bits=4)", shape);
  for (const auto& entry : entries) {
    back.set_state(entry);
    EXPECT_EQ(back.state(), entry);
  }
}

// VeloxQuant-MLX#83
TEST(Save, BL_045_a_cache_without_rows_answers_everything) {
  const LayerShape shape = one_head(32);
  const Sequences data(shape, 1, 20);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache cache = make(method, shape);
    const auto fresh_state = cache.state();
    const auto expect_fresh = [&] {
      EXPECT_EQ(cache.state(), fresh_state);
      EXPECT_EQ(cache.size(), 0);
      EXPECT_EQ(cache.offset(), 0);
      EXPECT_EQ(cache.nbytes(), 0u);
      EXPECT_EQ(cache.used_bytes(), 0u);
      EXPECT_EQ(cache.make_mask(1).kind, Mask::Kind::none);
      EXPECT_EQ(cache.is_trimmable(), cache.method().def->capabilities.trimmable);
      EXPECT_EQ(cache.peek().rows, 0);
      for (const Telemetry& t : cache.method().def->telemetry)
        EXPECT_TRUE(std::isfinite(t.value(cache.peek()))) << t.name;
    };
    expect_fresh();
    EXPECT_EQ(cache.update_and_fetch(data.keys({0, 0}), data.values({0, 0})).rows, 0);
    expect_fresh();
    data.feed(cache, {20});
    const auto state = cache.state();
    EXPECT_EQ(cache.update_and_fetch(data.keys({0, 0}), data.values({0, 0})).rows, 20);
    EXPECT_TRUE(data.step(cache, {0, 0}).empty());
    EXPECT_EQ(cache.state(), state);
    cache.reset();
    expect_fresh();
  }
}

// ollama/ollama#16860, PR#16861
TEST(Save, BL_047_a_prefix_is_compressed_once_whoever_asks) {
  const LayerShape shape = one_head(32);
  const Sequences prefix(shape, 1, 60), a(shape, 1, 50, 7), b(shape, 1, 50, 8), c(shape, 1, 50, 9);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache cold = make(method, shape), shared = make(method, shape);
    prefix.feed(cold, {60});
    const auto expected = c.feed(cold, chunks_of(50, 20));
    prefix.feed(shared, {60});
    for (const Sequences* before : {&a, &b}) {
      KVCache request = shared.copy();
      before->feed(request, chunks_of(50, 20));
    }
    KVCache warm = shared.copy();
    EXPECT_EQ(c.feed(warm, chunks_of(50, 20)), expected);
    EXPECT_EQ(warm.state(), cold.state());
  }
}

}  // namespace
}  // namespace veloxquant::test
