#include "kernels/instruction_set.h"

#include <cstdint>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/targets.h"
#include "veloxquant/errors.h"

#include "hwy/highway.h"

namespace veloxquant::kernels {
namespace {

struct Named {
  int64_t target;
  std::string_view name;
};
constexpr Named kNames[] = {{HWY_AVX3_DL, "avx512_vnni"}, {HWY_AVX3, "avx512"},   {HWY_AVX2, "avx2"},
                            {HWY_SSE4, "sse4"},           {HWY_SSSE3, "ssse3"},   {HWY_NEON, "neon"},
                            {HWY_SCALAR, "baseline"},     {HWY_EMU128, "baseline"}};

std::string_view name_of(int64_t target) {
  for (const Named& named : kNames) {
    if (named.target == target) return named.name;
  }
  return "other";
}

void read_environment() {
  const char* wanted = std::getenv("VELOXQUANT_ISA");
  if (!wanted || !*wanted || use_instruction_set(wanted)) return;
  throw ValueError(fmt::format("VELOXQUANT_ISA is '{}', this computer has {}", wanted, fmt::join(instruction_sets(), ", ")));
}

}  // namespace

std::string_view instruction_set() {
  // The best of those that are switched on, in the order of the targets' bits.
  const int64_t on = hwy::SupportedTargets() & HWY_TARGETS;
  return name_of(on & -on);
}

std::vector<std::string_view> instruction_sets() {
  std::vector<std::string_view> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.push_back(name_of(target));
  return names;
}

bool use_instruction_set(std::string_view name) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name_of(target) != name) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    return true;
  }
  return false;
}

void obey_environment() {
  static const bool done = (read_environment(), true);
  static_cast<void>(done);
}

}  // namespace veloxquant::kernels
