// Text as a model's config.json: refused with reasons, or a description that holds.
#include <string_view>

#include "core/check.h"
#include "veloxquant/errors.h"
#include "veloxquant/model_desc.h"

using namespace veloxquant;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ModelDesc model;
  try {
    model = model_from_config({reinterpret_cast<const char*>(data), size});
  } catch (const QuantizerConfigError& error) {
    VQ_CHECK(!error.problems().empty());
    for (const std::string& problem : error.problems()) VQ_CHECK(!problem.empty());
    return 0;
  }
  check(model);  // throws: a crash
  for (const LayerShape& shape : attention_shapes(model)) VQ_CHECK(shape.q_heads % shape.kv_heads == 0);
  return 0;
}
