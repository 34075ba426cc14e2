// How a kernel body speaks to its block of threads, once for the device and for the host executor (host_block.h). A
// body is a function template over Block, written as phases: between two of them lies a barrier, within one a thread
// sees nothing of another but integer atomics. What leads from phase to phase is the same for all threads of a block.
//
//   block.phase(registers, [&](int thread, State& state) {...});     every thread runs this, then meets the others
//
//   index(), threads()             which block of the grid, and its threads; thread numbers count from 0
//   registers<State>()             a State for each thread
//   shared<T>(count)               shared memory, uninitialised, as a view
//   reduce(registers, get, merge)  merge, in any order, of get(state) over the threads; all of them get it
//   join_cluster(own, merge)       merge, in any order, of what the blocks of a cluster have, which is the same for all
//                                  threads of a block; all of them get it. Each block of a cluster joins as often as
//                                  the others; without clusters it is own
//   all_agree(own)                 inside a phase: true only where own is; false where it is not the same for the
//                                  threads that run together
//   joined_bits(own)               inside a phase: own, and bits of the threads that run together
//   copy_async(), commit_copies(), wait_for_copies<N>()
//                                  inside a phase: 16 bytes from global to shared memory, there once the thread that
//                                  asked has waited for their group (all but its last N groups), and for other threads
//                                  after the phase
//
// Views: read(i), write(i, x); read_16(i) and write_16(i, words) for 16 aligned bytes from element i on; atomic_add,
// atomic_max and atomic_read, which may meet others in one phase: in CUDA's memory model all three are relaxed
// operations whose scopes hold the block, and such do not race.
#pragma once

#include <cstdint>

#include "gpu/intrinsics.h"

#if defined(__CUDACC__)

namespace tpce::gpu {

extern __shared__ uint4 shared_memory[];

// By its 32-bit address in shared memory, which the compiler would otherwise make anew of a pointer at each use.
template <class T>
class DeviceShared {
 public:
  __device__ __forceinline__ explicit DeviceShared(T* data) : data_(data) {
    asm volatile("mov.u32 %0, %1;" : "=r"(address_) : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(data))));
  }

  __device__ __forceinline__ T read(int i) const { return data_[i]; }
  __device__ __forceinline__ void write(int i, T value) const { data_[i] = value; }
  __device__ __forceinline__ Words4 read_16(int i) const {
    Words4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
                 : "r"(address(i))
                 : "memory");
    return words;
  }
  __device__ __forceinline__ void write_16(int i, const Words4& words) const {
    asm volatile("st.shared.v4.u32 [%4], {%0, %1, %2, %3};"
                 :
                 : "r"(words.word[0]), "r"(words.word[1]), "r"(words.word[2]), "r"(words.word[3]), "r"(address(i))
                 : "memory");
  }
  __device__ __forceinline__ void atomic_add(int i, T value) const { atomicAdd(data_ + i, value); }
  __device__ __forceinline__ void atomic_max(int i, T value) const { atomicMax(data_ + i, value); }
  __device__ __forceinline__ std::int32_t atomic_read(int i) const {
    static_assert(sizeof(T) == sizeof(std::int32_t));
    std::int32_t value;
    asm volatile("ld.relaxed.cta.shared.s32 %0, [%1];" : "=r"(value) : "r"(address(i)) : "memory");
    return value;
  }
  __device__ __forceinline__ std::uint32_t address(int i) const {
    return address_ + static_cast<std::uint32_t>(i) * static_cast<std::uint32_t>(sizeof(T));
  }

 private:
  T* data_;
  std::uint32_t address_;
};

class DeviceBlock {
 public:
  __device__ std::int64_t index() const { return blockIdx.x; }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }

  template <class State>
  __device__ State registers() const {
    return State{};
  }

  template <class T>
  __device__ DeviceShared<T> shared(int count) {
    auto* first = reinterpret_cast<unsigned char*>(shared_memory) + used_;
    used_ += (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
    return DeviceShared<T>(reinterpret_cast<T*>(first));
  }

  template <class State, class Body>
  __device__ void phase(State& state, Body&& body) const {
    body(static_cast<int>(threadIdx.x), state);
    __syncthreads();
  }

  template <class State, class Get, class Merge>
  __device__ auto reduce(State& state, Get&& get, Merge&& merge) const {
    using T = decltype(get(state));
    __shared__ alignas(16) unsigned char memory[32 * sizeof(T)];  // T itself may have a constructor
    T* of_warp = reinterpret_cast<T*>(memory);
    T value = get(state);
    for (int distance = 16; distance > 0; distance /= 2) merge(value, shuffled(value, distance));
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) of_warp[warp] = value;
    __syncthreads();
    value = of_warp[0];
    for (int i = 1; i < threads() / 32; ++i) merge(value, of_warp[i]);
    __syncthreads();
    return value;
  }

  template <class T, class Merge>
  __device__ T join_cluster(const T& own, Merge&& merge) const {
#if __CUDA_ARCH__ >= 900
    const unsigned blocks = cluster_blocks();
    if (blocks == 1) return own;
    static_assert(sizeof(T) % sizeof(std::uint32_t) == 0);
    __shared__ alignas(16) std::uint32_t words[sizeof(T) / sizeof(std::uint32_t)];
    if (threadIdx.x == 0) memcpy(words, &own, sizeof(T));
    meet_cluster();
    T joined = of_cluster_block<T>(words, 0);
    for (unsigned rank = 1; rank < blocks; ++rank) merge(joined, of_cluster_block<T>(words, rank));
    meet_cluster();  // shared memory is there to be read until its block ends, or joins again
    return joined;
#else
    return own;
#endif
  }

  __device__ bool all_agree(bool own) const { return __all_sync(kWarp, own) != 0; }
  __device__ std::uint32_t joined_bits(std::uint32_t own) const { return __reduce_or_sync(kWarp, own); }

  template <class T>
  __device__ void copy_async(const DeviceShared<T>& to, int i, const T* from) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to.address(i)), "l"(from) : "memory");
  }
  __device__ void commit_copies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int kPending>
  __device__ void wait_for_copies() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }

 private:
  static constexpr unsigned kWarp = 0xffffffffu;

  template <class T>
  __device__ static T shuffled(const T& value, int distance) {
    static_assert(sizeof(T) % sizeof(std::uint32_t) == 0);
    constexpr int kWords = sizeof(T) / sizeof(std::uint32_t);
    std::uint32_t words[kWords];
    memcpy(words, &value, sizeof(T));
    for (int i = 0; i < kWords; ++i) words[i] = __shfl_xor_sync(kWarp, words[i], distance);
    T other;
    memcpy(&other, words, sizeof(T));
    return other;
  }

#if __CUDA_ARCH__ >= 900
  __device__ static unsigned cluster_blocks() {
    unsigned blocks;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
  }

  // A barrier of all threads of a cluster: what was written to shared memory before it is read after it.
  __device__ static void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }

  // What a block of the cluster has where this one has `words`.
  template <class T>
  __device__ static T of_cluster_block(const std::uint32_t* words, unsigned rank) {
    std::uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(words))), "r"(rank));
    std::uint32_t read[sizeof(T) / sizeof(std::uint32_t)];
    for (std::uint32_t i = 0; i < sizeof(T) / sizeof(std::uint32_t); ++i) {
      asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(read[i]) : "r"(address + 4 * i) : "memory");
    }
    T value;
    memcpy(&value, read, sizeof(T));
    return value;
  }
#endif

  int used_ = 0;
};

}  // namespace tpce::gpu

#endif
