// Caches of single vectors: order of calls, stored form at once, capacity, window.
#include "veloxquant/vector_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "regress/fault_inputs.h"
#include "support/reference_attention.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/codecs.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kDim = 64;

/// Pairs and queries of one head.
struct Vectors {
  int dim;
  std::vector<float> k, v, q;
  explicit Vectors(int n, int head_dim = kDim, uint32_t seed = 5)
      : dim(head_dim),
        k(gaussian(static_cast<size_t>(n * head_dim), seed)),
        v(gaussian(static_cast<size_t>(n * head_dim), seed + 1)),
        q(gaussian(static_cast<size_t>(n * head_dim), seed + 2)) {}
  std::span<const float> row(const std::vector<float>& x, int i) const {
    return std::span(x).subspan(static_cast<size_t>(i * dim), static_cast<size_t>(dim));
  }
  template <class Cache>
  void append(Cache& cache, int i) const {
    cache.append_key(row(k, i));
    cache.append_value(row(v, i));
  }
  template <class Cache>
  void append(Cache& cache, Range rows) const {
    for (int i = rows.begin; i < rows.end; ++i) append(cache, i);
  }
};

/// Attention of one query over rows as a layer's cache of the method stores them.
std::vector<float> over_stored_rows(const MethodSpec& method, const Vectors& x, int n, std::span<const float> q) {
  const LayerShape shape{.dim_k = x.dim, .dim_v = x.dim};
  KVCache layer(method, shape);
  layer.append(Tensor::bshd(x.k.data(), DType::f32, 1, n, 1, x.dim),
               Tensor::bshd(x.v.data(), DType::f32, 1, n, 1, x.dim));
  return reference_attention(shape, stored_rows(layer, 0), q.data(), 1, {});
}

const std::string kOneStream[] = {"exact",
                                  "turboquant_rvq",
                                  "turboquant_rvq(value_codec=turboquant_mse)",
                                  "turboquant_mse",
                                  "turboquant_mse(value_codec=turboquant,bits=4)",
                                  "turboquant_prod",
                                  "qjl",
                                  "qjl(m=128)"};
const std::string kTwoStreams[] = {"turboquant_mse(two_stream=true,outliers=5,calibration=20)",
                                   "turboquant_prod(two_stream=true,outliers=5,calibration=20)",
                                   "qjl(two_stream=true,outliers=5,calibration=20)"};

std::vector<std::string> all_methods() {
  std::vector<std::string> all(std::begin(kOneStream), std::end(kOneStream));
  all.insert(all.end(), std::begin(kTwoStreams), std::end(kTwoStreams));
  return all;
}

VectorCache make(const std::string& method, int dim = kDim) { return {parse_method(method), dim}; }

// Weights and queries of 15 bits, where blocks are sealed.
constexpr double kRounding = 1e-3;

TEST(VectorCache, attends_to_the_stored_form_of_every_pair_at_once) {
  const Vectors x(140);
  for (const std::string& method : all_methods()) {
    SCOPED_TRACE(method);
    VectorCache cache = make(method);
    EXPECT_THAT(cache.attend(x.row(x.q, 0)), Each(0.0f));
    for (int n = 1; n <= 140; ++n) {
      x.append(cache, n - 1);
      EXPECT_EQ(cache.size(), n);
      if (n > 3 && n % 19 != 0 && n != 20 && n != 64 && n != 65) continue;
      const auto q = x.row(x.q, n - 1);
      const auto out = cache.attend(q);
      EXPECT_LE(relative_l2(out, over_stored_rows(parse_method(method), x, n, q)), kRounding) << n << " pairs";
      EXPECT_EQ(cache.attend(q), out) << "attend changes nothing";
    }
  }
  VectorCache exact = make("exact"), coded = make("turboquant_mse(bits=1)");
  x.append(exact, 0);
  x.append(coded, 0);
  EXPECT_THAT(exact.attend(x.row(x.q, 0)), testing::ElementsAreArray(x.row(x.v, 0))) << "a single pair has weight 1";
  EXPECT_NE(coded.attend(x.row(x.q, 0)), exact.attend(x.row(x.q, 0))) << "int8 values, from the first pair on";
}

