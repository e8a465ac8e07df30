// What is reported is what is resident, to the byte, and no second copy exists.
#include <unistd.h>

#include <fstream>
#include <map>

#include "allocation_meter.h"
#include "counting_codec.h"
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

size_t resident_bytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// VeloxQuant-MLX#65, PR#112
TEST(Bytes, BL_107_nbytes_is_the_sum_of_the_allocations) {
  const LayerShape shapes[] = {{.kv_heads = 2, .q_heads = 2, .dim_k = 128, .dim_v = 128}};
  const Sequences data(shapes[0], 2, 330);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    {  // what the thread keeps for its next encoding is no part of a cache
      CacheSet first(parse_method(method), shapes);
      data.store(first[0], {0, 300});
    }
    CacheSet set(parse_method(method), shapes);
    const size_t before = AllocationMeter::live_bytes();
    set[0].append(data.keys({0, 300}), data.values({0, 300}));
    set[0].append(data.keys({300, 330}), data.values({300, 330}));
    set.commit();
    const size_t heap = AllocationMeter::live_bytes() - before;
    const size_t mapped = set.arena().allocated_bytes, reported = set.nbytes();
    EXPECT_GE(reported, mapped);
    EXPECT_LE(reported, mapped + heap);
    // The rest of the heap are the headers of the batch rows and streams, and what malloc adds to each small piece.
    EXPECT_LE(mapped + heap - reported, size_t{2 * 2 * 2} * 512 + 32 * (set.used_bytes() / 1024))
        << "bytes nobody reports";
    set.reset();
    EXPECT_EQ(set.nbytes(), 0u);
    EXPECT_EQ(set.arena().allocated_bytes, 0u);
  }
}

// VeloxQuant-MLX#378
TEST(Bytes, BL_108_no_decoded_token_is_billed_a_scale_of_its_own) {
  const LayerShape shape{.kv_heads = 2, .q_heads = 2, .dim_k = 128, .dim_v = 128};
  const Sequences data(shape, 1, 195);
  for (const char* rule : {"block_flush", "aligned_window"}) {
    const std::string method = std::string("kivi(group=32,residual=32,bits=2,flush_rule=") + rule + ")";
    KVCache steps = make(method, shape), at_once = make(method, shape);
    steps.append(data.keys({0, 45}), data.values({0, 45}));
    for (int at = 45; at < 195; ++at) steps.append(data.keys({at, at + 1}), data.values({at, at + 1}));
    at_once.append(data.keys({0, 195}), data.values({0, 195}));
    EXPECT_EQ(steps.state(), at_once.state());
    const bool block = std::string_view(rule) == "block_flush";
    const size_t keys = block ? 192 : 160, values = block ? 163 : 160;
    const CacheStats stats = steps.peek();
    EXPECT_EQ(stats.key.coded_bytes, 2 * keys / 32 * 128 * (32 * 2 / 8 + 4));
    EXPECT_EQ(stats.value.coded_bytes, 2 * values * (128 * 2 / 8 + 4 * 128 / 32));
    EXPECT_EQ(stats.key.exact_bytes, 2 * (195 - keys) * 128 * 2);
    EXPECT_EQ(stats.value.exact_bytes, 2 * (195 - values) * 128 * 2);
    EXPECT_EQ(steps.used_bytes(), stats.key.bytes() + stats.value.bytes());
    for (const Telemetry& t : steps.method().def->telemetry) {
      if (t.name != "effective_compression_ratio") continue;
      EXPECT_DOUBLE_EQ(t.value(stats), 2.0 * 2 * 195 * 128 * 2 / static_cast<double>(steps.used_bytes()));
      EXPECT_GT(t.value(stats), 2.5);
    }
  }
}

