#include "io/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "io/error.h"

namespace tpce::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// Reads the dict that is the header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } in any order and with
// any white space, and nothing else of Python.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Header parse() {
    Header header;
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr") {
        set(header.descr, key, descr());
      } else if (key == "fortran_order") {
        set(header.fortran_order, key, boolean());
      } else if (key == "shape") {
        set(header.shape, key, tuple());
      } else {
        fail(file_, "header key {}, expected descr, fortran_order and shape only", quote(key));
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) malformed("the end of the header");
    if (!header.descr) fail(file_, "the header lacks 'descr'");
    if (!header.fortran_order) fail(file_, "the header lacks 'fortran_order'");
    if (!header.shape) fail(file_, "the header lacks 'shape'");
    return header;
  }

 private:
  template <class T>
  void set(std::optional<T>& field, std::string_view key, T value) {
    if (field) fail(file_, "header key {} stands twice", quote(key));
    field = std::move(value);
  }

  [[noreturn]] void malformed(std::string_view expected) const {
    fail(file_, "malformed header at its byte {}: got {}, expected {}", at_, quote(text_.substr(at_), 20), expected);
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n\f\v").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) malformed(fmt::format("'{}'", c));
  }

  bool take_word(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') malformed("a quoted string");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) malformed("a string with its closing quote");
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    if (value.find_first_of("\\\n") != std::string_view::npos) malformed("a string without escapes and line ends");
    at_ = end + 1;
    return std::string(value);
  }

  std::string descr() {
    skip_space();
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(')) {
      fail(file_, "structured elements (descr is {}), expected one number an element", quote(text_.substr(at_), 20));
    }
    return string();
  }

  bool boolean() {
    if (take_word("True")) return true;
    if (take_word("False")) return false;
    malformed("True or False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!take(')')) {
      values.push_back(integer());
      if (take(',')) continue;
      // (3) is the number 3 to Python, not a tuple.
      if (values.size() == 1) malformed("','");
      expect(')');
      break;
    }
    return values;
  }

  std::int64_t integer() {
    skip_space();
    const std::size_t begin = at_;
    std::int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value)) {
        const std::size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
        fail(file_, "shape: dimension {} exceeds 2^63 - 1", quote(text_.substr(begin, end - begin)));
      }
    }
    if (at_ == begin) malformed("a dimension of at least 0");
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // a long of Python 2
    return value;
  }

  std::string_view text_;
  std::string_view file_;
  std::size_t at_ = 0;
};

ElementType element_type(const std::string& descr, std::string_view file) {
  constexpr std::string_view kExpected = "<f2, <f4, <f8, <i4, <i8, or <u2 or <V2 for bf16";
  if (descr.starts_with('>')) fail(file, "descr {}: big-endian elements, expected {}", quote(descr), kExpected);
  if (descr == "|O" || descr == "O") fail(file, "descr {}: pickled objects, expected {}", quote(descr), kExpected);
  if (descr == "<f2") return ElementType::kFloat16;
  if (descr == "<f4") return ElementType::kFloat32;
  if (descr == "<f8") return ElementType::kFloat64;
  if (descr == "<i4") return ElementType::kInt32;
  if (descr == "<i8") return ElementType::kInt64;
  if (descr == "<u2" || descr == "<V2" || descr == "|V2") return ElementType::kBits16;
  fail(file, "descr {}: unsupported elements, expected {}", quote(descr), kExpected);
}

std::string descr_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "<f4";
    case ElementType::kFloat64:
      return "<f8";
    case ElementType::kFloat16:
      return "<f2";
    case ElementType::kBFloat16:
      return "<V2";
    case ElementType::kInt32:
      return "<i4";
    case ElementType::kInt64:
      return "<i8";
    case ElementType::kBits16:
      break;
  }
  throw std::invalid_argument("npy_header: bits without a type cannot be written");
}

}  // namespace

bool looks_like_npy(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

TensorPlace npy_place(std::span<const std::byte> head, std::size_t size, std::string_view path) {
  const std::string_view bytes(reinterpret_cast<const char*>(head.data()), head.size());
  if (!looks_like_npy(head)) {
    fail(path, "wrong magic {}, expected that of a .npy file", quote(bytes.substr(0, kMagic.size())));
  }
  const auto byte_at = [&](std::size_t i) { return std::size_t{static_cast<unsigned char>(bytes[i])}; };
  if (size < 10) fail(path, "cut off in the header: {} bytes, expected at least 10", size);
  const std::size_t major = byte_at(6);
  if (major < 1 || major > 3) fail(path, ".npy version {}.{}, expected 1, 2 or 3", major, byte_at(7));
  const std::size_t prefix = major == 1 ? 10 : 12;
  if (size < prefix) fail(path, "cut off in the header: {} bytes, expected at least {}", size, prefix);
  std::size_t length = byte_at(8) | byte_at(9) << 8;
  if (major > 1) length |= byte_at(10) << 16 | byte_at(11) << 24;
  if (length > size - prefix) fail(path, "header of {} bytes, but only {} bytes follow", length, size - prefix);
  if (length > bytes.size() - prefix) {
    fail(path, "header of {} bytes, expected at most {}", length, kMaxHeaderBytes);
  }
  const Header header = HeaderParser(bytes.substr(prefix, length), path).parse();
  const ElementType type = element_type(*header.descr, path);
  const std::vector<std::int64_t>& shape = *header.shape;
  const auto wide = std::count_if(shape.begin(), shape.end(), [](std::int64_t d) { return d != 1; });
  if (*header.fortran_order && wide > 1) {
    fail(path, "Fortran order with shape {}, expected C order (numpy.ascontiguousarray)", shape_text(shape));
  }
  const auto expected = byte_count(shape, size_of(type));
  if (!expected) fail(path, "shape {}: its size in bytes exceeds 2^63 - 1", shape_text(shape));
  const std::size_t held = size - prefix - length;
  if (held != static_cast<std::size_t>(*expected)) {
    fail(path, "{} data: {} bytes, expected {} for shape {} of {}",
         held < static_cast<std::size_t>(*expected) ? "truncated" : "extra", held, *expected, shape_text(shape),
         *header.descr);
  }
  return {type, shape, prefix + length};
}

Tensor read_npy(std::span<const std::byte> file, std::string_view path) {
  TensorPlace place = npy_place(file, file.size(), path);
  return tensor_over(file.subspan(place.offset), place.type, std::move(place.shape));
}

std::string npy_header(ElementType type, std::span<const std::int64_t> shape) {
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr_of(type),
                                 fmt::join(shape.begin(), shape.end(), ", "), shape.size() == 1 ? "," : "");
  // numpy leaves room for a first dimension of 21 digits, so that a file can grow in place, then aligns to 64.
  if (!shape.empty()) dict.append(21 - std::min<std::size_t>(21, fmt::formatted_size("{}", shape[0])), ' ');
  constexpr std::size_t kPrefix = 10;
  dict.append(63 - (kPrefix + dict.size()) % 64, ' ');
  dict += '\n';
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

}  // namespace tpce::io
