// What released code returned on stored rows, beside the simulator under every order of sums: where the bits are equal,
// the order is known.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/studies/study.h"

namespace tpce::sim {

// One cell a peer whose results the safetensors file holds. The file has the tensors logits [T, V] (fp32), labels [T]
// (int64) and margin [T] (fp64), and NAME.loss [T] (fp64) and NAME.target_grad [T] (fp32) of each peer. Throws as
// io::SafetensorsFile does, and where the file holds none of the peers.
std::vector<Cell> peer_cells(const std::string& path);

// True for a result of those cells.
bool is_peer_result(const Json& result);

// results: of those cells alone.
Section peer_section(std::span<const Json> results);

// Every order tried, and how near it came.
Attachment peer_orders(std::span<const Json> results);

}  // namespace tpce::sim
