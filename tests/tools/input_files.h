// Bytes of input files, put together here so that a test can also make wrong ones.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace tpce::test {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// descr as in "<f4"; shape as in "(4, 3)".
std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& fortran_order = "False");

// header is the JSON text.
std::string safetensors(const std::string& header, const std::string& data);

// A capture of rows x columns fp32 logits and int64 labels, in .safetensors.
std::string capture(const std::vector<float>& logits, const std::vector<std::int64_t>& labels);

// The data of a .npy file or of a .safetensors file with one tensor, as elements.
std::string data_of(const std::string& file);

template <class T>
std::vector<T> elements_of(const std::string& file) {
  const std::string data = data_of(file);
  std::vector<T> values(data.size() / sizeof(T));
  data.copy(reinterpret_cast<char*>(values.data()), data.size());
  return values;
}

}  // namespace tpce::test
