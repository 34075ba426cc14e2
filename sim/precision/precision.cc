#include "sim/precision/precision.h"

#include "sim/order/names.h"

namespace tpce::sim {

Precision precision_from_name(std::string_view name) { return find_by_name("precision", name, kPrecisions).precision; }

}  // namespace tpce::sim
