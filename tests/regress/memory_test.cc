// Memory that must not grow: of finished requests, of windows, of a call over a long context.
#include <thread>

#include "allocation_meter.h"
#include "engine/attention.h"
#include "fault_inputs.h"
#include "kernels/kernels.h"

namespace veloxquant::test {
namespace {

// ollama/ollama#16698
TEST(Memory, BL_131_a_finished_request_leaves_nothing) {
  const LayerShape shapes[] = {one_head(64), one_head(64)};
  const Pool pool;
  const int longest = sized(4096, 2112);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    CacheSet set(parse_method(method), shapes);
    const auto request = [&](int context) {
      for (int i = 0; i < set.layers(); ++i) {
        pool.fill(set[i], 1, context);
        AttendIn in;
        in.q = pool.view(context, 1, 1, 1, 64);
        set[i].attend(in);
      }
      EXPECT_LE(set.arena().allocated_bytes, set.nbytes());
    };
    request(longest);  // what a thread and a cache keep for the next call is in place
    set.reset();
    const size_t start = AllocationMeter::live_bytes();
    for (int context = 64; context <= longest; context *= sized(2, 6)) {
      request(context);
      set.reset();
      EXPECT_EQ(set.arena().allocated_bytes, 0u);
      EXPECT_EQ(set.staging_bytes(), 0u) << "partial results of a call that is over";
      EXPECT_EQ(set.arena().reserved_bytes, 0u) << "the system did not get its pages back";
      EXPECT_LE(AllocationMeter::live_bytes(), start + 4096);
    }
  }
}

// VeloxQuant-MLX#86
TEST(Memory, BL_135_the_exact_window_does_not_grow) {
  const int dim = 64;
  const Sequences data(one_head(dim), 1, 516);
  for (const char* rule : {"aligned_window", "block_flush"}) {
    SCOPED_TRACE(rule);
    const MethodSpec method = parse_method(std::string("kivi(residual=16,group=8,flush_rule=") + rule + ")");
    KVCache cache(method, data.shape);
    data.feed(cache, {16});
    for (int at = 16; at < 516; ++at) {
      cache.append(data.keys({at, at + 1}), data.values({at, at + 1}));
      cache.commit();
      ASSERT_LE(cache.peek().key.exact_rows, 16 + 8 - 1) << at;
      ASSERT_LE(cache.peek().value.exact_rows, 16 + 8 - 1) << at;
    }
    const bool block = std::string_view(rule) == "block_flush";
    const size_t keys = block ? 516 / 16 * 16 : 500 / 8 * 8, values = block ? 500 : keys;
    const size_t formula =
        keys / 8 * dim * (8 * 2 / 8 + 4) + values * (dim * 2 / 8 + 4 * dim / 8) + (516 - keys + 516 - values) * dim * 2;
    EXPECT_EQ(cache.used_bytes(), formula);
    const Recipe recipe = build_recipe(method, {data.shape, DType::f16, 42});
    // A window of 64 rows or less lies in two blocks at most.
    const size_t exact = 2 * raw_rows(DType::f16, dim)->format().block_bytes();
    const size_t key_block = recipe.key->format().block_bytes(), value_block = recipe.value->format().block_bytes();
    EXPECT_LE(cache.nbytes(), formula * 103 / 100 + key_block + value_block + 2 * exact);
  }
}

// ddalcu/mlx-serve PR#69; ml-explore/mlx-lm#1587, PR#1611
TEST(Memory, BL_137_a_prefill_chunk_needs_two_tiles_whatever_the_context) {
  const LayerShape shapes[] = {
      {.kv_heads = 2, .q_heads = 16, .dim_k = 256, .dim_v = 256, .layer = 0, .input = DType::f16}};
  const int chunk = sized(512, 128), queries = sized(64, 8);  // the last ones of the chunk: several tiles of 8 tokens
  const Pool pool(size_t{1} << 22);
  size_t exact_peak = 0;
  for (const char* method :
       {"exact", "kivi(bits=2)", "kivi(bits=4)", "turboquant_rvq", "turboquant_rvq(value_codec=int8)"}) {
    SCOPED_TRACE(method);
    std::vector<size_t> extra;
    for (int context : {sized(1024, 256), sized(8192, 512)}) {
      CacheSet set(parse_method(method), shapes);
      pool.fill(set[0], 1, context - chunk);
      const size_t resident = set.arena().peak_bytes;
      AttendIn in;
      in.q = pool.view(1, 1, queries, 16, 256);
      std::vector<float> out(static_cast<size_t>(queries) * 16 * 256);
      set[0].append(pool.view(2, 1, chunk, 2, 256), pool.view(3, 1, chunk, 2, 256));
      EXPECT_LE(set.staging_bytes(), size_t{2} * 2 * 256 * sizeof(float) * chunk);
      AllocationMeter::restart_peak();
      const size_t before = AllocationMeter::live_bytes();
      // On a thread that has attended nothing before, whose working memory is counted too.
      std::thread([&] { set[0].attend(in, {out.data(), queries * 4096, 4096, 256}, 0, 1); }).join();
      extra.push_back(AllocationMeter::peak_bytes() - before);
      EXPECT_EQ(set.arena().peak_bytes, resident) << "attention stores nothing";
      const size_t tile = size_t{kTileQueries} * kSpanRows * sizeof(float);
      EXPECT_LE(extra.back(), 2 * tile + (size_t{128} << 10))
          << "the queries' planes and one tile's operands are the rest";
      set.commit();
      EXPECT_EQ(set.staging_bytes(), 0u);
      if (extra.size() == 1) continue;
      const size_t peak = set.arena().peak_bytes + extra.back();
      if (std::string_view(method) == "exact") {
        exact_peak = peak;
      } else {
        EXPECT_LE(peak, exact_peak);
      }
    }
    EXPECT_LE(extra[1], extra[0] + 4096) << "grows with the context";
  }
}

TEST(Memory, growth_peaks_at_what_stays) {
  const LayerShape shape{.kv_heads = 4, .q_heads = 4, .dim_k = 128, .dim_v = 128, .layer = 0, .input = DType::f16};
  const Pool pool(size_t{1} << 20);
  const int chunk = 256, tokens = sized(32768, 2048);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    if (parse_method(method).def->chooses_rows) continue;  // what they keep does not grow: a call weighs more than it
    const size_t start = AllocationMeter::live_bytes();
    AllocationMeter::restart_peak();
    CacheSet set(parse_method(method), std::vector<LayerShape>(1, shape));
    size_t mapped = 0;
    for (int t = 0; t < tokens; t += chunk) {
      set[0].append(pool.view(2 * t, 1, chunk, 4, 128), pool.view(2 * t + 1, 1, chunk, 4, 128));
      set.commit();
      mapped = std::max(mapped, set.arena().reserved_bytes);
    }
    const size_t peak = mapped + AllocationMeter::peak_bytes() - start;
    const size_t stays = set.arena().reserved_bytes + AllocationMeter::live_bytes() - start;
    EXPECT_LE(peak, stays + stays / 10 + sized(0, 1 << 20));  // the chunk's fp32 rows weigh little at full size only
    EXPECT_LE(set.arena().reserved_bytes, set.nbytes() * 102 / 100 + Arena::kPage) << "the newest page is not full";
  }
}