TEST(VectorCache, calls_out_of_order_and_bad_vectors_are_refused_and_change_nothing) {
  const Vectors x(4);
  for (const std::string method :
       {"exact", "turboquant_mse(capacity=2)", "qjl(two_stream=true,outliers=5,calibration=2)"}) {
    SCOPED_TRACE(method);
    VectorCache cache = make(method);
    x.append(cache, {0, 2});
    const auto before = cache.state();
    const auto refused = [&]<class Error>(Error, auto&& call, auto&&... parts) {
      try {
        call();
        ADD_FAILURE() << "it was accepted";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr(parts)...));
      }
      EXPECT_EQ(cache.state(), before);
      EXPECT_EQ(cache.size(), 2);
    };
    const ShapeError shape("");
    const ValueError value("");
    const UnsupportedOperation order("");
    const auto k = x.row(x.k, 2), v = x.row(x.v, 2), q = x.row(x.q, 2);
    std::vector<float> bad(q.begin(), q.end());
    refused(
        order, [&] { cache.append_value(v); }, "append_value", "no key waits");
    refused(
        shape, [&] { cache.append_key(k.first(kDim - 1)); }, "key", "got 63", "allowed 64");
    refused(
        shape, [&] { cache.attend(std::span(x.q).first(kDim + 1)); }, "query", "got 65");
    for (float wrong : {NAN, INFINITY, -INFINITY, 1e6f}) {
      bad[7] = wrong;
      refused(
          value, [&] { cache.append_key(bad); }, "key", "at 7", "65519");
    }
    bad[7] = NAN;
    refused(
        value, [&] { cache.attend(bad); }, "query", "nan");

    cache.append_key(k);
    refused(
        order, [&] { cache.append_key(k); }, "append_key", "waits");
    refused(
        order, [&] { (void)cache.attend(q); }, "attend", "waits");
    refused(
        shape, [&] { cache.append_value({}); }, "value", "got 0");
    for (float wrong : {NAN, 1e6f}) {
      bad[7] = wrong;
      refused(
          value, [&] { cache.append_value(bad); }, "value", "at 7");
    }
    // The key still waits, and it is that key.
    cache.append_value(v);
    VectorCache straight = make(method);
    x.append(straight, {0, 3});
    EXPECT_EQ(cache.state(), straight.state());
  }
  VectorCache wide = make("exact(dtype=f32)");
  const std::vector<float> large(kDim, 1e6f);
  wide.append_key(large);
  wide.append_value(large);
  EXPECT_EQ(wide.attend(x.row(x.q, 0)), large);
}

TEST(VectorCache, memory_is_the_formula_of_the_method) {
  const Vectors x(1000, 128);
  const auto bytes = [&](const std::string& method) {
    VectorCache cache = make(method, 128);
    x.append(cache, {0, 1000});
    EXPECT_GE(cache.nbytes(), cache.memory_bytes());
    // One block of each side beyond it, and lists of blocks.
    EXPECT_LE(cache.nbytes(), cache.memory_bytes() * 103 / 100 + 2 * 64 * 256) << method;
    return cache.memory_bytes();
  };
  EXPECT_EQ(bytes("turboquant_prod"), 166000u);
  EXPECT_EQ(bytes("qjl"), 148000u);
  EXPECT_EQ(bytes("turboquant_mse"), 164000u);
  EXPECT_EQ(bytes("turboquant_prod(two_stream=true,outliers=32,outlier_bits=3)"), 1000u * (44 + 130));

  VectorCache calibrating = make("turboquant_mse(two_stream=true,outliers=32,outlier_bits=3)", 128);
  x.append(calibrating, {0, 199});
  EXPECT_EQ(calibrating.memory_bytes(), 199u * (2 * 128 + 130)) << "keys wait in fp16";
  x.append(calibrating, 199);
  EXPECT_EQ(calibrating.memory_bytes(), 200u * (12 + 24 + 4 + 130));
  calibrating.reset();
  EXPECT_EQ(calibrating.memory_bytes(), 0u);
  EXPECT_EQ(calibrating.nbytes(), 0u);
}

