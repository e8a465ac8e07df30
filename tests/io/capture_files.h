// Makes .npy files and folders of captured tensors for tests.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/half.h"

namespace veloxquant::testing_files {

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "veloxquant-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(std::string_view name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  size_t entries() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {})); }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  ASSERT_TRUE(out.flush()) << path;
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The bytes of a .npy file of format `major`.0 with this header text (padded as NumPy does) and data.
inline std::string npy(std::string header, std::string_view data, int major = 1) {
  const size_t start = major == 1 ? 10 : 12;
  while ((start + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (size_t i = 0; i < start - 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + std::string(data);
}

inline std::string npy_header(std::string_view descr, std::string_view shape) {
  return "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': " + std::string(shape) + ", }";
}

/// f16 numbers between -1 and 1 that look random and are always the same.
inline std::string f16_data(size_t count, uint32_t seed) {
  std::string data;
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const uint16_t h = f16_from_f32(static_cast<float>(seed >> 8) * 0x1p-23f - 1);
    data += static_cast<char>(h & 0xff);
    data += static_cast<char>(h >> 8);
  }
  return data;
}

struct CaptureShape {
  int tokens = 512, q_heads = 2, kv_heads = 1, dim = 16;
  std::vector<int> layers = {0, 4};
};

inline std::string meta_text(const CaptureShape& shape) {
  std::string layers;
  for (const int layer : shape.layers) {
    layers += std::string(layers.empty() ? "" : ",") + "{\"layer\":" + std::to_string(layer) +
              ",\"n_head\":" + std::to_string(shape.q_heads) + ",\"n_head_kv\":" + std::to_string(shape.kv_heads) +
              ",\"head_dim\":" + std::to_string(shape.dim) + ",\"scale\":0.25,\"softcap\":0,\"max_bias\":0}";
  }
  return "{\"tokens\":" + std::to_string(shape.tokens) + ",\"layers\":[" + layers + "]}";
}

inline std::string tensor_file(int tokens, int heads, int dim, uint32_t seed) {
  const std::string shape =
      "(" + std::to_string(tokens) + ", " + std::to_string(heads) + ", " + std::to_string(dim) + ")";
  return npy(npy_header("<f2", shape), f16_data(static_cast<size_t>(tokens) * heads * dim, seed));
}

inline std::string layer_file(int layer, std::string_view what) {
  return std::string(layer < 10 ? "layer0" : "layer") + std::to_string(layer) + "_" + std::string(what) + ".npy";
}

inline void write_capture(const TemporaryFolder& folder, const CaptureShape& shape = {}) {
  write_text(folder.file("meta.json"), meta_text(shape));
  for (const int layer : shape.layers) {
    const auto seed = static_cast<uint32_t>(layer);
    write_text(folder.file(layer_file(layer, "q")), tensor_file(shape.tokens, shape.q_heads, shape.dim, seed + 1));
    write_text(folder.file(layer_file(layer, "k")), tensor_file(shape.tokens, shape.kv_heads, shape.dim, seed + 2));
    write_text(folder.file(layer_file(layer, "v")), tensor_file(shape.tokens, shape.kv_heads, shape.dim, seed + 3));
  }
}

}  // namespace veloxquant::testing_files
