// Integer arithmetic against fp32 arithmetic on the same codes, on captured tensors of two real models, attention sinks
// included.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "io/capture.h"
#include "veloxquant/cache.h"

namespace veloxquant::test {
namespace {

constexpr int kSteps = 32;

/// Outputs of the last kSteps tokens, one by one.
std::vector<float> last_steps(const CapturedLayer& layer, const std::string& method, const char* precision) {
  const std::string set = std::string("attend_precision=") + precision;
  KVCache cache(parse_method(method, std::span(&set, 1)), layer.shape);
  const int prefill = layer.tokens - kSteps;
  cache.append(layer.rows(Side::key, {0, prefill}), layer.rows(Side::value, {0, prefill}));
  std::vector<float> out;
  for (int t = prefill; t < layer.tokens; ++t) {
    AttendIn in;
    in.q = layer.queries({t, t + 1});
    in.scale = layer.scale;
    in.softcap = layer.softcap;
    const auto o = cache.step(in, layer.rows(Side::key, {t, t + 1}), layer.rows(Side::value, {t, t + 1}));
    out.insert(out.end(), o.begin(), o.end());
  }
  return out;
}

struct Difference {
  double relative_l2, max_over_rms, power;
};
Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
  double power = 0, all = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    power += d * d;
    all += static_cast<double>(b[i]) * b[i];
    largest = std::max(largest, std::fabs(d));
  }
  return {std::sqrt(power / all), largest / std::sqrt(all / static_cast<double>(a.size())), power};
}

class CapturedArithmetic : public testing::TestWithParam<const char*> {};

TEST_P(CapturedArithmetic, two_terms_agree_to_rounding_and_one_costs_little) {
  for (const char* model : {"smollm2_135m", "gemma3_270m"}) {
    const std::string folder = std::string(VQ_SHARED_DIR) + "/data/" + model;
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "NO CAPTURED TENSORS at " << folder;
    double codec_power = 0, added_power = 0;
    for (const CapturedLayer& layer : read_capture(folder)) {
      SCOPED_TRACE(std::string(model) + ", layer " + std::to_string(layer.shape.layer));
      const auto in_float = last_steps(layer, GetParam(), "float"), in_two = last_steps(layer, GetParam(), "2term"),
                 fast = last_steps(layer, GetParam(), "fast"), exact = last_steps(layer, "exact", "float");
      EXPECT_NE(in_float, in_two) << "no tile was sealed";
      const Difference two = difference(in_two, in_float);
      EXPECT_LE(two.relative_l2, 1e-3);
      EXPECT_LE(two.max_over_rms, 1e-2);
      codec_power += difference(in_float, exact).power;
      added_power += difference(fast, in_float).power;  // independent of the codec's error
      std::printf("%-12s layer %2d  2term: relative L2 %.1e, max/rms %.1e  int8: relative L2 %.1e, codec %.1e\n", model,
                  layer.shape.layer, two.relative_l2, two.max_over_rms, difference(fast, in_float).relative_l2,
                  difference(in_float, exact).relative_l2);
    }
    std::printf("%-12s int8 adds %.2f %% of the codec's error power\n", model, 100 * added_power / codec_power);
    EXPECT_LE(added_power, 0.02 * codec_power) << model;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, CapturedArithmetic,
                         testing::Values("kivi", "kivi(bits=4)", "kivi(bits=4,group=64)", "kivi(bits=3,group=128)",
                                         "turboquant_rvq", "turboquant_rvq(value_codec=turboquant_mse)",
                                         "turboquant_rvq(bits=1,value_codec=turboquant_mse)"),
                         [](const auto& info) { return "method" + std::to_string(info.index); });

}  // namespace
}  // namespace veloxquant::test
