// NumPy's .npy format, versions 1 to 3: one array a file (numpy.lib.format describes it).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "io/mapped_file.h"
#include "io/tensor.h"

namespace tpce::io {

// Whether bytes begin as a .npy file does.
bool looks_like_npy(std::span<const std::byte> bytes);

// The array of a file of `size` bytes that begins with `head`: all of it, or its header and kMaxHeaderBytes; `name` is
// for messages. Element types <f2 <f4 <f8 <i4 <i8, and <u2 <V2 |V2 as kBits16. Throws std::invalid_argument that names
// the file for: another magic or version, a header that is cut off or is not Python's literal of a dict with exactly
// descr, fortran_order and shape, big-endian, object or structured elements, Fortran order where it differs from C
// order (two dimensions above 1), a shape whose size overflows, and data shorter or longer than the shape says
// (numpy.load ignores what follows the array; here it is an error, since it shows that the file is not what its header
// says, or holds a second array that would be lost).
TensorPlace npy_place(std::span<const std::byte> head, std::size_t size, std::string_view name);

// The array in the bytes of a whole file, which must outlive it. Throws likewise.
Tensor read_npy(std::span<const std::byte> file, std::string_view name);

inline Tensor read_npy(const MappedFile& file) { return read_npy(file.bytes(), file.path()); }

// Everything before the data, byte for byte as numpy.save writes it. bf16 becomes '<V2', as ml_dtypes has it; kBits16
// is refused.
std::string npy_header(ElementType type, std::span<const std::int64_t> shape);

}  // namespace tpce::io