TEST(VectorCache, the_oldest_pair_makes_room) {
  constexpr int kCapacity = 70;
  const int n = sized(20 * kCapacity, 5 * kCapacity);
  const Vectors x(n);
  for (const std::string method : {"exact", "turboquant_rvq", "turboquant_mse", "turboquant_prod", "qjl"}) {
    SCOPED_TRACE(method);
    VectorCache cache = make(method + "(capacity=70)");
    EXPECT_EQ(cache.capacity(), kCapacity);
    size_t most = 0;
    for (int i = 0; i < n; ++i) {
      x.append(cache, i);
      ASSERT_EQ(cache.size(), std::min(i + 1, kCapacity));
      most = std::max(most, cache.nbytes());
      if (i + 1 < kCapacity || i % 37 != 0) continue;
      VectorCache fresh = make(method);
      x.append(fresh, {i + 1 - kCapacity, i + 1});
      const auto q = x.row(x.q, i);
      EXPECT_LE(relative_l2(cache.attend(q), fresh.attend(q)), kRounding) << "after pair " << i;
      EXPECT_EQ(cache.memory_bytes(), fresh.memory_bytes());
    }
    // At most a block of each side more than what 70 pairs need.
    VectorCache full = make(method);
    x.append(full, {0, 192});
    EXPECT_LE(most, full.nbytes());
  }
}

// What the first pairs decided stays, also when they have left or leave before there are enough of them.
TEST(VectorCache, capacity_keeps_what_was_learned) {
  const Vectors x(200);
  for (const std::string method : {"turboquant_mse", "turboquant_prod", "qjl"}) {
    for (int capacity : {7, 20, 33}) {
      SCOPED_TRACE(testing::Message() << method << ", capacity " << capacity);
      const std::string options = "two_stream=true,outliers=5,calibration=20";
      VectorCache cache = make(method + "(" + options + ",capacity=" + std::to_string(capacity) + ")"),
                  whole = make(method + "(" + options + ")");
      EXPECT_TRUE(cache.learns_from_pairs());
      x.append(cache, {0, 200});
      x.append(whole, {0, 200});
      EXPECT_EQ(cache.memory_bytes(), whole.memory_bytes() / 200 * static_cast<size_t>(capacity));
      whole.pop_front(200 - capacity);
      EXPECT_EQ(whole.size(), capacity);
      EXPECT_EQ(cache.state(), whole.state());
      EXPECT_EQ(cache.attend(x.row(x.q, 3)), whole.attend(x.row(x.q, 3)));
    }
  }
}

TEST(VectorCache, state_round_trip_and_reset) {
  const Vectors x(120), other(120, kDim, 99);
  for (const std::string& method : all_methods()) {
    SCOPED_TRACE(method);
    VectorCache cache = make(method), restored = make(method);
    for (int n : {0, 10, 100}) {
      x.append(cache, {cache.size(), n});
      restored.append_key(other.row(other.k, 0));
      restored.set_state(cache.state());  // the key that waited belonged to other pairs
      EXPECT_EQ(restored.size(), n);
      EXPECT_EQ(restored.state(), cache.state());
      EXPECT_EQ(restored.attend(x.row(x.q, 1)), cache.attend(x.row(x.q, 1)));
    }
    x.append(restored, {100, 120});
    x.append(cache, {100, 120});
    EXPECT_EQ(restored.state(), cache.state());
    auto damaged = cache.state();
    damaged.back() ^= std::byte{1};
    EXPECT_THROW(restored.set_state(damaged), FormatError);
    EXPECT_EQ(restored.state(), cache.state());

    cache.append_key(x.row(x.k, 0));
    cache.reset();
    EXPECT_EQ(cache.size(), 0);
    EXPECT_THAT(cache.attend(x.row(x.q, 0)), Each(0.0f));
    VectorCache fresh = make(method);
    other.append(fresh, {0, 60});
    other.append(cache, {0, 60});
    EXPECT_EQ(cache.state(), fresh.state());
  }
  KVCache two(parse_method("qjl"), {.dim_k = kDim, .dim_v = kDim});
  const Sequences rows(two.shape(), 2, 5);
  rows.store(two, {0, 5});
  VectorCache one = make("qjl");
  x.append(one, {0, 3});
  const auto before = one.state();
  EXPECT_THROW(one.set_state(two.state()), FormatError) << "two sequences";
  EXPECT_EQ(one.state(), before);

  VectorCache full = make("qjl"), small = make("qjl(capacity=10)"), last = make("qjl");
  x.append(full, {0, 30});
  small.set_state(full.state());
  EXPECT_EQ(small.size(), 10) << "the oldest make room here too";
  x.append(last, {20, 30});
  EXPECT_LE(relative_l2(small.attend(x.row(x.q, 0)), last.attend(x.row(x.q, 0))), kRounding);
}

