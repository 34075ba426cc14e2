// The host executor's block: runs a kernel body thread by thread, phase by phase, in an order of threads that a seed
// chooses, and checks what a device would leave to luck. Each breach throws std::logic_error that says where:
//   - shared memory that is read before it is written (it holds poison when a block starts);
//   - two threads that touch one byte of shared memory in one phase, of which one writes, unless both by atomics;
//   - a copy_async() whose destination is touched before its group was waited for, or whose source changed meanwhile,
//     or that is not aligned to 16 bytes;
//   - an index outside of what shared() gave, more shared memory than the launch has, a copy still under way at the
//   end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpu/block.h"
#include "gpu/host_cluster.h"

namespace tpce::gpu {

class HostBlock;

// Shared memory of the block that is run at present, with what is known of each byte. One for many blocks, one after
// another: what is known of another block's bytes is forgotten by its number, which costs nothing.
class HostMemory {
 public:
  static constexpr std::uint8_t kPoison = 0xcb;

  void start_block(std::size_t bytes);
  void start_phase() { ++phase_; }
  void start_thread(int thread) { thread_ = thread; }
  void end_block();

  std::size_t allocate(std::size_t bytes, std::size_t alignment);
  void read(std::size_t offset, void* to, std::size_t bytes);
  void write(std::size_t offset, const void* from, std::size_t bytes);
  // Bytes for an atomic operation, which the caller then does.
  void* atomic(std::size_t offset, std::size_t bytes);

  void copy_async(std::size_t offset, const void* from);
  void commit_copies();
  void wait_for_copies(std::size_t pending);

 private:
  enum class State : std::uint8_t { kWritten, kInFlight };
  static constexpr int kNobody = -1;
  static constexpr int kSeveral = -2;
  static constexpr int kAtomics = -3;

  struct Byte {
    std::uint64_t block = 0;  // in which it is not poisoned
    std::uint64_t read_phase = 0;
    std::uint64_t write_phase = 0;
    int reader = kNobody;
    int writer = kNobody;
    State state = State::kWritten;
  };
  struct Copy {
    std::size_t offset;
    const void* from;
    Words4 at_start;
  };
  struct Copies {
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
  };

  [[noreturn]] void fail(const std::string& what, std::size_t offset) const;
  void check(std::size_t offset, std::size_t bytes) const;
  void mark_read(std::size_t offset, std::size_t bytes);
  void mark_write(std::size_t offset, std::size_t bytes);
  bool is_poisoned(const Byte& byte) const { return byte.block != block_; }
  bool is_in_flight(const Byte& byte) const { return byte.block == block_ && byte.state == State::kInFlight; }
  void set(Byte& byte, State state) const {
    byte.block = block_;
    byte.state = state;
  }

  std::vector<std::uint8_t> bytes_;
  std::vector<Byte> known_;
  std::vector<Copies> copies_;  // by thread
  std::size_t used_ = 0;
  std::uint64_t block_ = 0;
  std::uint64_t phase_ = 0;        // of all blocks
  std::uint64_t first_phase_ = 0;  // of this one
  int thread_ = 0;
};

template <class T>
class HostShared {
 public:
  HostShared(HostMemory& memory, std::size_t offset, int count) : memory_(&memory), offset_(offset), count_(count) {}

  T read(int i) const {
    T value;
    memory_->read(at(i, 1), &value, sizeof(T));
    return value;
  }
  void write(int i, T value) const { memory_->write(at(i, 1), &value, sizeof(T)); }
  Words4 read_16(int i) const {
    Words4 words;
    memory_->read(at(i, kIn16), &words, sizeof words);
    return words;
  }
  void write_16(int i, const Words4& words) const { memory_->write(at(i, kIn16), &words, sizeof words); }
  void atomic_add(int i, T value) const { *element(i) += value; }
  void atomic_max(int i, T value) const { *element(i) = std::max(*element(i), value); }
  T atomic_read(int i) const { return *element(i); }
  std::size_t at(int i, int elements) const {
    if (i < 0 || i + elements > count_) {
      throw std::logic_error("shared memory: element " + std::to_string(i) + " of " + std::to_string(count_));
    }
    return offset_ + static_cast<std::size_t>(i) * sizeof(T);
  }
  static constexpr int kIn16 = static_cast<int>(16 / sizeof(T));

 private:
  T* element(int i) const { return static_cast<T*>(memory_->atomic(at(i, 1), sizeof(T))); }

  HostMemory* memory_;
  std::size_t offset_;
  int count_;
};

struct HostGrid {
  int threads = 0;  // of a block
  std::size_t shared_bytes = 0;
  std::uint64_t seed = 0;
  int cluster = 1;  // blocks
};

class HostBlock {
 public:
  // cluster: of this block, or null where there are none.
  HostBlock(const HostGrid& grid, HostMemory& memory, std::int64_t index, HostCluster* cluster = nullptr)
      : grid_(grid),
        memory_(memory),
        index_(index),
        cluster_(cluster),
        random_(grid.seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(index)) {
    memory_.start_block(grid.shared_bytes);
    order_.resize(static_cast<std::size_t>(grid.threads));
    std::iota(order_.begin(), order_.end(), 0);
  }

  std::int64_t index() const { return index_; }
  int threads() const { return grid_.threads; }

  template <class State>
  std::vector<State> registers() const {
    return std::vector<State>(static_cast<std::size_t>(grid_.threads));
  }

  template <class T>
  HostShared<T> shared(int count) {
    return {memory_, memory_.allocate(static_cast<std::size_t>(count) * sizeof(T), 16), count};
  }

  template <class State, class Body>
  void phase(std::vector<State>& states, Body&& body) {
    memory_.start_phase();
    std::shuffle(order_.begin(), order_.end(), random_);
    for (const int thread : order_) {
      memory_.start_thread(thread);
      body(thread, states[static_cast<std::size_t>(thread)]);
    }
  }

  template <class State, class Get, class Merge>
  auto reduce(std::vector<State>& states, Get&& get, Merge&& merge) {
    std::shuffle(order_.begin(), order_.end(), random_);
    auto value = get(states[static_cast<std::size_t>(order_.front())]);
    for (std::size_t i = 1; i < order_.size(); ++i) {
      merge(value, get(states[static_cast<std::size_t>(order_[i])]));
    }
    return value;
  }

  template <class T, class Merge>
  T join_cluster(const T& own, Merge&& merge) {
    if (cluster_ == nullptr) return own;
    std::vector<T> values = cluster_->gather(static_cast<int>(index_ % grid_.cluster), own);
    std::shuffle(values.begin(), values.end(), random_);
    for (std::size_t i = 1; i < values.size(); ++i) merge(values[0], values[i]);
    return values[0];
  }

  // The other threads' part is up to chance, as none of them runs beside this one.
  bool all_agree(bool own) { return own && random_() % 4 != 0; }
  std::uint32_t joined_bits(std::uint32_t own) {
    return random_() % 2 == 0 ? own : own | static_cast<std::uint32_t>(random_());
  }

  template <class T>
  void copy_async(const HostShared<T>& to, int i, const T* from) {
    memory_.copy_async(to.at(i, HostShared<T>::kIn16), from);
  }
  void commit_copies() { memory_.commit_copies(); }
  template <int kPending>
  void wait_for_copies() {
    memory_.wait_for_copies(kPending);
  }

  void finish() { memory_.end_block(); }

 private:
  const HostGrid& grid_;
  HostMemory& memory_;
  std::int64_t index_;
  HostCluster* cluster_;
  std::mt19937_64 random_;
  std::vector<int> order_;
};

}  // namespace tpce::gpu
