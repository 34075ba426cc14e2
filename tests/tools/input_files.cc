#include "tests/tools/input_files.h"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

namespace tpce::test {

std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                const std::string& fortran_order) {
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", descr, fortran_order, shape);
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  return file + header + data;
}

std::string safetensors(const std::string& header, const std::string& data) {
  const std::uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + data;
}

std::string capture(const std::vector<float>& logits, const std::vector<std::int64_t>& labels) {
  const std::size_t rows = labels.size(), bytes = logits.size() * 4;
  return safetensors(fmt::format(R"({{"logits":{{"dtype":"F32","shape":[{0},{1}],"data_offsets":[0,{2}]}},)"
                                 R"("labels":{{"dtype":"I64","shape":[{0}],"data_offsets":[{2},{3}]}}}})",
                                 rows, logits.size() / rows, bytes, bytes + rows * 8),
                     bytes_of(logits) + bytes_of(labels));
}

std::string data_of(const std::string& file) {
  if (file.compare(0, 6, "\x93NUMPY") == 0) {
    const std::size_t header = static_cast<unsigned char>(file[8]) + 256u * static_cast<unsigned char>(file[9]);
    return file.substr(10 + header);
  }
  std::uint64_t header = 0;
  if (file.size() < 8) throw std::runtime_error("no array file");
  std::memcpy(&header, file.data(), 8);
  return file.substr(8 + header);
}

}  // namespace tpce::test