TEST(Memory, a_second_attend_allocates_nothing) {
  const LayerShape shape{.kv_heads = 2, .q_heads = 6, .dim_k = 64, .dim_v = 64, .layer = 0, .input = DType::f16};
  const Sequences data(shape, 1, 300);
  std::vector<std::byte> q(data.q.size() * sizeof(float));
  for (const std::string& method : every_method()) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      kernels::from_f32(data.q.data(), static_cast<int64_t>(data.q.size()), type, q.data());
      for (const int queries : {1, 40}) {
        KVCache cache(parse_method(method), shape);
        data.feed(cache, {300 - queries});
        cache.append(data.keys({300 - queries, 300}), data.values({300 - queries, 300}));
        AttendIn in;
        in.q = Tensor::bshd(q.data(), type, 1, queries, 6, 64);
        std::vector<float> out(static_cast<size_t>(queries) * 6 * 64);
        const AttendOut to{out.data(), queries * 6 * 64, 6 * 64, 64};
        cache.attend(in, to, 0, 1);
        const size_t total = AllocationMeter::total_bytes();
        cache.attend(in, to, 0, 1);
        EXPECT_EQ(AllocationMeter::total_bytes(), total) << method << ", " << queries << " " << to_string(type);
      }
    }
  }
}

}  // namespace
}  // namespace veloxquant::test
