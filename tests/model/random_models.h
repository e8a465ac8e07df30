// Models of any architecture with random f32 weights, made in memory from metadata alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "hosts/llama/host.h"

namespace veloxquant::llama::test {

using MetadataValue =
    std::variant<uint32_t, float, bool, std::string, std::vector<uint32_t>, std::vector<float>, std::monostate>;
/// Keys below "<architecture>."; a key that begins with "/" stands for itself. std::monostate takes a key out.
using Metadata = std::map<std::string, MetadataValue>;

using Numbers = std::vector<uint32_t>;

inline constexpr int kVocabulary = 128;
inline constexpr uint32_t kContext = 512;
inline constexpr uint32_t kWindow = 16;

/// What every model has, whether its architecture reads it or not: 2 layers, 4 heads of 16 on 2 KV heads, windows of
/// 16, 2 experts.
Metadata common_metadata();

// Changes for architectures of some kinds.

/// Attention in the first layer, recurrence in the second.
Metadata one_recurrent();
/// Multi-head latent attention: keys of 32 latent channels and 8 with RoPE, values the latent ones.
Metadata latent();
/// nemotron_h: a layer with attention, a recurrent one, one of feed-forward alone.
Metadata attention_recurrence_neither();
/// gemma4: heads of 16 channels and a window, heads of 32 without, then two layers that read those caches.
Metadata shared_caches();

/// How a host gets the model. `changes` go over the common metadata.
HostOptions random_model(const std::string& architecture, const Metadata& changes = {});

/// The same tokens at each call.
std::vector<Token> random_tokens(int count);

}  // namespace veloxquant::llama::test
