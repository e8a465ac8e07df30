#include "cli/app.h"
#include "hosts/llama/host.h"

namespace veloxquant::cli {

std::string llama_versions() { return llama::versions(); }

}  // namespace veloxquant::cli
