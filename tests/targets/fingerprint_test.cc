// fingerprint_test TARGET [BITS]: TARGET, forced with TPCE_TARGET, computes the committed fingerprint; "scalar" is the
// scalar backend, and BITS the length that SVE vectors are to have. Exits with 77, which CTest reports as not run,
// where this processor has no such target or vectors.
#include "tools/fingerprint.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "simd/simd_backend.h"
#include "tpce/scalar_backend.h"

namespace tpce::test {
namespace {

constexpr int kNotRun = 77;

// 0 where there are none.
int sve_bits() {
  const int answer = prctl(PR_SVE_GET_VL);
  return answer < 0 ? 0 : (answer & PR_SVE_VL_LEN_MASK) * 8;
}

std::unique_ptr<Backend> backend_of(const std::string& target) {
  if (target == "scalar") return std::make_unique<ScalarBackend>();
  setenv("TPCE_TARGET", target.c_str(), 1);
  return std::make_unique<simd::SimdBackend>();
}

int run(const std::string& target, int bits) {
  if (target != "scalar") {
    const std::vector<simd::Target> targets = simd::targets();
    const auto found = std::find_if(targets.begin(), targets.end(), [&](const auto& t) { return t.name == target; });
    if (found == targets.end()) {
      std::printf("this build has no kernels for %s\n", target.c_str());
      return 1;
    }
    if (!found->supported) {
      std::printf("not run: this processor has no %s\n", target.c_str());
      return kNotRun;
    }
  }
  if (bits != 0 && sve_bits() != bits) {
    std::printf("not run: SVE vectors have %d bits here, not %d\n", sve_bits(), bits);
    return kNotRun;
  }
  std::string expected;
  std::getline(std::ifstream(TPCE_TEST_DATA "/fingerprint.txt"), expected);
  const std::string actual = tools::fingerprint(tools::fingerprint_cases(*backend_of(target)));
  std::printf("%s: %s, expected %s\n", target.c_str(), actual.c_str(), expected.c_str());
  return actual == expected ? 0 : 1;
}

}  // namespace
}  // namespace tpce::test

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::puts("expected TARGET [BITS]");
    return 2;
  }
  try {
    return tpce::test::run(argv[1], argc == 3 ? std::atoi(argv[2]) : 0);
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 2;
  }
}
