// Reads what refuse_model judges.
#pragma once

#include <set>
#include <string>

#include "hosts/llama/graph_rules.h"

struct llama_model;

namespace veloxquant::llama {

/// Throws std::runtime_error where the header can't be read.
std::set<std::string> read_tensor_names(const std::string& path);
ModelFacts read_facts(const llama_model& model, std::set<std::string> tensors);

}  // namespace veloxquant::llama