TEST(VectorCache, methods_that_do_not_code_pair_by_pair_are_refused_by_name) {
  for (const std::string method : {"kivi", "kivi(flush_rule=aligned_window,residual=0)", "kivi_sink", "h2o", "snapkv",
                                   "streaming_llm", "snapkv+turboquant_mse"}) {
    SCOPED_TRACE(method);
    try {
      make(method);
      ADD_FAILURE() << "it was accepted";
    } catch (const QuantizerConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("method"), HasSubstr(method.substr(0, method.find_first_of("(+")))));
    }
  }
  EXPECT_THROW(make("qjl", 0), QuantizerConfigError);
}

TEST(SlidingWindow, equals_a_fresh_cache_of_the_last_pairs_after_every_append) {
  for (const std::string& method : all_methods()) {
    for (int window : {1, 7, 64, 100}) {
      if (kSanitized && window != 7) continue;
      SCOPED_TRACE(testing::Message() << method << ", window " << window);
      const Vectors x(3 * window);
      SlidingWindowKVCache cache(make(method), window);
      EXPECT_THAT(cache.attend(x.row(x.q, 0)), Each(0.0f));
      for (int i = 0; i < 3 * window; ++i) {
        x.append(cache, i);
        ASSERT_EQ(cache.size(), std::min(i + 1, window));
        // Every state of a window of 64 and more takes long to make anew.
        if (window >= 64 && i % 11 != 0 && i != window && i != window - 1) continue;
        VectorCache fresh = make(method);
        x.append(fresh, {std::max(0, i + 1 - window), i + 1});
        const auto q = x.row(x.q, i);
        ASSERT_LE(relative_l2(cache.attend(q), fresh.attend(q)), kRounding) << "after pair " << i;
        ASSERT_EQ(cache.memory_bytes(), fresh.memory_bytes()) << "after pair " << i;
        if (fresh.learns_from_pairs()) {
          ASSERT_EQ(cache.inner().state(), fresh.state()) << "after pair " << i;
        }
      }
      const size_t ring = make(method).learns_from_pairs() ? static_cast<size_t>(window * 2 * kDim) * sizeof(float) : 0;
      EXPECT_EQ(cache.total_bytes(), cache.memory_bytes() + ring);
      cache.reset();
      EXPECT_EQ(cache.size(), 0);
      EXPECT_EQ(cache.total_bytes(), 0u);
      x.append(cache, 0);
      EXPECT_EQ(cache.size(), 1);
    }
  }
}

