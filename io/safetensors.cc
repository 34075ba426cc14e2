#include "io/safetensors.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "io/error.h"
#include "io/json.h"

namespace tpce::io {
namespace {

using Json = nlohmann::ordered_json;

// The header's object, a tensor's object, its lists.
constexpr int kMaxDepth = 3;

std::uint64_t little_endian_64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

struct KnownType {
  std::string_view name;
  std::size_t bytes;
  std::optional<ElementType> type;  // of those that can be read here
};

constexpr KnownType kKnownTypes[] = {
    {"F32", 4, ElementType::kFloat32},
    {"F64", 8, ElementType::kFloat64},
    {"BF16", 2, ElementType::kBFloat16},
    {"F16", 2, ElementType::kFloat16},
    {"I32", 4, ElementType::kInt32},
    {"I64", 8, ElementType::kInt64},
    {"BOOL", 1, {}},
    {"U8", 1, {}},
    {"I8", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E4M3", 1, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"U32", 4, {}},
    {"U64", 8, {}},
};

const KnownType* find_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kKnownTypes), std::end(kKnownTypes),
                                   [&](const KnownType& known) { return known.name == name; });
  return found == std::end(kKnownTypes) ? nullptr : found;
}

std::string_view spelling_of(ElementType type) {
  for (const KnownType& known : kKnownTypes) {
    if (known.type == type) return known.name;
  }
  throw std::invalid_argument("safetensors_header: bits without a type cannot be written");
}

// A field of a tensor's object that is a list of non-negative integers.
std::vector<std::int64_t> integers(const Json& object, const char* field, std::string_view where) {
  const auto found = object.find(field);
  if (found == object.end()) throw std::invalid_argument(fmt::format("{} lacks '{}'", where, field));
  if (!found->is_array()) throw std::invalid_argument(fmt::format("{}: {} is not a list", where, field));
  std::vector<std::int64_t> values;
  for (const Json& value : *found) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
      throw std::invalid_argument(fmt::format("{}: {} holds {}, expected integers from 0 to 2^63 - 1", where, field,
                                              quote(value.dump(-1, ' ', true, Json::error_handler_t::replace), 40)));
    }
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

SafetensorsFile::Entry parse_entry(const Json& object, std::size_t data_bytes, std::string_view where) {
  const auto refuse = [&](const std::string& message) {
    throw std::invalid_argument(fmt::format("{}: {}", where, message));
  };
  if (!object.is_object()) refuse("is not an object with dtype, shape and data_offsets");
  for (const auto& [key, value] : object.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") refuse(fmt::format("unknown key {}", quote(key)));
  }
  SafetensorsFile::Entry entry;
  const auto dtype = object.find("dtype");
  if (dtype == object.end() || !dtype->is_string()) refuse("lacks a 'dtype' that is a string");
  entry.dtype = dtype->get<std::string>();
  entry.shape = integers(object, "shape", where);
  const std::vector<std::int64_t> offsets = integers(object, "data_offsets", where);
  if (offsets.size() != 2) refuse(fmt::format("data_offsets holds {} numbers, expected 2", offsets.size()));
  entry.begin = static_cast<std::size_t>(offsets[0]);
  entry.end = static_cast<std::size_t>(offsets[1]);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    refuse(
        fmt::format("data_offsets {} out of range, the file holds {} bytes of data", shape_text(offsets), data_bytes));
  }
  const KnownType* known = find_type(entry.dtype);
  const auto expected = byte_count(entry.shape, known == nullptr ? 1 : known->bytes);
  if (!expected) refuse(fmt::format("shape {}: its size in bytes exceeds 2^63 - 1", shape_text(entry.shape)));
  if (known != nullptr && static_cast<std::size_t>(*expected) != entry.end - entry.begin) {
    refuse(fmt::format("{} bytes by data_offsets, expected {} for shape {} of {}", entry.end - entry.begin, *expected,
                       shape_text(entry.shape), entry.dtype));
  }
  return entry;
}

