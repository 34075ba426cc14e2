#include "mpi/mpi_communicator.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "mpi/environment.h"
#include "tpce/float_mode.h"
#include "tpce/row_partial.h"

namespace tpce::mpi {

namespace {

constexpr auto kRowBytes = static_cast<std::size_t>(MpiCommunicator::kBytesPerRow);

// A row as it travels: its fields one after another. Ranks are of one architecture, as their logits are.
struct RowMessage {
  std::byte* at;

  RowPartial load() const {
    RowPartial row;
    std::size_t offset = 0;
    for_each_field(row, [&](auto& field) {
      std::memcpy(&field, at + offset, sizeof field);
      offset += sizeof field;
    });
    return row;
  }

  void store(RowPartial row) const {
    std::size_t offset = 0;
    for_each_field(row, [&](auto& field) {
      std::memcpy(at + offset, &field, sizeof field);
      offset += sizeof field;
    });
  }

 private:
  template <class Visit>
  static void for_each_field(RowPartial& row, Visit visit) {
    visit(row.digits.d0);
    visit(row.digits.d1);
    visit(row.digits.d2);
    visit(row.max_logit);
    visit(row.target_logit);
    visit(row.flags);
  }
};

// MPI may call an operation from a thread whose floating-point mode is not ours.
extern "C" void tpce_merge_rows(void* from, void* into, int* count, MPI_Datatype*) {
  const DefaultFloatMode mode;
  for (std::size_t i = 0; i < static_cast<std::size_t>(*count); ++i) {
    const RowMessage out{static_cast<std::byte*>(into) + i * kRowBytes};
    RowPartial row = out.load();
    merge(row, RowMessage{static_cast<std::byte*>(from) + i * kRowBytes}.load());
    out.store(row);
  }
}

extern "C" void tpce_merge_sums(void* from, void* into, int* count, MPI_Datatype*) {
  for (int i = 0; i < *count; ++i) merge(static_cast<BinnedSum*>(into)[i], static_cast<const BinnedSum*>(from)[i]);
}

}  // namespace

struct MpiCommunicator::InFlight {
  Partials partials;
  std::vector<std::byte> rows;
  std::vector<MPI_Request> requests;
  bool busy = false;
};

MpiCommunicator::MpiCommunicator(MPI_Comm comm, std::int64_t rows_per_call) : rows_per_call_(rows_per_call) {
  if (rows_per_call < 1 || rows_per_call > kMaxRowsPerCall) {
    throw std::invalid_argument("rows_per_call: got " + std::to_string(rows_per_call) + ", expected 1.." +
                                std::to_string(kMaxRowsPerCall));
  }
  check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
  // Errors become exceptions, which name the rank, instead of MPI's own end of the run.
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int size = 0;
  int rank = 0;
  check(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  check(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  size_ = size;
  rank_ = rank;
  const auto make_type = [&](std::size_t bytes, MPI_Datatype& type) {
    check(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type), "MPI_Type_contiguous");
    check(MPI_Type_commit(&type), "MPI_Type_commit");
  };
  make_type(kRowBytes, row_type_);
  make_type(sizeof(BinnedSum), sum_type_);
  constexpr int kCommutes = 1;
  check(MPI_Op_create(tpce_merge_rows, kCommutes, &merge_rows_), "MPI_Op_create");
  check(MPI_Op_create(tpce_merge_sums, kCommutes, &merge_sums_), "MPI_Op_create");
}

MpiCommunicator::~MpiCommunicator() {
  MPI_Op_free(&merge_sums_);
  MPI_Op_free(&merge_rows_);
  MPI_Type_free(&sum_type_);
  MPI_Type_free(&row_type_);
  MPI_Comm_free(&comm_);
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::split(int color) const {
  if (color < 0) throw std::invalid_argument("color: got " + std::to_string(color) + ", expected at least 0");
  MPI_Comm group = MPI_COMM_NULL;
  check(MPI_Comm_split(comm_, color, static_cast<int>(rank_), &group), "MPI_Comm_split");
  auto made = std::make_unique<MpiCommunicator>(group, rows_per_call_);
  made->set_before_abort(before_abort_);
  check(MPI_Comm_free(&group), "MPI_Comm_free");
  return made;
}

MpiCommunicator::InFlight& MpiCommunicator::idle_slot() {
  for (const auto& slot : in_flight_) {
    if (!slot->busy) return *slot;
  }
  return *in_flight_.emplace_back(std::make_unique<InFlight>());
}

Communicator::Pending MpiCommunicator::start_all_reduce(const Partials& partials, Backend&, Queue) {
  InFlight& slot = idle_slot();
  slot.partials = partials;
  slot.rows.resize(static_cast<std::size_t>(partials.rows) * kRowBytes);
  for (std::int64_t i = 0; i < partials.rows; ++i) {
    RowMessage{slot.rows.data() + static_cast<std::size_t>(i) * kRowBytes}.store(partials.load(i));
  }
  slot.requests.clear();
  for (std::int64_t first = 0; first < partials.rows; first += rows_per_call_) {
    const auto count = static_cast<int>(std::min(rows_per_call_, partials.rows - first));
    std::byte* rows = slot.rows.data() + static_cast<std::size_t>(first) * kRowBytes;
    slot.requests.push_back(MPI_REQUEST_NULL);
    check(MPI_Iallreduce(MPI_IN_PLACE, rows, count, row_type_, merge_rows_, comm_, &slot.requests.back()),
          "MPI_Iallreduce");
  }
  slot.busy = true;
  return {&slot};
}

void MpiCommunicator::finish(Pending pending, Queue) {
  InFlight& slot = *static_cast<InFlight*>(pending.request);
  // One by one: their number may exceed int too, and all must end anyway.
  for (MPI_Request& request : slot.requests) check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
  for (std::int64_t i = 0; i < slot.partials.rows; ++i) {
    slot.partials.store(i, RowMessage{slot.rows.data() + static_cast<std::size_t>(i) * kRowBytes}.load());
  }
  slot.busy = false;
}

void MpiCommunicator::all_reduce(BinnedSum& sum) {
  check(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, sum_type_, merge_sums_, comm_), "MPI_Allreduce");
}

std::vector<std::string> MpiCommunicator::all_gather(std::string_view mine) {
  constexpr std::size_t kMaxBytes = std::numeric_limits<int>::max();
  const std::uint64_t size = mine.size();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(size_));
  check(MPI_Allgather(&size, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, comm_), "MPI_Allgather");
  const std::uint64_t total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  if (total > kMaxBytes) {  // alike on every rank
    throw CollectiveError("all_gather: the ranks give " + std::to_string(total) + " bytes, expected at most " +
                          std::to_string(kMaxBytes));
  }
  std::vector<int> counts;
  std::vector<int> offsets;
  int offset = 0;
  for (const std::uint64_t bytes : sizes) {
    counts.push_back(static_cast<int>(bytes));
    offsets.push_back(offset);
    offset += counts.back();
  }
  std::string all(total, '\0');
  check(MPI_Allgatherv(mine.data(), static_cast<int>(size), MPI_BYTE, all.data(), counts.data(), offsets.data(),
                       MPI_BYTE, comm_),
        "MPI_Allgatherv");
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    texts.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(counts[r])));
  }
  return texts;
}

void MpiCommunicator::abort(std::string_view reason) noexcept {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (before_abort_ != nullptr) before_abort_();
  std::this_thread::sleep_for(wait_to_tell(rank));
  // No allocation: memory may be what ran out. One call, so that the lines of ranks do not mix.
  std::array<char, 96> prefix{};
  const int length = std::snprintf(prefix.data(), prefix.size(), "tpce: error: rank %d of %d: ", rank, size);
  const auto part = [](const char* text, std::size_t bytes) { return iovec{const_cast<char*>(text), bytes}; };
  const std::array line{part(prefix.data(), static_cast<std::size_t>(length)), part(reason.data(), reason.size()),
                        part("\n", 1)};
  [[maybe_unused]] const ssize_t written = writev(STDERR_FILENO, line.data(), static_cast<int>(line.size()));
  MPI_Abort(MPI_COMM_WORLD, 2);
}

void MpiCommunicator::check(int result, const char* call) const {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  throw std::runtime_error(std::string(call) + ": " + std::string(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace tpce::mpi
