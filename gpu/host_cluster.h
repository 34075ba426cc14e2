// Where the blocks of a cluster meet on the host executor, which runs each of them on a thread of the host.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <vector>

namespace tpce::gpu {

class HostCluster {
 public:
  explicit HostCluster(int blocks)
      : given_(static_cast<std::size_t>(blocks)), gathered_(static_cast<std::size_t>(blocks)) {}

  // What every block has, by rank, once all of them came here. Throws std::logic_error where another has ended, or came
  // with a value of another size.
  template <class T>
  std::vector<T> gather(int rank, const T& own) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<std::byte> bytes(sizeof(T));
    std::memcpy(bytes.data(), &own, sizeof(T));
    const std::vector<std::vector<std::byte>> all = gather_bytes(rank, std::move(bytes));
    std::vector<T> values(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) std::memcpy(&values[i], all[i].data(), sizeof(T));
    return values;
  }

  // A block comes here no more.
  void end();

 private:
  std::vector<std::vector<std::byte>> gather_bytes(int rank, std::vector<std::byte> own);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::byte>> given_;     // by those who came since the last meeting
  std::vector<std::vector<std::byte>> gathered_;  // at the last meeting
  std::size_t came_ = 0;
  int meetings_ = 0;
  bool has_ended_ = false;
};

}  // namespace tpce::gpu
