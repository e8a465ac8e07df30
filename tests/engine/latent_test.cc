// Values that are the beginning of their keys: stored once, attended as if they were stored twice.
#include <gtest/gtest.h>

#include "support/tensors.h"
#include "veloxquant/cache.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

TEST(Latent, keys_alone_are_stored_and_attended_as_keys_and_values) {
  LayerShape shape{.kv_heads = 1, .q_heads = 6, .dim_k = 96, .dim_v = 64};
  for (const char* method :
       {"exact", "exact(dtype=f32)", "kivi(bits=8,group=16,residual=16)", "kivi_sink(bits=8,group=16,residual=16)",
        "turboquant_rvq(bits=4)", "turboquant_rvq(bits=4,attend_precision=float)", "h2o(budget=60)",
        "snapkv(budget=100)+kivi(bits=8,group=16,residual=16)", "streaming_llm(window=80)", "tova(budget=70)"}) {
    SCOPED_TRACE(method);
    shape.value_is_key_prefix = false;
    Sequences data(shape, 2, 300);
    for (size_t row = 0; row < data.k.size() / 96; ++row) {
      std::copy_n(data.k.begin() + static_cast<int64_t>(row) * 96, 64, data.v.begin() + static_cast<int64_t>(row) * 64);
    }
    KVCache twice(parse_method(method), shape);
    shape.value_is_key_prefix = true;
    KVCache once(parse_method(method), shape);
    int at = 0;
    for (int n : {130, 1, 1, 60, 1, 90, 1}) {
      const Range r{at, at + n};
      const std::vector<float> expected = twice.step(data.attend_in(r), data.keys(r), data.values(r));
      const std::vector<float> got = once.step(data.attend_in(r), data.keys(r), Tensor{});
      // Quantised values differ from quantised keys.
      EXPECT_LT(relative_l2(got, expected), once.peek().key.coded_rows > 0 ? 0.06 : 1e-5) << at;
      at += n;
    }
    EXPECT_EQ(once.positions(0, 0), twice.positions(0, 0));
    EXPECT_EQ(once.peek().value.bytes(), 0u);
    EXPECT_EQ(once.peek().key.bytes(), twice.peek().key.bytes());
    const std::vector<float> keys = once.decode(Side::key), values = once.decode(Side::value);
    for (size_t row = 0; row < keys.size() / 96; ++row) {
      ASSERT_TRUE(std::equal(keys.begin() + static_cast<int64_t>(row) * 96,
                             keys.begin() + static_cast<int64_t>(row) * 96 + 64,
                             values.begin() + static_cast<int64_t>(row) * 64));
    }
    KVCache restored(parse_method(method), shape);
    restored.set_state(once.state());
    EXPECT_EQ(restored.state(), once.state());
    const Range last{at, at + 10};
    EXPECT_EQ(restored.step(data.attend_in(last), data.keys(last), Tensor{}),
              once.step(data.attend_in(last), data.keys(last), Tensor{}));
    if (once.is_trimmable()) {
      EXPECT_EQ(once.trim(200), 200);
      EXPECT_EQ(once.size(), 94);
    }
  }
}

TEST(Latent, values_longer_than_keys_are_refused) {
  const LayerShape shape{.kv_heads = 1, .q_heads = 1, .dim_k = 32, .dim_v = 64, .value_is_key_prefix = true};
  EXPECT_THROW(KVCache(parse_method("exact"), shape), QuantizerConfigError);
}

}  // namespace
}  // namespace veloxquant::test
