// One implementation held against others on the same logits, rows after rows: what `tpce parity` runs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/parity/implementation.h"
#include "sim/parity/value_parity.h"

namespace tpce::sim {

enum class Quantity : std::uint8_t {
  kLoss,      // of each row, fp32
  kLse,       // of each row, fp32; only where both sides have one
  kGradient,  // of the reduced loss, each element in the type asked for
  // The two, each side's by one call that makes both; only where both sides have it.
  kFusedLoss,
  kFusedGradient,
  // One a file, fp32; only between two canonical sides, since the others' depend on an order of sums over rows.
  kReducedLoss,
  kGradientNorm,
};
constexpr std::array kQuantities{Quantity::kLoss,        Quantity::kLse,           Quantity::kGradient,
                                 Quantity::kFusedLoss,   Quantity::kFusedGradient, Quantity::kReducedLoss,
                                 Quantity::kGradientNorm};
// "loss", "lse", "gradient", "fused_loss", "fused_gradient", "reduced_loss", "gradient_norm".
std::string_view name_of(Quantity quantity);

struct ParityRequest {
  std::shared_ptr<Implementation> a;
  std::vector<std::shared_ptr<Implementation>> b;
  // Of the canonical algorithm: tells the rows whose loss is 0 but should not be. May be one of the above, and null.
  std::shared_ptr<Implementation> witness = {};
  std::vector<std::int64_t> tp = {1};
  DType gradient_dtype = DType::kFloat32;
  bool require_equal = false;  // of every pair, not only of two canonical ones
  // Called with the rows after each evaluation of them; evaluations_a_row() says how many there are.
  std::function<void(std::int64_t rows)> evaluated = {};
};

struct ParityFile {
  std::string name;
  Labels labels;  // valid until finish()
  std::int64_t columns = 0;
  std::int64_t vocab = 0;
  DType dtype = DType::kFloat32;
  Options options = {};
};

// a against one b at one tp, over all files.
struct PairParity {
  std::string a;
  std::string b;
  std::int64_t tp = 1;
  bool required = false;                                                       // to be equal
  std::array<std::optional<ValueParity>, kQuantities.size()> quantities = {};  // those that both sides have
  // Rows whose loss is exactly 0 although the canonical loss is not; none where the loss is another than softmax's, or
  // without a witness.
  std::optional<std::int64_t> collapsed_a = {};
  std::optional<std::int64_t> collapsed_b = {};

  const std::optional<ValueParity>& of(Quantity quantity) const {
    return quantities[static_cast<std::size_t>(quantity)];
  }
  bool equal() const;
  bool failed() const { return required && !equal(); }
  // The largest, and the worst value of a row, of all quantities.
  std::uint64_t max_ulp() const;
  std::optional<Quantity> worst_quantity() const;
};

class Parity {
 public:
  struct FileSummary {
    std::string name;
    std::int64_t rows = 0;
    std::int64_t valid_rows = 0;
    std::int64_t vocab = 0;
    DType dtype = DType::kFloat32;
  };

  explicit Parity(ParityRequest request);

  // How often each row is computed.
  std::int64_t evaluations_a_row() const;

  // What can be refused before any logits are read: the labels, the vocabulary, tp.
  void check(const ParityFile& file) const;
  // A file is begun, its rows are added in order, and it is finished. Each throws std::invalid_argument that names the
  // argument and, where there is one, the row of the file.
  void begin(const ParityFile& file);
  void add(const ConstMatrix& logits);  // [any number of rows, columns], on the host
  void finish();

  const std::vector<PairParity>& pairs() const { return pairs_; }  // by b, then by tp
  const std::vector<FileSummary>& files() const { return files_; }
  const ParityRequest& request() const { return request_; }
  // Values that a certified side could not prove, by its name.
  const std::map<std::string, std::int64_t>& undecided() const { return undecided_; }
  // A pair that must be equal is not.
  bool failed() const;

 private:
  // What a canonical side's parts of the file add up to.
  struct Totals {
    LossSum sum;
    BinnedSum squares;
  };
  using Result = std::shared_ptr<const RowsResult>;

  std::size_t sides() const { return 1 + request_.b.size(); }  // a is the first
  Implementation& side(std::size_t i) const { return i == 0 ? *request_.a : *request_.b[i - 1]; }
  bool witness_is_a_side() const;
  Result evaluate(Implementation& implementation, const ParityRows& rows);
  PairParity& pair(std::size_t b, std::size_t tp) { return pairs_[b * request_.tp.size() + tp]; }
  Totals& totals(std::size_t a_side, std::size_t tp) { return totals_[a_side * request_.tp.size() + tp]; }
  void compare(PairParity& pair, const RowsResult& a, const RowsResult& b, const Batch& batch);
  void add_losses(ValueParity& values, const std::vector<float>& a, const std::vector<float>& b) const;
  void add_gradients(ValueParity& values, const Matrix& a, const Matrix& b) const;

  ParityRequest request_;
  std::vector<PairParity> pairs_;
  std::vector<FileSummary> files_;
  std::map<std::string, std::int64_t> undecided_;
  // Of the file that is open.
  ParityFile file_;
  std::int64_t divisor_ = 1;
  std::int64_t next_row_ = 0;
  std::vector<Totals> totals_;  // by side, then by tp
};

}  // namespace tpce::sim
