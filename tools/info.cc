// tpce info: what this program is, what it runs on, and the bits it computes.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmp.h>
#include <hwy/highway.h>
#include <mpfi.h>
#include <mpfr.h>
#include <openssl/crypto.h>
#include <tbb/version.h>

#include <array>
#include <boost/version.hpp>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "simd/simd_backend.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/fingerprint.h"
#include "tools/methods.h"
#include "tools/output.h"
#include "tools/ranks.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce info
  tpce info --json
  TPCE_TARGET=AVX2 tpce loss capture.safetensors
      forces one of the targets that info lists: the same bits, slower or faster
  tpce info --fingerprint
      the hash of a fixed suite of losses and gradients: equal on every machine, compiler and backend)";

struct InfoCommand {
  bool json = false;
  bool fingerprint = false;
  std::optional<std::string> backend;

  int run() const;
};

struct Cpu {
  std::string model = "unknown";
  std::vector<std::string> features;  // those that a kernel of cross entropy may use
  unsigned threads = std::thread::hardware_concurrency();
};

Cpu read_cpu() {
  constexpr std::array kFeatures{"fma",         "f16c",  "avx2", "avx512f", "avx512bw", "avx512vl",
                                 "avx512_bf16", "asimd", "fphp", "sve",     "sve2",     "bf16"};
  Cpu cpu;
  std::ifstream file("/proc/cpuinfo");
  std::string all_features;
  for (std::string line; std::getline(file, line) && !line.empty();) {  // the first processor
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = colon + 2 < line.size() ? line.substr(colon + 2) : "";
    if (key == "model name") cpu.model = value;
    if (key == "flags" || key == "Features") all_features = value;
  }
  std::istringstream words(all_features);
  for (std::string word; words >> word;) {
    for (const char* feature : kFeatures) {
      if (word == feature) cpu.features.push_back(word);
    }
  }
  return cpu;
}

struct Library {
  std::string name;
  std::string version;
};

// Run-time versions where the library tells them.
std::vector<Library> libraries() {
  return {{"CLI11", CLI11_VERSION},
          {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
          {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                        NLOHMANN_JSON_VERSION_PATCH)},
          {"OpenSSL", OpenSSL_version(OPENSSL_VERSION_STRING)},
          {"Highway", fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH)},
          {"oneTBB", TBB_runtime_version()},
          {"Boost", fmt::format("{}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000, BOOST_VERSION % 100)},
          {"GMP", gmp_version},
          {"MPFR", mpfr_get_version()},
          {"MPFI", mpfi_get_version()},
          {"MPI", mpi_version()}};
}

nlohmann::ordered_json to_json(const Cpu& cpu) {
  nlohmann::ordered_json json{
      {"version", TPCE_VERSION},
      {"commit", kCommit},
      {"build", {{"compiler", TPCE_COMPILER}, {"type", TPCE_BUILD_TYPE}, {"flags", TPCE_FLAGS}}},
      {"cpu", {{"model", cpu.model}, {"threads", cpu.threads}, {"features", cpu.features}}}};
  for (const BackendInfo& backend : backends()) {
    const BackendState& state = backend.state();
    nlohmann::ordered_json entry{{"name", backend.name}, {"available", state.missing.empty()}};
    if (!state.missing.empty()) entry["missing"] = state.missing;
    entry["summary"] = state.summary;
    json["backends"].push_back(std::move(entry));
  }
  for (const simd::Target& target : simd::targets()) {
    json["targets"].push_back({{"name", target.name}, {"supported", target.supported}});
  }
  for (const MethodInfo& method : methods()) {
    json["methods"].push_back({{"name", method.name},
                               {"backends", method.backends},
                               {"softmax", method.is_softmax},
                               {"summary", method.summary}});
  }
  for (const Library& library : libraries()) json["libraries"][library.name] = library.version;
  return json;
}

// The target of the simd backend; none where TPCE_TARGET forces one that is not here.
std::string chosen_target() try {
  return std::string(simd::SimdBackend(simd::SimdOptions{.target = "", .threads = 1}).target());
} catch (const std::invalid_argument&) {
  return "";
}

std::string to_text(const Cpu& cpu) {
  std::string text =
      fmt::format("tpce {}\n\nbuild      {}, {}, {}\n", version_text(), TPCE_COMPILER, TPCE_BUILD_TYPE, TPCE_FLAGS);
  text +=
      fmt::format("cpu        {}, {} threads; {}\n\nbackends\n", cpu.model, cpu.threads, fmt::join(cpu.features, " "));
  for (const BackendInfo& backend : backends()) {
    const BackendState& state = backend.state();
    text += fmt::format("  {:<25} {}{}\n", backend.name, state.summary,
                        state.missing.empty() ? "" : ": missing, " + state.missing);
  }
  const std::string chosen = chosen_target();
  text += "\ntargets of simd, the best first; TPCE_TARGET forces one\n";
  for (const simd::Target& target : simd::targets()) {
    text += fmt::format("  {:<25} {}{}\n", target.name, target.supported ? "runs here" : "not on this processor",
                        target.name == chosen ? ", chosen" : "");
  }
  text += "\nmethods\n";
  for (const MethodInfo& method : methods()) {
    text += fmt::format("  {:<25} {}: {}\n", method.name, fmt::join(method.backends, ", "), method.summary);
  }
  text += "\nlibraries\n";
  for (const Library& library : libraries()) text += fmt::format("  {:<25} {}\n", library.name, library.version);
  return text;
}

int InfoCommand::run() const {
  if (!fingerprint) {
    if (json) {
      print_json(to_json(read_cpu()));
    } else {
      print(to_text(read_cpu()));
    }
    return 0;
  }
  const MethodChoice choice = choose_method("canonical", backend);
  const std::vector<FingerprintCase> cases = fingerprint_cases(*make_backend(choice.backend));
  if (!json) {
    print(tools::fingerprint(cases) + "\n");
    return 0;
  }
  nlohmann::ordered_json by_name;
  for (const FingerprintCase& test : cases) by_name[test.name] = test.sha256;
  print_json({{"fingerprint", tools::fingerprint(cases)}, {"cases", by_name}});
  return 0;
}

}  // namespace

std::vector<Command> add_info(CLI::App& program) {
  CLI::App* app = program.add_subcommand("info", "version, build, CPU, backends, methods and libraries");
  app->footer(kExamples);
  auto command = std::make_shared<InfoCommand>();
  app->add_flag("--json", command->json, "print one JSON object");
  app->add_flag("--fingerprint", command->fingerprint,
                "compute a fixed suite of cases and print the SHA-256 of their bits; with --json, of each case too");
  std::vector<std::string> names;
  for (const BackendInfo& one : backends()) {
    if (one.make) names.push_back(one.name);
  }
  app->add_option("--backend", command->backend, "the backend that computes it")
      ->type_name(fmt::format("{}", fmt::join(names, "|")));
  return {{app, [command] { return command->run(); }}};
}

}  // namespace tpce::tools