// The format allows no hole and no overlap: sorted by offset, each tensor begins where the one before ends.
void check_layout(const std::map<std::string, SafetensorsFile::Entry>& entries, std::size_t data_bytes,
                  std::string_view path) {
  std::vector<std::pair<const std::string*, const SafetensorsFile::Entry*>> order;
  for (const auto& [name, entry] : entries) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::size_t end = 0;
  for (const auto& [name, entry] : order) {
    if (entry->begin != end) {
      fail(path, "tensor {}: begins at byte {} of the data, expected {} ({})", quote(*name), entry->begin, end,
           entry->begin < end ? "it overlaps another tensor" : "a hole before it");
    }
    end = entry->end;
  }
  if (end != data_bytes) {
    fail(path, "{} bytes of data, expected {}, where the last tensor ends", data_bytes, end);
  }
}

}  // namespace

bool looks_like_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() > 8 && std::to_integer<char>(bytes[8]) == '{';
}

SafetensorsFile::SafetensorsFile(MappedFile file) : SafetensorsFile(file.bytes(), file.path()) {
  file_ = std::move(file);
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::string path)
    : SafetensorsFile(bytes, bytes.size(), std::move(path)) {}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::size_t size, std::string path)
    : bytes_(bytes), path_(std::move(path)) {
  if (size < 8) fail(path_, "{} bytes, expected a safetensors file of at least 10", size);
  const std::uint64_t length = little_endian_64(bytes);
  if (length > kMaxHeaderBytes) fail(path_, "header of {} bytes, expected at most {}", length, kMaxHeaderBytes);
  if (length > size - 8) fail(path_, "header of {} bytes, but only {} bytes follow", length, size - 8);
  data_offset_ = 8 + static_cast<std::size_t>(length);
  const std::size_t data_bytes = size - data_offset_;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<std::size_t>(length));
  if (!text.starts_with('{')) fail(path_, "the header begins with {}, expected '{{'", quote(text.substr(0, 8)));

  const Json header = parse_json(text, path_, kMaxDepth);
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      try {
        entries_.emplace(name, parse_entry(value, data_bytes, "tensor " + quote(name)));
      } catch (const std::invalid_argument& error) {
        fail(path_, "{}", error.what());
      }
      continue;
    }
    if (!value.is_object()) fail(path_, "__metadata__ is not an object of strings");
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) fail(path_, "__metadata__: {} is not a string", quote(key));
      metadata_.emplace(key, text_value.get<std::string>());
    }
  }
  check_layout(entries_, data_bytes, path_);
}

Tensor SafetensorsFile::tensor(const std::string& name) const {
  TensorPlace found = place(name);
  const auto bytes = static_cast<std::size_t>(byte_count(found.shape, size_of(found.type)).value_or(0));
  return tensor_over(bytes_.subspan(found.offset, bytes), found.type, std::move(found.shape));
}

TensorPlace SafetensorsFile::place(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::string names;
    constexpr std::size_t kListed = 8;
    std::size_t listed = 0;
    for (const auto& [other, entry] : entries_) {
      if (listed++ == kListed) break;
      names += (names.empty() ? "" : ", ") + quote(other);
    }
    if (entries_.size() > kListed) names += ", ...";
    fail(path(), "no tensor {}; the file holds {}", quote(name), names.empty() ? "none" : names);
  }
  const Entry& entry = found->second;
  const KnownType* known = find_type(entry.dtype);
  if (known == nullptr || !known->type) {
    fail(path(), "tensor {}: dtype {}, expected BF16, F16, F32, F64, I32 or I64", quote(name), quote(entry.dtype));
  }
  return {*known->type, entry.shape, data_offset_ + entry.begin};
}

std::string safetensors_header(std::span<const NamedShape> tensors,
                               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json& strings = header["__metadata__"];
    for (const auto& [key, value] : metadata) strings[key] = value;
  }
  std::int64_t offset = 0;
  for (const NamedShape& tensor : tensors) {
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) {
      throw std::invalid_argument(fmt::format("safetensors_header: tensor name {} cannot be used", quote(tensor.name)));
    }
    const auto bytes = byte_count(tensor.shape, size_of(tensor.type));
    std::int64_t end = 0;
    if (!bytes || __builtin_add_overflow(offset, *bytes, &end)) {
      throw std::invalid_argument(fmt::format("safetensors_header: tensor {}: shape {} overflows", quote(tensor.name),
                                              shape_text(tensor.shape)));
    }
    header[tensor.name] = {
        {"dtype", spelling_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string prefix;
  for (std::size_t i = 0; i < 8; ++i) prefix += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return prefix + text;
}

}  // namespace tpce::io
