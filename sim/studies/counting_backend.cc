#include "sim/studies/counting_backend.h"

#include <algorithm>
#include <new>
#include <utility>

namespace tpce::sim {
namespace {

constexpr std::size_t kHeaderBytes = 64;  // keeps the alignment that allocate() promises

}  // namespace

// A buffer's deleter is a plain function, so that what it needs lies before the memory.
struct CountingBackend::Header {
  Buffer memory;
  const CountingBackend* counter;
  std::int64_t bytes;
};

Buffer CountingBackend::allocate(std::size_t bytes) const {
  static_assert(sizeof(Header) <= kHeaderBytes);
  Buffer memory = inner_.allocate(kHeaderBytes + bytes);
  void* const place = memory.get();
  new (place) Header{std::move(memory), this, static_cast<std::int64_t>(bytes)};
  held_ += static_cast<std::int64_t>(bytes);
  most_ = std::max(most_, held_);
  return {static_cast<char*>(place) + kHeaderBytes, [](void* buffer) {
            Header* const header = static_cast<Header*>(static_cast<void*>(static_cast<char*>(buffer) - kHeaderBytes));
            header->counter->held_ -= header->bytes;
            const Buffer released = std::move(header->memory);
            header->~Header();
          }};
}

}  // namespace tpce::sim
