#include "sim/order/sum_order.h"

#include "sim/order/names.h"

namespace tpce::sim {

SumOrder sum_order_from_name(std::string_view name) { return find_by_name("sum order", name, kSumOrders).order; }

std::string_view name_of(SumOrder order) { return kSumOrders[static_cast<std::size_t>(order)].name; }

}  // namespace tpce::sim
