#include "sim/order/all_reduce_order.h"

#include "sim/order/names.h"

namespace tpce::sim {

AllReduceOrder all_reduce_order_from_name(std::string_view name) {
  return find_by_name("all-reduce order", name, kAllReduceOrders).order;
}

std::string_view name_of(AllReduceOrder order) { return kAllReduceOrders[static_cast<std::size_t>(order)].name; }

}  // namespace tpce::sim
