// The floating-point mode that the canonical algorithm needs, for as long as a task runs.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tpce {

// Sets round to nearest, no flush-to-zero, no exceptions, and gives the caller's mode back. Made inside every task
// body: a worker thread that was started under flush-to-zero keeps it, whatever its caller sets later.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(read()) { write(kDefault); }
  ~DefaultFloatMode() { write(saved_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Register = std::uint32_t;
  static constexpr Register kDefault = 0x1f80;  // MXCSR after reset: every exception masked, nothing else set
  static Register read() { return _mm_getcsr(); }
  static void write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;
  static constexpr Register kDefault = 0;  // FPCR: RMode, FZ, FZ16, AH, DN and the trap enables all 0
  static Register read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  // The memory clobber keeps loads and stores, and so the arithmetic between them, on their side of the change.
  static void write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
#error "the floating-point mode register of this processor is not known"
#endif

  Register saved_;
};

}  // namespace tpce
