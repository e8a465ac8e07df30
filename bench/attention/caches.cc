#include "caches.h"

#include <algorithm>

#include "core/check.h"
#include "veloxquant/codecs.h"

namespace veloxquant::bench {
namespace {

constexpr int kAffineGroup = 32;

MethodDef local_method(std::string_view name, std::function<Recipe(const BuildContext&)> build) {
  MethodDef def;
  def.name = name;
  def.build = [build = std::move(build)](const Options&, const BuildContext& context) { return build(context); };
  return def;
}

Recipe codebook(const BuildContext& context, int bits) {
  const auto coded = [&](Side side, int dim) {
    return lloyd_row({.dim = dim,
                      .bits = bits,
                      .rotation = Rotation::rht,
                      .seed = context.seed,
                      .stream = static_cast<uint32_t>(side),
                      .role = context.role(side)});
  };
  return {.placement = direct(),
          .key = coded(Side::key, context.shape.dim_k),
          .value = coded(Side::value, context.shape.dim_v)};
}

Recipe affine(const BuildContext& context, int bits) {
  return {.placement = aligned_window(kAffineGroup, 0),
          .key = affine_block(context.shape.dim_k, bits, kAffineGroup, context.role(Side::key)),
          .value = affine_row(context.shape.dim_v, bits, kAffineGroup, context.role(Side::value))};
}

Recipe int8(const BuildContext& context) {
  return {.placement = direct(),
          .key = int8_row(context.shape.dim_k, context.role(Side::key)),
          .value = int8_row(context.shape.dim_v, context.role(Side::value))};
}

/// Methods nobody would use, because keys and values are coded alike: what a codec costs shows in them.
const std::vector<MethodDef>& local_methods() {
  static const std::vector<MethodDef> methods = {
      local_method("codebook4", [](const BuildContext& context) { return codebook(context, 4); }),
      local_method("codebook3", [](const BuildContext& context) { return codebook(context, 3); }),
      local_method("codebook2", [](const BuildContext& context) { return codebook(context, 2); }),
      local_method("affine4", [](const BuildContext& context) { return affine(context, 4); }),
      local_method("affine2", [](const BuildContext& context) { return affine(context, 2); }),
      local_method("int8", int8),
  };
  return methods;
}

const MethodDef* find_local(const std::string& codec) {
  const auto it = std::ranges::find(local_methods(), codec, &MethodDef::name);
  return it == local_methods().end() ? nullptr : &*it;
}

std::string precision_of(const std::string& arithmetic) { return arithmetic == "int8" ? "fast" : arithmetic; }
std::string arithmetic_of(const MethodSpec& method) {
  if (method.def->name == "exact") return "float";
  const std::string& precision = method.options.choice("attend_precision");
  return precision == "fast" ? "int8" : precision;
}

void append(const Workload& workload, KVCache& cache, int tokens) {
  const int first = cache.offset();
  cache.append(workload.rows(Side::key, first, tokens), workload.rows(Side::value, first, tokens));
}

void store(const Workload& workload, KVCache& cache, int tokens) {
  while (cache.offset() < tokens) append(workload, cache, std::min(Workload::kChunk, tokens - cache.offset()));
  cache.commit();
}

/// Good enough to say how many copies are needed.
double estimated_bytes(const Workload& workload, const MethodSpec& method, int tokens) {
  KVCache cache(method, layer_shape(workload.dim));
  store(workload, cache, Workload::kPeriod);
  return static_cast<double>(cache.used_bytes()) / Workload::kPeriod * tokens;
}

}  // namespace

std::vector<std::string> default_codecs() {
  return {"codebook4", "codebook3", "codebook2",    "affine4", "affine2",
          "int8",      "f16",       "kivi(bits=4)", "kivi",    "turboquant_rvq"};
}

std::vector<Candidate> candidates_of(const std::string& codec, const std::vector<std::string>& arithmetics) {
  if (find_local(codec) == nullptr) return {{codec, arithmetic_of(method_of({codec, {}}))}};
  std::vector<Candidate> candidates;
  for (const std::string& arithmetic : arithmetics) candidates.push_back({codec, arithmetic});
  return candidates;
}

MethodSpec method_of(const Candidate& candidate) {
  if (candidate.codec == "f16") return parse_method("exact(dtype=f16)");
  const MethodDef* local = find_local(candidate.codec);
  if (local == nullptr) return parse_method(candidate.codec);
  MethodSpec method{.text = candidate.codec, .def = local, .options = Options(general_options())};
  const auto problem = method.options.set_text("attend_precision", precision_of(candidate.arithmetic));
  VQ_CHECK(!problem);
  return method;
}

StoredAttention::StoredAttention(const Workload& workload, const Candidate& candidate, int tokens, int queries,
                                 size_t rotating_bytes)
    : output_(static_cast<size_t>(queries) * kQHeads * static_cast<size_t>(workload.dim)) {
  const MethodSpec method = method_of(candidate);
  const size_t copies =
      static_cast<size_t>(static_cast<double>(rotating_bytes) / estimated_bytes(workload, method, tokens)) + 1;
  layers_ = std::make_unique<CacheSet>(method, std::vector<LayerShape>(copies, layer_shape(workload.dim)));
#pragma omp parallel for
  for (int i = 0; i < layers_->size(); ++i) store(workload, (*layers_)[i], tokens);
  packed_bytes_ = (*layers_)[0].used_bytes();
  for (int i = 0; i < layers_->size(); ++i) append(workload, (*layers_)[i], queries);
  in_.q = workload.queries(queries);
  const int64_t head = workload.dim, token = kQHeads * head;
  out_ = {output_.data(), token * queries, token, head};
}

void StoredAttention::call() {
  const KVCache& cache = (*layers_)[next_];
  next_ = (next_ + 1) % layers_->size();
#pragma omp parallel for num_threads(threads_) schedule(static) if (threads_ > 1)
  for (int i = 0; i < threads_; ++i) cache.attend(in_, out_, i, threads_);
}

Encoding::Encoding(const Workload& workload, const Candidate& candidate, int tokens)
    : workload_(workload), tokens_(tokens) {
  // The second layer's rows keep the arena's pages when the first layer is emptied.
  const std::vector<LayerShape> shapes(2, layer_shape(workload.dim, DType::f16));
  layers_ = std::make_unique<CacheSet>(method_of(candidate), shapes);
  store(workload, (*layers_)[1], Workload::kChunk);
}

void Encoding::call() {
  KVCache& cache = (*layers_)[0];
  cache.reset();
  for (int first = 0; first < tokens_; first += Workload::kChunk) {
    cache.append(workload_.rows_f16(Side::key, first, Workload::kChunk),
                 workload_.rows_f16(Side::value, first, Workload::kChunk));
    cache.commit();
  }
}

size_t Encoding::input_bytes() const {
  return size_t{2} * 2 * kKvHeads * static_cast<size_t>(tokens_) * static_cast<size_t>(workload_.dim);
}

}  // namespace veloxquant::bench
