// A library that is looked for when the program runs.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace tpce::gpu {

struct DynamicLibrary {
  void* handle = nullptr;
  std::string name;      // "nccl: the library"
  std::string expected;  // "NCCL 2.18 or later"

  template <class Function>
  void find(const char* symbol, Function*& function) const {
    function = reinterpret_cast<Function*>(dlsym(handle, symbol));
    if (function == nullptr) {
      throw std::runtime_error(name + " has no function " + symbol + ", expected that of " + expected);
    }
  }
};

}  // namespace tpce::gpu
