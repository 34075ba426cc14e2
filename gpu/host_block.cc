#include "gpu/host_block.h"

namespace tpce::gpu {

void HostMemory::start_block(std::size_t bytes) {
  bytes_.assign(bytes, kPoison);
  if (known_.size() < bytes) known_.resize(bytes);
  for (Copies& copies : copies_) {  // of a block that failed
    copies.open.clear();
    copies.groups.clear();
  }
  used_ = 0;
  ++block_;
  first_phase_ = ++phase_;
}

void HostMemory::end_block() {
  for (std::size_t thread = 0; thread < copies_.size(); ++thread) {
    for (const std::vector<Copy>& group : copies_[thread].groups) {
      if (!group.empty()) {
        thread_ = static_cast<int>(thread);
        fail("a copy is still under way at the end of the block", group.front().offset);
      }
    }
    if (!copies_[thread].open.empty()) {
      thread_ = static_cast<int>(thread);
      fail("a copy was never committed", copies_[thread].open.front().offset);
    }
  }
}

std::size_t HostMemory::allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t offset = (used_ + alignment - 1) / alignment * alignment;
  if (offset + bytes > bytes_.size()) {
    throw std::logic_error("shared memory: the body wants " + std::to_string(offset + bytes) +
                           " bytes, the launch has " + std::to_string(bytes_.size()));
  }
  used_ = offset + bytes;
  return offset;
}

void HostMemory::fail(const std::string& what, std::size_t offset) const {
  throw std::logic_error("shared memory: " + what + ", at byte " + std::to_string(offset) + ", thread " +
                         std::to_string(thread_) + ", phase " + std::to_string(phase_ - first_phase_));
}

void HostMemory::check(std::size_t offset, std::size_t bytes) const {
  if (offset % std::min<std::size_t>(bytes, 16) != 0)
    fail("an access is not aligned to its " + std::to_string(bytes) + " bytes", offset);
}

void HostMemory::mark_read(std::size_t offset, std::size_t bytes) {
  check(offset, bytes);
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    Byte& byte = known_[i];
    if (is_in_flight(byte)) fail("read before the copy to it was waited for", i);
    if (is_poisoned(byte)) fail("read before it was written", i);
    if (byte.write_phase == phase_ && byte.writer != thread_)
      fail("race: read in the phase in which another thread writes it", i);
    byte.reader = byte.read_phase == phase_ && byte.reader != thread_ ? kSeveral : thread_;
    byte.read_phase = phase_;
  }
}

void HostMemory::mark_write(std::size_t offset, std::size_t bytes) {
  check(offset, bytes);
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    Byte& byte = known_[i];
    if (is_in_flight(byte)) fail("written while a copy to it is under way", i);
    if (byte.write_phase == phase_ && byte.writer != thread_) fail("race: two threads write it in one phase", i);
    if (byte.read_phase == phase_ && byte.reader != thread_)
      fail("race: written in the phase in which another thread reads it", i);
    set(byte, State::kWritten);
    byte.writer = thread_;
    byte.write_phase = phase_;
  }
}

void HostMemory::read(std::size_t offset, void* to, std::size_t bytes) {
  mark_read(offset, bytes);
  std::memcpy(to, bytes_.data() + offset, bytes);
}

void HostMemory::write(std::size_t offset, const void* from, std::size_t bytes) {
  mark_write(offset, bytes);
  std::memcpy(bytes_.data() + offset, from, bytes);
}

void* HostMemory::atomic(std::size_t offset, std::size_t bytes) {
  check(offset, bytes);
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    Byte& byte = known_[i];
    if (is_in_flight(byte)) fail("atomic operation while a copy to it is under way", i);
    if (is_poisoned(byte)) fail("read before it was written", i);
    if (byte.write_phase == phase_ && byte.writer != kAtomics)
      fail("race: atomic operation in the phase in which a thread writes it", i);
    if (byte.read_phase == phase_) fail("race: atomic operation in the phase in which a thread reads it", i);
    byte.writer = kAtomics;
    byte.write_phase = phase_;
  }
  return bytes_.data() + offset;
}

void HostMemory::copy_async(std::size_t offset, const void* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) fail("the source of a copy is not aligned to 16 bytes", offset);
  mark_write(offset, sizeof(Words4));
  for (std::size_t i = offset; i < offset + sizeof(Words4); ++i) set(known_[i], State::kInFlight);
  if (copies_.size() <= static_cast<std::size_t>(thread_)) copies_.resize(static_cast<std::size_t>(thread_) + 1);
  Copy copy{offset, from, {}};
  std::memcpy(&copy.at_start, from, sizeof copy.at_start);
  copies_[static_cast<std::size_t>(thread_)].open.push_back(copy);
}

void HostMemory::commit_copies() {
  if (copies_.size() <= static_cast<std::size_t>(thread_)) copies_.resize(static_cast<std::size_t>(thread_) + 1);
  Copies& copies = copies_[static_cast<std::size_t>(thread_)];
  copies.groups.push_back(std::exchange(copies.open, {}));
}

// They arrive now and not before, whatever a device would do.
void HostMemory::wait_for_copies(std::size_t pending) {
  if (copies_.size() <= static_cast<std::size_t>(thread_)) return;
  auto& groups = copies_[static_cast<std::size_t>(thread_)].groups;
  for (; groups.size() > pending; groups.erase(groups.begin())) {
    for (const Copy& copy : groups.front()) {
      if (std::memcmp(copy.from, &copy.at_start, sizeof copy.at_start) != 0) {
        fail("the source of a copy was written while the copy was under way", copy.offset);
      }
      for (std::size_t i = copy.offset; i < copy.offset + sizeof(Words4); ++i) {
        Byte& byte = known_[i];
        set(byte, State::kWritten);
        byte.writer = thread_;
        byte.write_phase = phase_;
      }
      std::memcpy(bytes_.data() + copy.offset, copy.from, sizeof(Words4));
    }
  }
}

}  // namespace tpce::gpu
