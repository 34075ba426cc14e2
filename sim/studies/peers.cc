#include "sim/studies/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "io/safetensors.h"
#include "sim/studies/contender.h"
#include "sim/studies/errors.h"

namespace tpce::sim {
namespace {

struct Peer {
  std::string_view name;  // in the file
  std::string_view method;
  std::int64_t tp = 1;
  Precision precision = Precision::kFp32;
};

// Liger ran in Triton's interpreter, whose exp is exp2 of x log2(e).
constexpr std::array kPeers{Peer{"torch", "cross_entropy"},
                            Peer{"torch_compiled", "cross_entropy"},
                            Peer{"loss_parallel", "log_softmax"},
                            Peer{"torchtitan_legacy", "log_softmax"},
                            Peer{"torchtitan_legacy.tp2", "log_softmax", 2},
                            Peer{"megatron", "megatron"},
                            Peer{"megatron.tp2", "megatron", 2},
                            Peer{"megatron_fused", "megatron_fused"},
                            Peer{"liger", "liger", 1, Precision::kFp32FastExp},
                            Peer{"softplus_recompute_emulated", "softplus_recompute"}};

// The grid of target gradients near -1 and of sums near 1: what one rounding there comes to.
constexpr double kUnit = 0x1p-24;

template <class T>
constexpr io::ElementType kElementType = io::ElementType::kFloat32;
template <>
constexpr io::ElementType kElementType<double> = io::ElementType::kFloat64;
template <>
constexpr io::ElementType kElementType<std::int64_t> = io::ElementType::kInt64;

template <class T>
std::vector<T> values_of(const io::SafetensorsFile& file, const std::string& name, std::size_t count) {
  const io::Tensor tensor = file.tensor(name);
  if (tensor.type != kElementType<T> || static_cast<std::size_t>(tensor.elements()) != count) {
    throw std::invalid_argument(fmt::format("{}: {}: got {} elements of {}, expected {} of {}", file.path(), name,
                                            tensor.elements(), io::name_of(tensor.type), count,
                                            io::name_of(kElementType<T>)));
  }
  const T* first = static_cast<const T*>(tensor.data);
  return {first, first + count};
}

struct StoredRows {
  explicit StoredRows(const io::SafetensorsFile& file) {
    const std::vector<std::int64_t> shape = file.tensor("logits").shape;
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) {
      throw std::invalid_argument(
          fmt::format("{}: logits: got shape [{}], expected [T, V]", file.path(), fmt::join(shape, ", ")));
    }
    rows = static_cast<std::size_t>(shape[0]);
    vocab = static_cast<std::size_t>(shape[1]);
    logits = values_of<float>(file, "logits", rows * vocab);
    labels = values_of<std::int64_t>(file, "labels", rows);
    margins = values_of<double>(file, "margin", rows);
    for (std::size_t i = 0; i < rows; ++i) {
      if (labels[i] < 0 || labels[i] >= shape[1]) {
        throw std::invalid_argument(
            fmt::format("{}: labels: row {} has {}, expected 0..{}", file.path(), i, labels[i], vocab - 1));
      }
    }
  }
  std::span<const float> row(std::size_t i) const { return std::span(logits).subspan(i * vocab, vocab); }

  std::size_t rows = 0;
  std::size_t vocab = 0;
  std::vector<float> logits;
  std::vector<std::int64_t> labels;
  std::vector<double> margins;
};

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(a)) == std::bit_cast<std::uint32_t>(static_cast<float>(b));
}

Json compare(const std::string& path, const Peer& peer) {
  const io::SafetensorsFile file{io::MappedFile(path)};
  const StoredRows stored(file);
  const std::string name(peer.name);
  const std::vector<double> loss = values_of<double>(file, name + ".loss", stored.rows);
  const std::vector<float> target_grad = values_of<float>(file, name + ".target_grad", stored.rows);

  Json orders = Json::array();
  for (const SumOrderInfo& order : kSumOrders) {
    const Setting setting{.tp = peer.tp, .order = {order.order, {}, {}}, .precision = peer.precision};
    std::int64_t same_loss = 0, same_grad = 0;
    double apart = 0.0;
    for (std::size_t i = 0; i < stored.rows; ++i) {
      const RowValues ours = evaluate_row(method_from_name(peer.method), setting, stored.row(i), stored.labels[i]);
      same_loss += same_bits(ours.loss, loss[i]) ? 1 : 0;
      same_grad += same_bits(ours.target_grad, static_cast<double>(target_grad[i])) ? 1 : 0;
      apart = larger(apart, std::abs(ours.target_grad - static_cast<double>(target_grad[i])) / kUnit);
    }
    orders.push_back({{"order", name_of(order.order)},
                      {"losses", same_loss},
                      {"target_grads", same_grad},
                      {"apart", json_of(apart)}});
  }

  // Of what the peer returned. The exact target gradient is -1 / (1 + exp(margin)).
  double first_lost = HUGE_VAL, last_kept = 0.0;
  double error[2][2] = {{HUGE_VAL, 0.0}, {HUGE_VAL, 0.0}};
  for (std::size_t i = 0; i < stored.rows; ++i) {
    const double margin = stored.margins[i];
    const double exact = -1.0 / (1.0 + std::exp(margin));
    if (target_grad[i] == 0.0f) {
      first_lost = std::min(first_lost, margin);
    } else {
      last_kept = std::max(last_kept, margin);
    }
    for (const int at : {0, 1}) {
      if (std::abs(margin - (at == 0 ? 10.0 : 15.0)) > 0.01) continue;
      const double relative = std::abs(static_cast<double>(target_grad[i]) / exact - 1);
      error[at][0] = std::min(error[at][0], relative);
      error[at][1] = larger(error[at][1], relative);
    }
  }
  return {{"peer", name},
          {"method", peer.method},
          {"tp", peer.tp},
          {"precision", name_of(peer.precision)},
          {"rows", stored.rows},
          {"orders", orders},
          {"first_lost", json_of(first_lost)},
          {"last_kept", json_of(last_kept)},
          {"error_at_10", {json_of(error[0][0]), json_of(error[0][1])}},
          {"error_at_15", {json_of(error[1][0]), json_of(error[1][1])}}};
}

