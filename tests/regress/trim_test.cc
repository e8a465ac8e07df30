// Trims, rollbacks and reorders must take frontiers, counters and neighbours with them.
#include "allocation_meter.h"
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// VeloxQuant-MLX PR#369
TEST(Trim, BL_023_the_frontier_goes_back_with_the_rows) {
  const Sequences data(one_head(16), 1, 16);
  KVCache cache = make("kivi(group=4,residual=2)", data.shape), straight = make("kivi(group=4,residual=2)", data.shape);
  data.feed(cache, {10});
  EXPECT_EQ(cache.peek().key.coded_rows, 8);
  EXPECT_EQ(cache.trim(6), 6);
  EXPECT_EQ(cache.peek().key.coded_rows, 4);
  EXPECT_EQ(cache.peek().value.coded_rows, 0);
  data.feed(cache, {6}, 10);
  data.feed(straight, {4});
  data.feed(straight, {6}, 10);
  EXPECT_EQ(cache.peek().key.coded_rows, straight.peek().key.coded_rows);
  EXPECT_EQ(cache.peek().value.coded_rows, straight.peek().value.coded_rows);
  EXPECT_EQ(cache.state(), straight.state());
}

// VeloxQuant-MLX PR#371
TEST(Trim, BL_024_no_row_is_attended_that_was_never_written) {
  for (int dim : {12, 80, 128}) {
    const Sequences data(one_head(dim), 1, 21);
    for (const std::string& method : every_method()) {
      SCOPED_TRACE(method);
      const MethodSpec spec = parse_method(method);
      KVCache cache(spec, data.shape, arena_of_nan(spec, data.shape)), clean(spec, data.shape);
      if (!cache.is_trimmable()) continue;
      for (KVCache* each : {&cache, &clean}) {
        data.feed(*each, {20});
        EXPECT_EQ(each->trim(3), 3);
        EXPECT_EQ(each->size(), 17);
      }
      const std::vector<float> out = data.step(cache, {20, 21});
      EXPECT_EQ(cache.size(), 18);
      EXPECT_TRUE(all_finite(out));
      EXPECT_EQ(out, data.step(clean, {20, 21}));
      EXPECT_EQ(cache.state(), clean.state());
      EXPECT_EQ(cache.trim(1000), 18);
      EXPECT_EQ(cache.size(), 0);
    }
  }
}

// ml-explore/mlx-lm#1494, PR#1502
TEST(Trim, BL_026_a_set_trims_all_layers_or_none) {
  const Sequences data(one_head(16), 1, 40);
  const LayerShape shapes[] = {one_head(16), one_head(16)};
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    CacheSet set(parse_method(method), shapes);
    if (!set[0].is_trimmable()) continue;
    data.feed(set[0], {40});
    data.feed(set[1], {8});
    const auto first = set[0].state(), second = set[1].state();
    EXPECT_EQ(set.trim(28), 0);
    EXPECT_EQ(set[0].state(), first);
    EXPECT_EQ(set[1].state(), second);
    data.feed(set[1], {32}, 8);
    EXPECT_EQ(set.trim(28), 28);
    EXPECT_EQ(set[0].offset(), 12);
    EXPECT_EQ(set[1].offset(), 12);
    data.feed(set[0], {1}, 12);
    EXPECT_EQ(set[0].size(), 13) << "a trimmed row came back";
  }
}

// waybarrios/vllm-mlx PR#69
TEST(Trim, BL_028_every_layer_of_every_method_shrinks) {
  const Sequences data(one_head(64), 1, 253);
  const LayerShape shapes[] = {one_head(64), one_head(64), one_head(64)};
  for (const char* method :
       {"exact", "kivi(bits=4,residual=32)", "turboquant_rvq", "turboquant_rvq(value_codec=int8)"}) {
    SCOPED_TRACE(method);
    CacheSet set(parse_method(method), shapes);
    for (int i = 0; i < set.layers(); ++i) data.feed(set[i], {253});
    const size_t before = set.nbytes(), allocated = set.arena().allocated_bytes;
    EXPECT_EQ(set.trim(253 - 17), 253 - 17);
    KVCache fresh = make(method, one_head(64));
    data.feed(fresh, {17});
    for (int i = 0; i < set.layers(); ++i) {
      EXPECT_EQ(set[i].size(), 17);
      EXPECT_EQ(set[i].used_bytes(), fresh.used_bytes());
    }
    EXPECT_LT(set.nbytes(), before / 2);
    EXPECT_LT(set.arena().allocated_bytes, allocated / 2);
  }
}

