#include "io/capture.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/text.h"
#include "io/file.h"
#include "io/npy.h"
#include "kernels/kernels.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using nlohmann::json;

json read_meta(const std::string& path) {
  constexpr size_t kLargestMeta = size_t{1} << 20;
  const std::vector<std::byte> bytes = read_file(path, kLargestMeta);
  const char* text = reinterpret_cast<const char*>(bytes.data());
  try {
    return json::parse(text, text + bytes.size());
  } catch (const json::parse_error& error) {
    throw FormatError(fmt::format("{}: not valid JSON at byte {}", path, error.byte));
  }
}

/// A number of a JSON object that must be there and in range.
double number(const json& object, const char* name, double min, double max, const std::string& where) {
  const auto it = object.find(name);
  if (it == object.end()) throw FormatError(fmt::format("{}: {} is missing", where, name));
  if (!it->is_number()) {
    throw FormatError(fmt::format("{}: {} is of type {}, wanted a number", where, name, it->type_name()));
  }
  const double value = it->get<double>();
  if (!(value >= min && value <= max)) {
    throw FormatError(fmt::format("{}: {} is {}, wanted {}..{}", where, name, value, min, max));
  }
  return value;
}

int integer(const json& object, const char* name, int min, int max, const std::string& where) {
  const double value = number(object, name, min, max, where);
  if (value != std::floor(value)) throw FormatError(fmt::format("{}: {} is {}, wanted an integer", where, name, value));
  return static_cast<int>(value);
}

CapturedLayer layer_of(const json& entry, int tokens, const std::string& where) {
  constexpr int kMostHeads = 1024, kLargestHead = 4096, kMostLayers = 10000;
  if (!entry.is_object()) throw FormatError(fmt::format("{}: found {}, wanted an object", where, entry.type_name()));
  CapturedLayer layer;
  layer.tokens = tokens;
  layer.shape.layer = integer(entry, "layer", 0, kMostLayers, where);
  layer.shape.q_heads = integer(entry, "n_head", 1, kMostHeads, where);
  layer.shape.kv_heads = integer(entry, "n_head_kv", 1, kMostHeads, where);
  layer.shape.dim_k = layer.shape.dim_v = integer(entry, "head_dim", 1, kLargestHead, where);
  if (layer.shape.q_heads % layer.shape.kv_heads != 0) {
    throw FormatError(fmt::format("{}: n_head is {}, wanted a multiple of n_head_kv = {}", where, layer.shape.q_heads,
                                  layer.shape.kv_heads));
  }
  layer.scale = static_cast<float>(number(entry, "scale", 1e-6, 1e6, where));
  layer.softcap = entry.contains("softcap") ? static_cast<float>(number(entry, "softcap", 0, 1e6, where)) : 0;
  if (entry.contains("max_bias")) number(entry, "max_bias", 0, 0, where);  // ALiBi: no model here has it
  return layer;
}

void check_finite(const std::vector<float>& x, const NpyArray& array, const std::string& path) {
  if (kernels::all_finite(x.data(), static_cast<int64_t>(x.size()))) return;
  const auto bad = std::ranges::find_if(x, [](float value) { return !std::isfinite(value); });
  const int64_t i = bad - x.begin();
  const int64_t heads = array.shape[1], dim = array.shape[2];
  throw FormatError(fmt::format("{}: {} at token {}, head {}, channel {}; wanted finite numbers", path, *bad,
                                i / (heads * dim), i / dim % heads, i % dim));
}

/// One array of one layer, checked, with its rows as f32.
NpyArray read_side(const std::string& path, const std::array<int64_t, 3>& shape, std::vector<float>& rows) {
  NpyArray array = read_npy(path);
  if (array.type == NpyType::i32) throw FormatError(path + ": element type is int32, wanted float16 or float32");
  if (!std::ranges::equal(array.shape, shape)) {
    throw FormatError(fmt::format("{}: shape is {}, wanted {}", path, shape_text(array.shape), shape_text(shape)));
  }
  rows.resize(array.data.size() / size_of(array.type));
  kernels::to_f32(array.data.data(), static_cast<int64_t>(rows.size()),
                  array.type == NpyType::f16 ? DType::f16 : DType::f32, rows.data());
  check_finite(rows, array, path);
  return array;
}

void read_tensors(CapturedLayer& layer, const std::string& folder) {
  const auto path = [&](std::string_view what) {
    return fmt::format("{}/layer{:02d}_{}.npy", folder, layer.shape.layer, what);
  };
  const int64_t tokens = layer.tokens, dim = layer.shape.dim_k;
  read_side(path("q"), {tokens, layer.shape.q_heads, dim}, layer.q);
  NpyArray k = read_side(path("k"), {tokens, layer.shape.kv_heads, dim}, layer.k);
  NpyArray v = read_side(path("v"), {tokens, layer.shape.kv_heads, dim}, layer.v);
  if (k.type != v.type) {
    throw FormatError(fmt::format("{}: element type is {}, wanted {} as in {}", path("v"), to_string(v.type),
                                  to_string(k.type), path("k")));
  }
  layer.shape.input = k.type == NpyType::f16 ? DType::f16 : DType::f32;
  layer.k_raw = std::move(k.data);
  layer.v_raw = std::move(v.data);
}

}  // namespace

Tensor CapturedLayer::rows(Side side, Range range) const {
  const int dim = side == Side::key ? shape.dim_k : shape.dim_v;
  const size_t token_bytes = static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(dim) * size_of(shape.input);
  const std::byte* data = (side == Side::key ? k_raw : v_raw).data() + static_cast<size_t>(range.begin) * token_bytes;
  return Tensor::bshd(data, shape.input, 1, range.size(), shape.kv_heads, dim);
}

Tensor CapturedLayer::queries(Range range) const {
  const float* data = q.data() + int64_t{range.begin} * shape.q_heads * shape.dim_k;
  return Tensor::bshd(data, DType::f32, 1, range.size(), shape.q_heads, shape.dim_k);
}

std::vector<CapturedLayer> read_capture(const std::string& folder) {
  constexpr int kMostTokens = 1 << 20;
  const std::string path = folder + "/meta.json";
  const json meta = read_meta(path);
  if (!meta.is_object()) throw FormatError(fmt::format("{}: found {}, wanted an object", path, meta.type_name()));
  const int tokens = integer(meta, "tokens", 1, kMostTokens, path);
  const auto entries = meta.find("layers");
  if (entries == meta.end() || !entries->is_array() || entries->empty()) {
    throw FormatError(path + ": layers is missing or empty, wanted a list of layers");
  }
  std::vector<CapturedLayer> layers;
  for (const json& entry : *entries) {
    layers.push_back(layer_of(entry, tokens, fmt::format("{}: layers[{}]", path, layers.size())));
  }
  for (CapturedLayer& layer : layers) read_tensors(layer, folder);
  return layers;
}

}  // namespace veloxquant
