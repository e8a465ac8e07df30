// Which instruction set the kernels run on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace veloxquant::kernels {

/// Name of the one that runs: avx512_vnni, avx512, avx2, sse4, ssse3, baseline or neon.
std::string_view instruction_set();
/// Those that this computer can run, best first.
std::vector<std::string_view> instruction_sets();
/// Runs the named one from now on; false when this computer or build does not have it. Codecs made before keep the one
/// they were made with.
bool use_instruction_set(std::string_view name);
/// The first call obeys VELOXQUANT_ISA; throws ValueError when it names none that is there.
void obey_environment();

}  // namespace veloxquant::kernels
