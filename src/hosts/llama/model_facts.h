// Reads what refuse_model judges.
#pragma once

#include <string>

#include "hosts/llama/graph_rules.h"

struct llama_model;

namespace veloxquant::llama {

ModelFacts read_facts(const llama_model& model, const std::string& path);

}  // namespace veloxquant::llama
