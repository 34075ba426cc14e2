#include "tpce/rank_checks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tpce/checks.h"

namespace tpce {

namespace {

// What every rank must have alike. Where a value means nothing to a reader (a digest, the number of an enumerator) the
// message only says that it differs.
struct Field {
  std::string_view name;
  bool readable = true;
};

constexpr std::array kFields{Field{"rows"},
                             Field{"labels", false},
                             Field{"vocab"},
                             Field{"columns of the plan"},
                             Field{"tp"},
                             Field{"boundaries of the shards", false},
                             Field{"rows_per_chunk"},
                             Field{"ignore_index"},
                             Field{"reduction", false},
                             Field{"empty_mean", false},
                             Field{"non_finite_row", false}};

struct RankView {
  std::array<std::int64_t, kFields.size()> fields{};
  std::vector<std::int64_t> shards;
  std::string error;  // where there is one, the rest is not used
};

// FNV-1a, by values instead of bytes.
class Digest {
 public:
  void add(std::int64_t value) {
    state_ = (state_ ^ static_cast<std::uint64_t>(value)) * 0x100000001b3u;
    state_ ^= state_ >> 32;  // whole values need what bytes get by being short
  }
  std::int64_t value() const { return static_cast<std::int64_t>(state_); }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

// Labels on a device are not compared: every rank would wait for its device.
std::int64_t digest_of(const Labels& labels) {
  Digest digest;
  if (labels.place().type != DeviceType::kCpu) return digest.value();
  for (std::int64_t i = 0; i < labels.size(); ++i) digest.add(labels[i]);
  return digest.value();
}

std::int64_t digest_of(const ShardPlan& plan) {
  Digest digest;
  for (std::int64_t s = 0; s < plan.tp(); ++s) digest.add(plan.first_class(s));
  return digest.value();
}

RankView view_of(const Batch& batch, const Options& options, const Runtime& runtime) {
  RankView view;
  try {
    check_batch(batch, options, runtime.backend, runtime.communicator);
  } catch (const std::exception& error) {
    view.error = error.what();
    return view;
  }
  // Named one by one, so that an option which joins does not compile until it is checked too.
  const auto& [ignore_index, reduction, empty_mean, non_finite_row] = options;
  view.fields = {batch.rows(),
                 digest_of(batch.labels),
                 batch.vocab,
                 batch.plan.columns(),
                 batch.plan.tp(),
                 digest_of(batch.plan),
                 runtime.rows_per_chunk,
                 ignore_index,
                 static_cast<std::int64_t>(reduction),
                 static_cast<std::int64_t>(empty_mean),
                 static_cast<std::int64_t>(non_finite_row)};
  for (const Shard& shard : batch.shards) view.shards.push_back(shard.index);
  return view;
}

// One letter, then the fields and the shards as the bytes of int64 values, or the error's text.
constexpr char kFine = 'F';
constexpr char kError = 'E';

std::string encoded(const RankView& view) {
  if (!view.error.empty()) return kError + view.error;
  std::string bytes(1, kFine);
  const auto append = [&](std::span<const std::int64_t> values) {
    for (const std::int64_t value : values) {
      std::array<char, sizeof value> raw{};
      std::memcpy(raw.data(), &value, sizeof value);
      bytes.append(raw.data(), raw.size());
    }
  };
  append(view.fields);
  append(view.shards);
  return bytes;
}

RankView decoded(std::string_view bytes) {
  RankView view;
  if (bytes.substr(0, 1) != std::string_view(&kFine, 1)) {
    view.error = bytes.substr(std::min<std::size_t>(bytes.size(), 1));
    return view;
  }
  bytes.remove_prefix(1);
  std::memcpy(view.fields.data(), bytes.data(), sizeof view.fields);
  bytes.remove_prefix(sizeof view.fields);
  view.shards.resize(bytes.size() / sizeof(std::int64_t));
  if (!view.shards.empty()) std::memcpy(view.shards.data(), bytes.data(), bytes.size());
  return view;
}

[[noreturn]] void fail(const std::string& message) { throw CollectiveError(message); }

std::string text(std::size_t value) { return std::to_string(value); }

void check_errors(std::span<const RankView> views) {
  const auto bad = std::find_if(views.begin(), views.end(), [](const RankView& view) { return !view.error.empty(); });
  if (bad == views.end()) return;
  const bool everywhere =
      std::all_of(views.begin(), views.end(), [&](const RankView& view) { return view.error == bad->error; });
  if (everywhere) fail(bad->error);
  fail("rank " + std::to_string(bad - views.begin()) + " of " + text(views.size()) + ": " + bad->error);
}

void check_agreement(std::span<const RankView> views) {
  for (std::size_t r = 1; r < views.size(); ++r) {
    for (std::size_t f = 0; f < kFields.size(); ++f) {
      if (views[r].fields[f] == views[0].fields[f]) continue;
      const std::string what(kFields[f].name);
      if (!kFields[f].readable) fail(what + ": rank " + text(r) + " has others than rank 0, expected the same");
      fail(what + ": rank " + text(r) + " has " + std::to_string(views[r].fields[f]) + " and rank 0 has " +
           std::to_string(views[0].fields[f]) + ", expected the same");
    }
  }
}

void check_coverage(std::span<const RankView> views, std::int64_t tp) {
  constexpr std::size_t kNobody = static_cast<std::size_t>(-1);
  std::vector<std::size_t> owners(static_cast<std::size_t>(tp), kNobody);
  for (std::size_t r = 0; r < views.size(); ++r) {
    for (const std::int64_t shard : views[r].shards) {
      const std::size_t owner = std::exchange(owners[static_cast<std::size_t>(shard)], r);
      if (owner == kNobody) continue;
      fail("shards: shard " + std::to_string(shard) + " of " + std::to_string(tp) + " is held by rank " + text(owner) +
           " and by rank " + text(r) + ", expected one rank");
    }
  }
  const auto missing = std::find(owners.begin(), owners.end(), kNobody);
  if (missing == owners.end()) return;
  fail("shards: shard " + std::to_string(missing - owners.begin()) + " of " + std::to_string(tp) +
       " is held by none of the " + text(views.size()) + " ranks");
}

}  // namespace

void check_ranks(const Batch& batch, const Options& options, const Runtime& runtime) {
  if (runtime.communicator.size() == 1) {
    try {
      check_batch(batch, options, runtime.backend, runtime.communicator);
    } catch (const std::invalid_argument& error) {
      fail(error.what());
    }
    return;
  }
  std::vector<RankView> views;
  for (const std::string& bytes : runtime.communicator.all_gather(encoded(view_of(batch, options, runtime)))) {
    views.push_back(decoded(bytes));
  }
  check_errors(views);
  check_agreement(views);
  check_coverage(views, batch.plan.tp());
}

}  // namespace tpce
