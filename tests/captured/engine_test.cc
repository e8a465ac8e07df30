// The engine's promises on captured tensors of a real model (../shared/data; skipped where they are missing).
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "io/capture.h"
#include "support/sanitizer.h"
#include "veloxquant/cache.h"

namespace veloxquant::test {
namespace {

const std::string kFolder = std::string(VQ_SHARED_DIR) + "/data/smollm2_135m";

class Captured : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << "NO CAPTURED TENSORS at " << kFolder;
  }
  static const std::vector<CapturedLayer>& layers() {
    static const std::vector<CapturedLayer> all = read_capture(kFolder);
    return all;
  }
  static AttendIn attend_in(const CapturedLayer& layer, Range r) {
    AttendIn in;
    in.q = layer.queries(r);
    in.scale = layer.scale;
    return in;
  }
  static void step(KVCache& cache, const CapturedLayer& layer, Range r, std::vector<float>* out = nullptr) {
    const auto o = cache.step(attend_in(layer, r), layer.rows(Side::key, r), layer.rows(Side::value, r));
    if (out) out->insert(out->end(), o.begin(), o.end());
  }
};

INSTANTIATE_TEST_SUITE_P(Methods, Captured,
                         testing::Values("exact", "kivi", "kivi(flush_rule=aligned_window)", "kivi(bits=4)",
                                         "turboquant_rvq"),
                         [](const auto& info) { return "method" + std::to_string(info.index); });

TEST_P(Captured, any_chunking_gives_equal_bytes_and_equal_following_steps) {
  const int prefill = sized(1100, 300);
  for (const CapturedLayer& layer : layers()) {
    if (kSanitized && &layer != &layers().front()) break;
    std::vector<std::byte> bytes;
    std::vector<float> next;
    for (int chunk : {prefill, 256, 37, 1}) {
      KVCache cache(parse_method(GetParam()), layer.shape);
      for (int at = 0; at < prefill; at += chunk) step(cache, layer, {at, std::min(prefill, at + chunk)});
      const auto state = cache.state();
      std::vector<float> steps;
      for (int t = prefill; t < prefill + 16; ++t) step(cache, layer, {t, t + 1}, &steps);
      if (chunk == prefill) {
        bytes = state;
        next = steps;
        continue;
      }
      EXPECT_TRUE(state == bytes) << "layer " << layer.shape.layer << ", chunks of " << chunk;
      EXPECT_TRUE(steps == next) << "layer " << layer.shape.layer << ", chunks of " << chunk;
    }
  }
}

TEST_P(Captured, any_number_of_threads_gives_equal_bits) {
  const CapturedLayer& layer = layers().back();
  KVCache cache(parse_method(GetParam()), layer.shape);
  const int prefill = sized(1200, 300);
  step(cache, layer, {0, prefill});
  for (Range r : {Range{prefill, prefill + 1}, Range{prefill + 1, prefill + 101}}) {
    cache.append(layer.rows(Side::key, r), layer.rows(Side::value, r));
    const AttendIn in = attend_in(layer, r);
    const int64_t head = layer.shape.dim_v, token = head * layer.shape.q_heads;
    std::vector<std::vector<float>> outs;
    for (int nth : {1, 2, 5}) {
      std::vector<float> out(static_cast<size_t>(r.size() * token));
      std::vector<std::thread> threads;
      for (int ith = 0; ith < nth; ++ith) {
        threads.emplace_back([&, ith] { cache.attend(in, {out.data(), token * r.size(), token, head}, ith, nth); });
      }
      for (std::thread& thread : threads) thread.join();
      outs.push_back(std::move(out));
    }
    EXPECT_TRUE(outs[0] == outs[1] && outs[0] == outs[2]);
    cache.commit();
  }
}

}  // namespace
}  // namespace veloxquant::test
