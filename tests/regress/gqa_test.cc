// Query heads share what their kv head stores: nothing is stored, encoded or unpacked per query head.
#include <thread>

#include "counting_codec.h"
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

std::vector<float> attend_on_threads(const KVCache& cache, const AttendIn& in, int nth) {
  const int64_t head = cache.shape().dim_v, token = head * cache.shape().q_heads;
  std::vector<float> out(static_cast<size_t>(in.q.batch * in.q.tokens * token));
  std::vector<std::thread> threads;
  for (int ith = 0; ith < nth; ++ith) {
    threads.emplace_back([&, ith] { cache.attend(in, {out.data(), token * in.q.tokens, token, head}, ith, nth); });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

// ml-explore/mlx PR#4431
TEST(Gqa, BL_059_rows_of_a_batch_read_their_own_keys_and_values) {
  const int heads = sized(8, 1), q_heads = 4 * heads, tokens = sized(8192, 2112);
  const LayerShape shape{.kv_heads = heads, .q_heads = q_heads, .dim_k = 128, .dim_v = 128};
  const Pool pool;
  for (const char* method : {"exact", "kivi", "turboquant_rvq"}) {
    SCOPED_TRACE(method);
    KVCache both = make(method, shape);
    pool.fill(both, 2, tokens);
    AttendIn in;
    in.q = pool.view(5000, 2, 1, q_heads, 128);
    const std::vector<float> out = both.attend(in);
    for (int b = 0; b < 2; ++b) {
      KVCache one = make(method, shape);
      for (int part = 0; part * 512 < tokens; ++part) {
        const int n = std::min(512, tokens - part * 512);
        one.append(batch_row(pool.view(2 * part, 2, n, heads, 128), b),
                   batch_row(pool.view(2 * part + 1, 2, n, heads, 128), b));
      }
      one.commit();
      AttendIn own;
      own.q = batch_row(in.q, b);
      const std::vector<float> expected = one.attend(own);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + b * q_heads * 128)) << "batch row " << b;
    }
  }
}

// ml-explore/mlx PR#3473
TEST(Gqa, BL_060_short_query_blocks_equal_single_queries) {
  const LayerShape shape{.kv_heads = 4, .q_heads = 16, .dim_k = 256, .dim_v = 256};
  const Sequences data(shape, 1, 300);
  for (const char* method :
       {"kivi(bits=8,group=64,residual=64)", "kivi(bits=4,group=64,residual=64)", "turboquant_rvq"}) {
    SCOPED_TRACE(method);
    KVCache cache = make(method, shape);
    cache.append(data.keys({0, 300}), data.values({0, 300}));
    const DenseRows store = stored_rows(cache, 0);
    const size_t token = size_t{16} * 256;
    for (int n : {1, 2, 3, 4, 8}) {
      if (kSanitized && n != 1 && n != 2) continue;
      const Range block{300 - n, 300};
      const std::vector<float> out = cache.attend(data.attend_in(block));
      const auto expected =
          reference_attention(shape, store, data.q.data() + static_cast<size_t>(300 - n) * token, n, {});
      EXPECT_LT(relative_l2(out, expected), 1e-3) << n;
      for (int i = 0; i < n; ++i) {
        KVCache single = cache.copy();
        single.trim(n - 1 - i);
        const auto one = single.attend(data.attend_in({300 - n + i, 300 - n + i + 1}));
        const auto row = out.begin() + i * static_cast<int64_t>(token);
        EXPECT_LT(relative_l2({row, row + static_cast<int64_t>(token)}, one), 1e-3) << i << " of " << n;
      }
    }
  }
}

// microsoft/onnxruntime PR#31726: the sanitizer of the thread build looks for the race
TEST(Gqa, BL_061_rows_are_encoded_per_kv_head) {
  const int tokens = sized(2048, 256);
  for (int q_heads : {4, 32}) {
    const LayerShape shape{.kv_heads = 4, .q_heads = q_heads, .dim_k = 16, .dim_v = 16};
    const Sequences data(shape, 1, tokens);
    CountedMethod counted("kivi(group=32,residual=32)");
    KVCache cache(counted.spec(), shape);
    cache.append(data.keys({0, tokens}), data.values({0, tokens}));
    EXPECT_EQ(counted.key.encode_calls, 0);
    const auto out = attend_on_threads(cache, data.attend_in({0, tokens}), 8);
    EXPECT_EQ(counted.key.encode_calls + counted.value.encode_calls, 0) << "attention encodes nothing";
    cache.commit();
    // Storage blocks of 128 key rows and of 64 value rows; 32 values wait.
    EXPECT_EQ(counted.key.encode_calls, 4 * tokens / 128);
    EXPECT_EQ(counted.key.encoded_rows, 4 * tokens);
    EXPECT_EQ(counted.value.encode_calls, 4 * tokens / 64);
    EXPECT_EQ(counted.value.encoded_rows, 4 * (tokens - 32));
    KVCache alone(parse_method("kivi(group=32,residual=32)"), shape);
    EXPECT_EQ(data.feed(alone, {tokens}), out);
  }
}

// FYYFU/HeadKV#3
TEST(Gqa, BL_062_heads_are_not_repeated_before_they_are_stored) {
  const int tokens = sized(4096, 256);
  const Pool pool;
  const LayerShape grouped{.kv_heads = 8, .q_heads = 32, .dim_k = 128, .dim_v = 128};
  LayerShape plain = grouped;
  plain.q_heads = 8;
  for (const char* method : {"exact", "kivi", "turboquant_rvq"}) {
    SCOPED_TRACE(method);
    KVCache many = make(method, grouped), few = make(method, plain);
    pool.fill(many, 1, tokens);
    pool.fill(few, 1, tokens);
    EXPECT_EQ(many.used_bytes(), few.used_bytes());
    EXPECT_EQ(many.nbytes(), few.nbytes());
    EXPECT_EQ(many.peek().key.coded_rows + many.peek().key.exact_rows, 8 * tokens);
    EXPECT_EQ(many.decode(Side::key).size(), size_t{8} * static_cast<size_t>(tokens) * 128);
  }
}

// vllm-project/vllm-ascend PR#14486: told by the rows that a decode step unpacks
TEST(Gqa, BL_144_a_row_is_unpacked_once_for_all_query_heads_of_its_kv_head) {
  const int rows = sized(8192, 512);
  const Pool pool;
  for (const char* method : {"kivi(bits=1)", "kivi(bits=2)", "kivi(bits=3)", "kivi(bits=4)", "kivi(bits=8)",
                             "turboquant_rvq", "turboquant_rvq(value_codec=int8)"}) {
    SCOPED_TRACE(method);
    for (int q_heads : {1, 8}) {
      const LayerShape shape{.kv_heads = 1, .q_heads = q_heads, .dim_k = 64, .dim_v = 64};
      CountedMethod counted(method);
      KVCache cache(counted.spec(), shape);
      pool.fill(cache, 1, rows, 1024);
      for (CodecCounts* counts : {&counted.key, &counted.value}) counts->restart();
      AttendIn in;
      in.q = pool.view(9999, 1, 1, q_heads, 64);
      cache.attend(in);
      EXPECT_EQ(counted.key.scored_rows, cache.peek().key.coded_rows);
      EXPECT_EQ(counted.value.summed_rows, cache.peek().value.coded_rows);
      EXPECT_EQ(counted.key.decoded_rows + counted.value.decoded_rows, 0);
    }
  }
}

}  // namespace
}  // namespace veloxquant::test
