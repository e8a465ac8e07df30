// Dependencies between the folders point one way, checked over #include lines:
//   core < kernels < codec, score, policy, coord < engine < methods < config, io, hosts, cli, server
// A file includes headers of its own rank or a lower one, written relative to src/ or include/.
// Only src/hosts/llama/ knows libllama, methods do not know kernels, public headers know only each other.
#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

struct Layer {
  std::string_view folder;
  int rank;
};

constexpr std::array kLayers = {
    Layer{"core", 0},  Layer{"kernels", 1}, Layer{"codec", 2},   Layer{"score", 2},  Layer{"policy", 2},
    Layer{"coord", 2}, Layer{"engine", 3},  Layer{"methods", 4}, Layer{"config", 5}, Layer{"io", 5},
    Layer{"hosts", 5}, Layer{"cli", 5},     Layer{"server", 5},
};

const Layer* layer_of(std::string_view path) {
  const std::string_view folder = path.substr(0, path.find('/'));
  const auto* found = std::find_if(kLayers.begin(), kLayers.end(), [&](const Layer& l) { return l.folder == folder; });
  return found == kLayers.end() ? nullptr : found;
}

bool is_llama_header(std::string_view header) {
  const std::string_view name = header.substr(header.rfind('/') + 1);  // npos + 1 = 0: the whole
  return name == "llama.h" || name == "llama-cpp.h" || name == "gguf.h" || name.starts_with("ggml");
}

bool may_know_llama(std::string_view file) {
  if (file.find("_rules.") != std::string_view::npos) return false;  // built without libllama
  for (std::string_view folder : {"src/hosts/llama/", "tests/model/", "tests/slow/", "bench/attention/"}) {
    if (file.starts_with(folder)) return true;
  }
  return false;
}

// The header named by an include line, nothing for any other line.
std::optional<std::string> included_header(std::string_view line) {
  const auto skip_spaces = [&] {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front()))) line.remove_prefix(1);
  };
  const auto skip = [&](std::string_view word) {
    skip_spaces();
    if (!line.starts_with(word)) return false;
    line.remove_prefix(word.size());
    return true;
  };
  if (!skip("#") || !skip("include")) return std::nullopt;
  skip_spaces();
  if (line.empty() || (line.front() != '"' && line.front() != '<')) return std::nullopt;
  const size_t end = line.find(line.front() == '"' ? '"' : '>', 1);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(line.substr(1, end - 1));
}

// Why `file` (relative to the project's root) may not include `header`; empty when it may.
std::string violation(std::string_view file, std::string_view header) {
  if (is_llama_header(header)) return may_know_llama(file) ? "" : "only src/hosts/llama/ knows libllama";
  if (header.find("..") != std::string_view::npos) return "headers are named relative to src/, without ..";
  const Layer* to = layer_of(header);
  if (file.starts_with("include/")) return to ? "a public header includes public headers only" : "";
  if (!file.starts_with("src/") || !to) return "";  // tests look everywhere; other headers are libraries'

  const std::string_view inside = file.substr(4);
  const Layer* from = layer_of(inside);
  if (!from) return "the folder has no rank in dependency_rule_test.cc";
  if (to->rank > from->rank) return std::string(from->folder) + " is below " + std::string(to->folder);
  if (from->folder == "methods" && to->folder == "kernels") return "a method never calls a kernel";
  return "";
}

struct Include {
  std::string file, header;
  bool quoted;
};

std::vector<Include> includes_of_tree() {
  std::vector<Include> found;
  const fs::path root = VQ_SOURCE_DIR;
  for (const char* top : {"include", "src", "tests", "bench", "examples"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cc") continue;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        if (auto header = included_header(line)) {
          found.push_back(
              {fs::relative(entry.path(), root).generic_string(), *header, line.find('"') != std::string::npos});
        }
      }
    }
  }
  return found;
}

TEST(DependencyRule, holds_in_the_whole_tree) {
  const std::vector<Include> includes = includes_of_tree();
  ASSERT_GT(includes.size(), 50u) << "the search found too little below " VQ_SOURCE_DIR;
  for (const Include& i : includes) {
    const std::string why = violation(i.file, i.header);
    EXPECT_EQ(why, "") << i.file << " includes " << i.header;
  }
}

