// The clock of a GPU's multiprocessors while they work.
#pragma once

#include <optional>

struct nvmlDevice_st;

namespace tpce::bench {

// As NVIDIA's management library tells it, which comes with the driver and is found when the program runs.
class SmClock {
 public:
  // That of CUDA's device of that number.
  explicit SmClock(int ordinal);

  // In Hz; none where the library is missing, or does not tell.
  std::optional<double> now() const;

 private:
  using Query = int (*)(nvmlDevice_st*, int, unsigned*);
  nvmlDevice_st* device_ = nullptr;
  Query query_ = nullptr;
};

}  // namespace tpce::bench