TEST(SlidingWindow, a_capacity_below_the_window_still_holds) {
  const Vectors x(60);
  for (const std::string method :
       {"turboquant_mse(capacity=9)", "qjl(two_stream=true,outliers=5,calibration=20,capacity=9)"}) {
    SCOPED_TRACE(method);
    SlidingWindowKVCache cache(make(method), 25);
    for (int i = 0; i < 60; ++i) {
      x.append(cache, i);
      ASSERT_EQ(cache.size(), std::min(i + 1, 9));
      VectorCache fresh = make(method);
      x.append(fresh, {std::max(0, i + 1 - 25), i + 1});
      const auto q = x.row(x.q, i);
      ASSERT_LE(relative_l2(cache.attend(q), fresh.attend(q)), kRounding) << "after pair " << i;
      ASSERT_EQ(cache.size(), std::min(i + 1, 9));
    }
  }
}

TEST(SlidingWindow, bad_calls_are_refused_and_change_nothing) {
  const Vectors x(20);
  for (int window : {0, -3}) {
    EXPECT_THROW(SlidingWindowKVCache(make("qjl"), window), QuantizerConfigError);
  }
  for (const std::string& method : {kOneStream[3], kTwoStreams[0]}) {
    SCOPED_TRACE(method);
    SlidingWindowKVCache cache(make(method), 5);
    x.append(cache, {0, 8});
    const auto out = cache.attend(x.row(x.q, 0));
    EXPECT_THROW(cache.append_value(x.row(x.v, 9)), std::runtime_error);
    cache.append_key(x.row(x.k, 9));
    EXPECT_THROW(cache.append_key(x.row(x.k, 9)), std::runtime_error);
    EXPECT_THROW(cache.append_value(std::vector<float>(kDim, 1e6f)), ValueError);
    EXPECT_THROW(cache.append_value(std::vector<float>(kDim, NAN)), ValueError);
    EXPECT_THROW(cache.append_value(x.row(x.v, 9).first(3)), ShapeError);
    EXPECT_THROW(cache.attend(x.row(x.q, 0)), std::runtime_error) << "a key waits";
    EXPECT_EQ(cache.size(), 5);
    cache.append_value(x.row(x.v, 9));
    SlidingWindowKVCache straight(make(method), 5);
    x.append(straight, {0, 8});
    EXPECT_EQ(straight.attend(x.row(x.q, 0)), out);
    x.append(straight, 9);
    EXPECT_EQ(cache.attend(x.row(x.q, 1)), straight.attend(x.row(x.q, 1)));
  }
  VectorCache used = make("qjl");
  x.append(used, {0, 3});
  EXPECT_EQ(SlidingWindowKVCache(std::move(used), 5).size(), 0) << "a window begins empty";
}

// The first rows of a block were never written in this cache, and its memory holds NaN.
TEST(PopFront, blocks_that_begin_in_their_middle_hold_no_surprise) {
  const LayerShape shape = {.kv_heads = 1, .q_heads = 1, .dim_k = 64, .dim_v = 64};
  const Sequences data(shape, 1, 200);
  const std::string two = "(two_stream=true,outliers=8,calibration=50)";
  for (const std::string name : {"turboquant_mse", "turboquant_prod", "qjl"}) {
    for (const std::string& method : {name, name + two}) {
      SCOPED_TRACE(method);
      const MethodSpec spec = parse_method(method);
      KVCache cache(spec, shape, arena_of_nan(spec, shape)), restored(spec, shape, arena_of_nan(spec, shape));
      data.store(cache, {0, 90});
      cache.pop_front(1000);
      EXPECT_EQ(cache.size(), 0);
      EXPECT_EQ(cache.used_bytes(), 0u);
      data.store(cache, {90, 127});
      for (Range r : {Range{127, 128}, Range{128, 150}}) {
        restored.set_state(cache.state());
        data.store(cache, r);
        data.store(restored, r);
        EXPECT_EQ(restored.state(), cache.state());
        const DenseRows rows{cache.size(), cache.decode(Side::key), cache.decode(Side::value)};
        const auto expected = reference_attention(shape, rows, &data.q[150 * 64], 1, {});
        EXPECT_LE(relative_l2(cache.attend(data.attend_in({150, 151})), expected), 1e-3);
        EXPECT_LE(relative_l2(restored.attend(data.attend_in({150, 151})), expected), 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace veloxquant::test
