#include "sim/train/checkpoint.h"

#include <cstring>
#include <utility>

#include "io/atomic_file.h"
#include "io/error.h"
#include "io/mapped_file.h"
#include "io/sha256.h"

namespace tpce::sim {

namespace {

constexpr std::string_view kFormat = "tpce checkpoint 1\n";
constexpr std::size_t kDigest = 64;

struct Header {
  std::uint64_t bytes;
  std::uint64_t element;
};

}  // namespace

CheckpointWriter::CheckpointWriter(std::string path, const std::string& identity)
    : path_(std::move(path)), text_(kFormat) {
  values(std::vector<char>(identity.begin(), identity.end()));
}

void CheckpointWriter::append(std::span<const std::byte> bytes, std::size_t element) {
  const Header header{bytes.size(), element};
  text_.append(reinterpret_cast<const char*>(&header), sizeof header);
  text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void CheckpointWriter::commit() {
  io::AtomicFile file(path_);
  file.write(text_);
  file.write(io::sha256(std::as_bytes(std::span(text_))));
  file.commit();
}

CheckpointReader::CheckpointReader(std::string path, const std::string& identity) : path_(std::move(path)) {
  const io::MappedFile file(path_);
  const std::span<const std::byte> bytes = file.bytes();
  text_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text_.starts_with(kFormat)) {
    io::fail(path_, "is no checkpoint: expected it to begin with {}", io::quote(kFormat));
  }
  const std::size_t size = text_.size() - std::min(kDigest, text_.size() - kFormat.size());
  if (io::sha256(bytes.first(size)) != std::string_view(text_).substr(size)) {
    io::fail(path_, "is damaged: its SHA-256 is not the one at its end; remove it to begin anew");
  }
  text_.resize(size);
  at_ = kFormat.size();
  std::vector<char> recorded;
  values(recorded);
  if (std::string_view(recorded.data(), recorded.size()) != identity) {
    io::fail(path_,
             "is of another configuration or version of tpce; remove it to begin anew, or name another checkpoint");
  }
}

void CheckpointReader::refuse() const {
  io::fail(path_, "is a checkpoint of another version; remove it to begin anew");
}

std::span<const std::byte> CheckpointReader::next(std::size_t element) {
  Header header{};
  if (text_.size() - at_ < sizeof header) refuse();
  std::memcpy(&header, text_.data() + at_, sizeof header);
  at_ += sizeof header;
  if (header.element != element || header.bytes % element != 0 || text_.size() - at_ < header.bytes) refuse();
  const auto bytes = std::as_bytes(std::span(text_)).subspan(at_, header.bytes);
  at_ += header.bytes;
  return bytes;
}

void CheckpointReader::finish() const {
  if (at_ != text_.size()) refuse();
}

}  // namespace tpce::sim
