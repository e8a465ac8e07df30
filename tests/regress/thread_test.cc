// Who owns a cache, and what several threads may do at once.
#include <thread>

#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

// madroidmaq/mlx-omni-server#108; jundot/omlx#463
TEST(Thread, BL_127_two_sessions_of_one_configuration_do_not_meet) {
  const LayerShape shapes[] = {one_head(16), one_head(16)};
  const Sequences first(shapes[0], 1, 64), second(shapes[0], 1, 64, 7);
  const int rounds = sized(200, 10);
  for (const char* method : {"kivi(group=8,residual=8)", "turboquant_rvq(value_codec=turboquant_mse)"}) {
    const MethodSpec spec = parse_method(method);
    const auto run = [&](const Sequences& data) {
      CacheSet set(spec, shapes);
      std::vector<float> out;
      for (int at = 0; at < 64; ++at) {
        for (int layer = 0; layer < set.layers(); ++layer) {
          const auto o = data.step(set[layer], {at, at + 1});
          out.insert(out.end(), o.begin(), o.end());
        }
      }
      return out;
    };
    const std::vector<float> expected[] = {run(first), run(second)};
    int wrong[2] = {0, 0};
    const auto session = [&](size_t i, const Sequences& data) {
      for (int round = 0; round < rounds; ++round) wrong[i] += run(data) != expected[i];
    };
    std::thread a(session, 0, std::cref(first)), b(session, 1, std::cref(second));
    a.join();
    b.join();
    EXPECT_EQ(wrong[0], 0) << method;
    EXPECT_EQ(wrong[1], 0) << method;
  }
}

// cubist38/mlx-openai-server#305: there is no prefix tree yet; its entries will be copies that share their blocks
TEST(Thread, BL_128_shared_blocks_live_until_their_last_owner_is_done) {
  const LayerShape shape = one_head(16);
  const Sequences data(shape, 1, 240);
  const int nth = 16, rounds = sized(60, 3);
  for (const char* method : {"exact", "kivi(group=8,residual=8)", "turboquant_rvq"}) {
    const auto arena = std::make_shared<Arena>();
    KVCache alone = make(method, shape);
    data.feed(alone, {200});
    const auto expected = data.feed(alone, {1, 30, 1}, 200);
    {
      std::vector<KVCache> mine;
      {
        KVCache prefix(parse_method(method), shape, arena);
        data.feed(prefix, {200});
        for (int i = 0; i < nth; ++i) mine.push_back(prefix.copy());
      }
      std::vector<int> wrong(nth);
      std::vector<std::thread> threads;
      for (size_t i = 0; i < nth; ++i) {
        threads.emplace_back([&, i] {
          for (int round = 0; round < rounds; ++round) {
            KVCache request = mine[i].copy();
            wrong[i] += data.feed(request, {1, 30, 1}, 200) != expected;
            request.trim(100);
            if (round % 3 == 0) mine[i] = mine[i].copy();
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(wrong, std::vector<int>(nth)) << method;
    }
    EXPECT_EQ(arena->stats().allocated_bytes, 0u) << method;
  }
}

// Augustas11/macprovider#965, mlx-swift-lm#312
TEST(Thread, BL_130_compression_that_starts_later_keeps_the_same_object) {
  const int dim = 64;
  const LayerShape shapes[] = {one_head(dim), one_head(dim)};
  Sequences data(shapes[0], 1, 150);
  // The fact of token 60: a key along channel 0, where all others are small, and a value of fives.
  for (int t = 0; t < 150; ++t) data.k[static_cast<size_t>(t * dim)] = t == 60 ? 10 : 0;
  std::fill_n(data.v.begin() + 60 * dim, dim, 5.0f);
  std::fill_n(data.q.begin() + 149 * dim, dim, 0.0f);
  data.q[size_t{149} * dim] = 20;
  for (const char* method : {"kivi(group=32,residual=32)", "kivi(group=32,residual=32,flush_rule=aligned_window)"}) {
    SCOPED_TRACE(method);
    CacheSet set(parse_method(method), shapes);
    KVCache& handle = set[1];
    int ledger = 0;
    std::vector<float> last;
    for (const std::vector<int>& turn : {std::vector<int>{20, 40, 1, 39}, std::vector<int>{49, 1}}) {
      for (int n : turn) {
        data.feed(set[0], {n}, ledger);
        last = data.feed(handle, {n}, ledger);
        ledger += n;
      }
      EXPECT_EQ(&handle, &set[1]);
      EXPECT_EQ(handle.offset(), ledger);
      EXPECT_EQ(set.offset(), ledger);
    }
    EXPECT_EQ(ledger, 150);
    EXPECT_GT(handle.peek().key.coded_rows, 61) << "the fact itself is compressed";
    EXPECT_GT(handle.peek().value.coded_rows, 61);
    for (float x : last) EXPECT_NEAR(x, 5, 1e-3);
  }
}

}  // namespace
}  // namespace veloxquant::test