// Most rows equal, losses and target gradients together.
const Json& nearest(const Json& result, const std::string& but = {}) {
  const Json* best = nullptr;
  for (const Json& order : result.at("orders")) {
    if (order.at("order") == but) continue;
    const auto score = [](const Json& o) {
      return o.at("losses").get<std::int64_t>() + o.at("target_grads").get<std::int64_t>();
    };
    if (best == nullptr || score(order) > score(*best)) best = &order;
  }
  return *best;
}

std::string counts(const Json& order) {
  return fmt::format("{}: {}, {}", order.at("order").get<std::string>(), order.at("losses").get<std::int64_t>(),
                     order.at("target_grads").get<std::int64_t>());
}

std::string range_text(const Json& range) {
  const double low = 100 * number_of(range.at(0)), high = 100 * number_of(range.at(1));
  if (!std::isfinite(low)) return "";
  return fmt::format("{:.2g} to {:.2g} %", low, high);
}

}  // namespace

std::vector<Cell> peer_cells(const std::string& path) {
  const io::SafetensorsFile file{io::MappedFile(path)};
  (void)StoredRows(file);
  std::vector<Cell> cells;
  for (const Peer& peer : kPeers) {
    if (!file.entries().contains(std::string(peer.name) + ".loss")) continue;
    cells.push_back({fmt::format("peer-{}", peer.name),
                     [path, peer](const std::filesystem::path&) { return compare(path, peer); }});
  }
  if (cells.empty()) {
    throw std::invalid_argument(
        fmt::format("{}: holds the results of no peer, expected tensors such as {}.loss", path, kPeers[0].name));
  }
  return cells;
}

bool is_peer_result(const Json& result) { return result.contains("peer"); }

Section peer_section(std::span<const Json> results) {
  Table lost{{"released code", "first lost at margin", "last kept at", "error near margin 10", "near 15"}, {}};
  Table orders{{"released code", "simulated by", "nearest order: losses, target gradients equal", "next", "rows"}, {}};
  std::string known, unknown;
  for (const Json& result : results) {
    const std::string name = result.at("peer");
    lost.add({name, fmt::format("{:.2f}", number_of(result.at("first_lost"))),
              fmt::format("{:.2f}", number_of(result.at("last_kept"))), range_text(result.at("error_at_10")),
              range_text(result.at("error_at_15"))});
    const Json& best = nearest(result);
    std::string method = result.at("method");
    if (result.at("precision") != "fp32") method += " in " + result.at("precision").get<std::string>();
    if (result.at("tp") != 1) method += fmt::format(", tp {}", result.at("tp").get<std::int64_t>());
    orders.add({name, method, counts(best), counts(nearest(result, best.at("order"))), result.at("rows").dump()});
    const bool all = best.at("losses") == result.at("rows") && best.at("target_grads") == result.at("rows");
    std::string& list = all ? known : unknown;
    if (!list.empty()) list += ", ";
    list += name;
  }
  return {.heading = "Beside released code",
          .text = fmt::format(
              "The same rows ran through released code (tests/data/peers). The simulator has every bit of: {}. {}"
              "What decides the margin at which a loss collapses is the order of its sum: F.cross_entropy keeps one "
              "register of eight lanes, so that half an ulp of 1 must come together in one lane; torch.sum, which the "
              "vocab-parallel losses call, adds in a cascade of 32 lanes, whose first partial sums are smaller. Before "
              "the border the target gradient p_t - 1 is a multiple of 2^-24 where exact arithmetic has exp(-margin): "
              "at margin 10 a rounding is up to {:.2g} % of it, at 15 up to {:.2g} %, and sums of several roundings "
              "more. Every order that was tried is in peers.csv.",
              known.empty() ? "none" : known,
              unknown.empty() ? "" : fmt::format("Not of: {}, which come as near as the table says. ", unknown),
              100 * kUnit / 2 * std::exp(10.0), 100 * kUnit / 2 * std::exp(15.0)),
          .tables = {std::move(lost), std::move(orders)},
          .figures = {}};
}

Attachment peer_orders(std::span<const Json> results) {
  std::string text = "peer,method,tp,precision,order,rows,losses_equal,target_gradients_equal,apart_in_2^-24\n";
  for (const Json& result : results) {
    for (const Json& order : result.at("orders")) {
      text += fmt::format("{},{},{},{},{},{},{},{},{:.6g}\n", result.at("peer").get<std::string>(),
                          result.at("method").get<std::string>(), result.at("tp").dump(),
                          result.at("precision").get<std::string>(), order.at("order").get<std::string>(),
                          result.at("rows").dump(), order.at("losses").dump(), order.at("target_grads").dump(),
                          number_of(order.at("apart")));
    }
  }
  return {"peers.csv", text};
}

}  // namespace tpce::sim