// VeloxQuant-MLX bookkeeping audit, #27, #54; sgl-project/sglang PR#22777
TEST(Bytes, BL_109_quantised_rows_are_resident_as_codes_and_nothing_else) {
  const LayerShape shape{.kv_heads = 8, .q_heads = 8, .dim_k = 64, .dim_v = 64, .layer = 0, .input = DType::f16};
  const Pool pool;
  struct Expected {
    const char* rule;
    size_t key_codes, key_parameters, key_exact;
  };
  for (const Expected& e :
       {Expected{"aligned_window", 507904, 253952, 131072}, Expected{"block_flush", 524288, 262144, 0}}) {
    SCOPED_TRACE(e.rule);
    const MethodSpec method = parse_method(std::string("kivi(bits=2,group=32,residual=128,flush_rule=") + e.rule + ")");
    const int count = sized(e.key_exact > 0 ? 4 : 64, 1);
    const std::vector<LayerShape> shapes(static_cast<size_t>(count), shape);
    const size_t used_by_layer = e.key_codes + e.key_parameters + e.key_exact + 892928;
    CacheSet set(method, shapes);
    pool.fill(set[0], 1, 4096);  // warms up what the process keeps
    const CacheStats stats = set[0].peek();
    EXPECT_EQ(stats.key.coded_bytes, e.key_codes + e.key_parameters);
    EXPECT_EQ(stats.key.exact_bytes, e.key_exact);
    EXPECT_EQ(stats.value.coded_bytes, 507904u + 253952u);
    EXPECT_EQ(stats.value.exact_bytes, 131072u);
    EXPECT_EQ(set[0].used_bytes(), used_by_layer);
    const Recipe recipe = build_recipe(method, {shape, DType::f16, 42});
    const size_t blocks = 8 * (recipe.key->format().block_bytes() + recipe.value->format().block_bytes());
    const size_t limit = used_by_layer + used_by_layer * 3 / 100 + blocks;
    EXPECT_LE(set[0].nbytes(), limit);

    const size_t heap = AllocationMeter::live_bytes(), resident = resident_bytes();
    for (int i = 1; i < count; ++i) pool.fill(set[i], 1, 4096);
    EXPECT_EQ(set.used_bytes(), used_by_layer * shapes.size());
    EXPECT_LE(set.nbytes(), limit * shapes.size());
    EXPECT_LE(set.arena().allocated_bytes + AllocationMeter::live_bytes() - heap, limit * shapes.size());
    EXPECT_EQ(set.staging_bytes(), 0u);
    if (count < 64) continue;
    // Two large pages of slack: the newest chunk of the arena and what malloc holds back.
    const size_t grown = resident_bytes() - resident;
    EXPECT_LE(grown, limit * (shapes.size() - 1) + (size_t{4} << 20));
    EXPECT_LT(grown, stats.key.fp16_bytes * 2 * shapes.size() / 4) << "an exact copy exists";
  }
}