// A quoted name that is neither in src/ nor in include/ would be found beside its includer only.
TEST(DependencyRule, quoted_headers_are_named_from_the_root) {
  const fs::path root = VQ_SOURCE_DIR;
  for (const Include& i : includes_of_tree()) {
    const bool ours = i.file.starts_with("src/") || i.file.starts_with("include/");
    if (!ours || !i.quoted || i.header.starts_with("hwy/") || is_llama_header(i.header)) continue;
    EXPECT_TRUE(fs::exists(root / "src" / i.header) || fs::exists(root / "include" / i.header))
        << i.file << " includes \"" << i.header << "\"";
  }
}

TEST(DependencyRule, every_source_folder_has_a_rank) {
  for (const auto& entry : fs::directory_iterator(fs::path(VQ_SOURCE_DIR) / "src")) {
    if (!entry.is_directory()) continue;
    EXPECT_NE(layer_of(entry.path().filename().string()), nullptr) << entry.path();
  }
}

TEST(DependencyRule, bad_samples_are_found) {
  const std::pair<const char*, const char*> samples[] = {
      {"src/core/bits.h", "kernels/table.h"},
      {"src/core/bits.h", "engine/store.h"},
      {"src/kernels/affine.cc", "codec/affine_row.h"},
      {"src/codec/map/hadamard.cc", "engine/store.h"},
      {"src/policy/topk.cc", "methods/method_util.h"},
      {"src/engine/attend.cc", "methods/method_util.h"},
      {"src/engine/attend.cc", "io/snapshot.h"},
      {"src/methods/kivi.cc", "kernels/table.h"},
      {"src/methods/kivi.cc", "cli/report.h"},
      {"src/engine/attend.cc", "../cli/report.h"},
      {"src/engine/attend.cc", "llama.h"},
      {"src/cli/generate_llama.cc", "ggml-cpu.h"},
      {"src/hosts/other/host.cc", "gguf.h"},
      {"src/hosts/llama/graph_rules.h", "ggml.h"},
      {"tests/hosts/graph_test.cc", "llama.h"},
      {"examples/03_llama_generate.cc", "llama.h"},
      {"include/veloxquant/cache.h", "engine/store.h"},
      {"include/veloxquant/cache.h", "ggml.h"},
      {"src/util/strings.h", "core/bits.h"},
  };
  for (const auto& [file, header] : samples) EXPECT_NE(violation(file, header), "") << file << " includes " << header;
}

TEST(DependencyRule, good_samples_pass) {
  const std::pair<const char*, const char*> samples[] = {
      {"src/core/bits.cc", "core/bits.h"},
      {"src/core/bits.cc", "veloxquant/types.h"},
      {"src/core/bits.cc", "vector"},
      {"src/kernels/affine.cc", "hwy/highway.h"},
      {"src/codec/affine_row.cc", "kernels/table.h"},
      {"src/policy/topk.cc", "score/attn_sum.h"},
      {"src/methods/kivi.cc", "codec/affine_row.h"},
      {"src/cli/main.cc", "io/snapshot.h"},
      {"src/hosts/llama/graph.cc", "ggml-cpu.h"},
      {"src/hosts/llama/graph.cc", "llama.h"},
      {"tests/model/logits_test.cc", "llama.h"},
      {"tests/codec/affine_row_test.cc", "kernels/table.h"},
      {"include/veloxquant/cache.h", "veloxquant/types.h"},
  };
  for (const auto& [file, header] : samples) EXPECT_EQ(violation(file, header), "") << file << " includes " << header;
}

TEST(DependencyRule, include_lines_are_read) {
  EXPECT_EQ(included_header("#include <vector>"), "vector");
  EXPECT_EQ(included_header("  #  include \"core/bits.h\"  // why"), "core/bits.h");
  EXPECT_EQ(included_header("#include\t\"a.h\""), "a.h");
  EXPECT_EQ(included_header("// #include \"core/bits.h\""), std::nullopt);
  EXPECT_EQ(included_header("#define HWY_TARGET_INCLUDE \"kernels/affine.cc\""), std::nullopt);
  EXPECT_EQ(included_header("#include HWY_TARGET_INCLUDE"), std::nullopt);
  EXPECT_EQ(included_header(""), std::nullopt);
}

}  // namespace
