// What kivi lends to methods that are KIVI with something added.
#pragma once

#include "veloxquant/registry.h"

namespace veloxquant {

std::vector<OptionSpec> kivi_options();
std::vector<Telemetry> kivi_telemetry();
Recipe kivi_recipe(const Options& options, const BuildContext& context);

}  // namespace veloxquant
