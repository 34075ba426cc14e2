// What sample.sm_*.sass is the disassembly of.
#include "tpce/register_form.h"

using namespace tpce;

template <int kDigits>
__device__ void add_all(RegisterLane& lane, const float4& four, const RegisterBin& bin) {
  for (float x : {four.x, four.y, four.z, four.w}) add<kDigits>(lane, register_exp(fmaxf(x, bin.clamp), bin));
}

// Digits as each step's first value asks for, and now and then a flush.
extern "C" __global__ void forked(const float4* x, long count, const int* bins, long* out) {
  const RegisterBin bin = register_bin(0);
  RegisterLane lane;
  Digits sum;
  for (long i = threadIdx.x; i < count; i += blockDim.x) {
    const float4 four = x[i];
    const int needed = digits_needed(bins[i], 0);
    if (needed == 3)
      add_all<3>(lane, four, bin);
    else if (needed > 0)
      add_all<1>(lane, four, bin);
    if (lane.count > 500) {
      const Digits digits = flush<3>(lane);
      sum.d0 += digits.d0;
      sum.d1 += digits.d1;
      sum.d2 += digits.d2;
    }
  }
  out[threadIdx.x] = sum.d0 + sum.d1 + sum.d2;
}

// No loop at all.
extern "C" __global__ void straight(const float4* x, float4* y) {
  const float4 four = x[threadIdx.x];
  const RegisterBin bin = register_bin(0);
  y[threadIdx.x] = {register_exp(four.x, bin), register_exp(four.y, bin), register_exp(four.z, bin),
                    register_exp(four.w, bin)};
}

// No exponential.
extern "C" __global__ void copy(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }
