// What a comparison of implementations found, as text, as JSON and as a page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sim/parity/parity.h"
#include "sim/studies/page.h"

namespace tpce::sim {

// A table a pair for people; ends with a line end.
std::string to_table(const Parity& parity);

// docs/parity.md lists the keys.
nlohmann::ordered_json to_json(const Parity& parity);

// Tables and histograms; svg_of() throws where gnuplot is missing.
Page to_page(const Parity& parity);

}  // namespace tpce::sim
