// Binds the pages of studies into one HTML file that needs nothing beside it.
#pragma once

#include <filesystem>
#include <string>

namespace tpce::sim {

constexpr const char* kStudiesTitle = "Cross entropy over shards: what rounding does to it";

// folder: that of one study, or one whose subfolders are. The studies come in the order of studies(), others after them
// by name. Throws std::invalid_argument that names the folder where no page.md is found, and the file where a page or a
// picture that it shows cannot be read.
std::string report_html(const std::filesystem::path& folder, const std::string& title = kStudiesTitle);

}  // namespace tpce::sim