// nicedreamzapp/claude-code-local#46, PR#47
TEST(Trim, BL_029_the_trimmed_amount_is_the_old_tail) {
  const Sequences data(one_head(64), 1, 390);
  for (const char* method : {"exact", "turboquant_rvq", "turboquant_rvq(value_codec=turboquant_mse)"}) {
    SCOPED_TRACE(method);
    KVCache warm = make(method, data.shape), cold = make(method, data.shape);
    data.feed(warm, {350});
    EXPECT_EQ(warm.trim(50), 50);
    data.feed(cold, {300});
    EXPECT_EQ(data.feed(warm, {40}, 350), data.feed(cold, {40}, 350));
    EXPECT_EQ(warm.state(), cold.state());
  }
}

// ml-explore/mlx-lm PR#1039
TEST(Trim, BL_033_a_checkpoint_feeds_no_token_twice) {
  const Sequences data(one_head(32), 1, 50);
  const LayerShape shapes[] = {one_head(32), one_head(32), one_head(32)};
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    CacheSet set(parse_method(method), shapes);
    for (int i = 0; i < set.layers(); ++i) {
      data.feed(set[i], {32});
      const auto checkpoint = set[i].state();
      EXPECT_EQ(set[i].offset(), 32);
      data.feed(set[i], {18}, 32);
      EXPECT_EQ(set[i].offset(), 50);
      EXPECT_EQ(set[i].size(), 50);
      KVCache resumed = make(method, shapes[i]);
      resumed.set_state(checkpoint);
      data.feed(resumed, {18}, 32);
      EXPECT_EQ(resumed.state(), set[i].state());
    }
  }
}

// ggml-org/llama.cpp#22746
TEST(Trim, BL_034_a_second_rollback_starts_from_where_the_first_one_ended) {
  const Sequences data(one_head(16), 1, 48);
  for (const char* method :
       {"exact", "turboquant_rvq", "turboquant_rvq(value_codec=turboquant_mse)", "kivi", "kivi(group=4,residual=4)",
        "kivi(group=4,residual=4,bits=4)", "kivi(group=4,residual=4,flush_rule=aligned_window)"}) {
    SCOPED_TRACE(method);
    KVCache cache = make(method, data.shape), straight = make(method, data.shape), short_run = make(method, data.shape);
    data.feed(cache, {10});
    KVCache snapshot = cache.copy();
    data.feed(cache, {4}, 10);
    EXPECT_EQ(cache.trim(2), 2);
    data.feed(cache, {3}, 14);
    EXPECT_EQ(cache.trim(3), 3);
    data.feed(cache, {1}, 17);
    data.feed(straight, {12});
    data.feed(straight, {1}, 17);
    for (Side side : kSides) {
      const auto coded = [side](const KVCache& c) {
        return (side == Side::key ? c.peek().key : c.peek().value).coded_rows;
      };
      EXPECT_EQ(coded(cache), coded(straight));
      const std::vector<float> mine = cache.decode(side), theirs = straight.decode(side);
      EXPECT_TRUE(std::equal(mine.begin(), mine.begin() + coded(cache) * 16, theirs.begin())) << to_string(side);
    }
    // A row that was coded once and taken back waits in its decoded form: its codes are equal once it is coded again.
    data.feed(cache, chunks_of(30, 7), 18);
    data.feed(straight, chunks_of(30, 7), 18);
    EXPECT_EQ(cache.state(), straight.state());
    data.feed(short_run, {10});
    EXPECT_EQ(snapshot.state(), short_run.state());
  }
}

// lablup/mlxcel PR#1255: time is told by the bytes that a trim asks for, which a busy computer does not change
TEST(Trim, BL_142_a_rollback_costs_what_it_removes) {
  const Pool pool;
  for (const char* method : {"exact", "kivi", "turboquant_rvq"}) {
    SCOPED_TRACE(method);
    std::vector<size_t> asked, grown;
    for (int context : {2048, sized(32768, 4096)}) {
      const LayerShape shapes[] = {one_head(64)};
      CacheSet set(parse_method(method), shapes);
      KVCache& cache = set[0];
      pool.fill(cache, 1, context, 1024);
      size_t in_trims = 0;
      const size_t before = set.arena().allocated_bytes;
      for (int i = 0; i < 100; ++i) {
        cache.append(pool.view(i, 1, 4, 1, 64), pool.view(i + 1, 1, 4, 1, 64));
        cache.commit();
        const size_t total = AllocationMeter::total_bytes();
        EXPECT_EQ(cache.trim(3), 3);
        in_trims += AllocationMeter::total_bytes() - total;
      }
      EXPECT_EQ(cache.size(), context + 100);
      asked.push_back(in_trims);
      grown.push_back(set.arena().allocated_bytes - before);
    }
    EXPECT_LE(asked[1], asked[0] + asked[0] / 100) << "a trim's work grows with the context";
    EXPECT_EQ(grown[0], grown[1]);
  }
}

}  // namespace
}  // namespace veloxquant::test