// VeloxQuant-Studio#29
TEST(Bytes, BL_112_statistics_equal_the_cache_s_own_numbers) {
  const LayerShape shape{.kv_heads = 2, .q_heads = 4, .dim_k = 64, .dim_v = 32};
  const Sequences data(shape, 1, 40);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache cache = make(method, shape);
    data.feed(cache, {39, 1});
    const CacheStats stats = cache.peek();
    EXPECT_EQ(stats.rows, cache.size());
    EXPECT_EQ(stats.rows, 40);
    EXPECT_EQ(stats.key.coded_rows + stats.key.exact_rows, 2 * 40);
    EXPECT_EQ(stats.value.coded_rows + stats.value.exact_rows, 2 * 40);
    EXPECT_EQ(stats.used_bytes, cache.used_bytes());
    EXPECT_EQ(stats.nbytes, cache.nbytes());
    EXPECT_EQ(stats.key.fp16_bytes, 2u * 40 * 64 * 2);
    EXPECT_EQ(stats.value.fp16_bytes, 2u * 40 * 32 * 2);
    EXPECT_FALSE(cache.method().def->telemetry.empty());
    const std::map<std::string_view, size_t> own = {
        {"used_bytes", cache.used_bytes()},
        {"memory_bytes", cache.used_bytes()},
        {"fp16_key_bytes", stats.key.fp16_bytes},
        {"fp16_value_bytes", stats.value.fp16_bytes},
        {"compressed_key_bytes", stats.key.coded_bytes + stats.table_bytes - stats.pool_position_bytes},
        {"compressed_value_bytes", stats.value.coded_bytes},
        {"residual_fp16_bytes", stats.key.exact_bytes + stats.value.exact_bytes - stats.pool_bytes},
        {"tokens_seen", 2 * 40},
        {"tokens_total", 2 * 40},
        {"full_seq_bytes", stats.key.fp16_bytes + stats.value.fp16_bytes},
        {"full_key_bytes", stats.key.fp16_bytes * 3 / 4},  // the seed halves what both sides need
        {"full_value_bytes", stats.key.fp16_bytes * 3 / 4},
        {"compression_ratio", 1},
        {"streaming_ratio", 1}};
    int compared = 0;
    for (const Telemetry& t : cache.method().def->telemetry) {
      const auto it = own.find(t.name);
      if (it == own.end()) continue;
      EXPECT_EQ(t.value(stats), static_cast<double>(it->second)) << t.name;
      ++compared;
    }
    EXPECT_GE(compared, 3);
  }
}

// Pushkinist/rMLX#408, #404; VeloxQuant-MLX#23
TEST(Bytes, BL_140_a_decode_step_reads_the_packed_bytes_and_makes_no_dense_copy) {
  const LayerShape shape = one_head(128, 4);
  const Pool pool;
  for (const char* method : {"exact", "kivi(bits=2)", "kivi(bits=4)", "turboquant_rvq",
                             "turboquant_rvq(value_codec=int8)", "turboquant_rvq(value_codec=turboquant_mse)"}) {
    SCOPED_TRACE(method);
    std::vector<size_t> asked;
    for (int rows : {sized(1024, 256), sized(8192, 512), sized(32768, 2048)}) {
      CountedMethod counted(method);
      KVCache cache(counted.spec(), shape);
      pool.fill(cache, 1, rows, 1024);
      AttendIn in;
      in.q = pool.view(9999, 1, 1, 4, 128);
      cache.attend(in);
      for (CodecCounts* counts : {&counted.key, &counted.value}) counts->restart();
      AllocationMeter::restart_peak();
      const size_t before = AllocationMeter::live_bytes();
      std::vector<float> out(4 * 128);
      cache.attend(in, {out.data(), 512, 512, 128}, 0, 1);
      asked.push_back(AllocationMeter::peak_bytes() - before);
      const CacheStats stats = cache.peek();
      const Recipe recipe = build_recipe(counted.spec(), {shape, DType::f16, 42});
      const auto bytes = [](const Codec& codec, int64_t n) {
        return static_cast<double>(n) * static_cast<double>(codec.format().unit_bytes()) / codec.format().unit_rows;
      };
      const double read = bytes(*recipe.key, counted.key.scored_rows) +
                          bytes(*recipe.value, counted.value.summed_rows) +
                          static_cast<double>(stats.key.exact_bytes + stats.value.exact_bytes);
      EXPECT_NEAR(read, static_cast<double>(stats.used_bytes), 0.05 * static_cast<double>(stats.used_bytes));
      EXPECT_EQ(counted.key.decoded_rows + counted.value.decoded_rows, 0);
    }
    // Each span of 2048 rows leaves one partial result of 4 queries: maximum, sum and two accumulators.
    const size_t partials = sized(32768, 2048) / 2048 * size_t{4} * (2 + 2 * 128) * sizeof(float);
    EXPECT_LE(asked[2], asked[0] + partials + 1024) << "memory of a step grows with the context";
  }
}

}  // namespace
}  // namespace veloxquant::test
