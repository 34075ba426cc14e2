#include "bench/onednn.h"

#include <fmt/format.h>

#include <oneapi/dnnl/dnnl.hpp>

// Clang's <omp.h> is that of another runtime than oneDNN is linked with.
extern "C" void omp_set_num_threads(int);

namespace tpce::bench {
namespace {

dnnl::memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return dnnl::memory::data_type::f32;
    case DType::kBFloat16:
      return dnnl::memory::data_type::bf16;
    case DType::kFloat16:
      return dnnl::memory::data_type::f16;
    default:
      return dnnl::memory::data_type::undef;
  }
}

}  // namespace

std::string onednn_version() {
  const dnnl_version_t& version = *dnnl::version();
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

std::function<void()> onednn_log_softmax(const ConstMatrix& logits, void* out, int threads) {
  omp_set_num_threads(threads);  // scratch memory is made for as many
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const dnnl::memory::desc shape({logits.rows, logits.cols}, type_of(logits.dtype), dnnl::memory::format_tag::ab);
  const dnnl::logsoftmax_forward::desc operation(dnnl::prop_kind::forward_inference, shape, 1);
  const dnnl::logsoftmax_forward::primitive_desc found(operation, engine, true);
  if (!found) return {};
  // oneDNN takes every buffer as one that it may write, and does not write this one.
  const dnnl::memory from(shape, engine, const_cast<void*>(logits.data));
  const dnnl::memory to(shape, engine, out);
  return [=, primitive = dnnl::logsoftmax_forward(found), stream = dnnl::stream(engine)]() mutable {
    omp_set_num_threads(threads);
    primitive.execute(stream, {{DNNL_ARG_SRC, from}, {DNNL_ARG_DST, to}});
    stream.wait();
  };
}

}  // namespace tpce::bench
