// Random numbers by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a function of a
// seed, a stream and an index, so that what is drawn does not depend on what was drawn before.
#pragma once

#include <Random123/philox.h>

#include <array>
#include <cstdint>

namespace tpce::sim {

// What numbers are for. Each draws from a stream of its own.
enum class Stream : std::uint32_t { kParameters = 1, kSplit = 2, kBatches = 3 };

class Philox {
 public:
  Philox(std::uint64_t seed, Stream stream, std::uint32_t part = 0)
      : key_{{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}},
        stream_(static_cast<std::uint32_t>(stream)),
        part_(part) {}

  // The 32 bits at an index.
  std::uint32_t bits(std::uint64_t index) const {
    const std::uint64_t block = index / 4;
    const r123::Philox4x32::ctr_type counter = {
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), part_, stream_}};
    return r123::Philox4x32()(counter, key_)[index % 4];
  }

  // A multiple of 2^-24 in [0, 1).
  float uniform(std::uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }

  // In [0, bound); each value's probability is within bound / 2^32 of an equal share.
  std::int64_t below(std::uint64_t index, std::int64_t bound) const {
    return static_cast<std::int64_t>((std::uint64_t{bits(index)} * static_cast<std::uint64_t>(bound)) >> 32);
  }

 private:
  r123::Philox4x32::key_type key_;
  std::uint32_t stream_;
  std::uint32_t part_;
};

}  // namespace tpce::sim
