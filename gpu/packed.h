// Logits as they lie in 16 bytes: what they hold at the least and at the most, and their fp32 values.
#pragma once

#include "gpu/intrinsics.h"

namespace tpce::gpu {

// As integers, floats of one sign are ordered by magnitude: the largest signed integer is the maximum where any value
// is not negative, and the largest unsigned one the minimum where any is negative. NaN of either sign is beyond the
// infinity of that sign.
struct Extremes {
  float max;
  // A lower bound of the values where any is negative, and not negative where none is; NaN where one of that sign was
  // seen.
  float low;
};

template <class T>
struct Packed {
  static constexpr int kElements = 16 / sizeof(T);

  static TPCE_DEVICE_INLINE float low(std::uint32_t word) { return widen_low(T{}, word); }
  static TPCE_DEVICE_INLINE float high(std::uint32_t word) { return widen_high(T{}, word); }

  static TPCE_DEVICE_INLINE std::uint32_t signed_max(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return max3_s16x2(a, b, c);
  }
  static TPCE_DEVICE_INLINE std::uint32_t unsigned_max(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return max3_u16x2(a, b, c);
  }
  // The largest of both halves, in the high one, which is all that kValue keeps.
  static constexpr std::uint32_t kValue = 0xffff0000u;
  static TPCE_DEVICE_INLINE std::uint32_t joined_signed(std::uint32_t word) {
    return max3_s32(word, word << 16, word) & kValue;
  }
  static TPCE_DEVICE_INLINE std::uint32_t joined_unsigned(std::uint32_t word) {
    return max3_u32(word, word << 16, word) & kValue;
  }
  static TPCE_DEVICE_INLINE float value(std::uint32_t joined) { return widen_high(T{}, joined); }
  // Value i of 16 bytes.
  static TPCE_DEVICE_INLINE float at(const Words4& words, int i) {
    return i % 2 == 0 ? low(words.word[i / 2]) : high(words.word[i / 2]);
  }
};

template <>
struct Packed<float> {
  static constexpr int kElements = 4;
  static constexpr std::uint32_t kValue = 0xffffffffu;

  static TPCE_DEVICE_INLINE std::uint32_t signed_max(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return max3_s32(a, b, c);
  }
  static TPCE_DEVICE_INLINE std::uint32_t unsigned_max(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return max3_u32(a, b, c);
  }
  static TPCE_DEVICE_INLINE std::uint32_t joined_signed(std::uint32_t word) { return word; }
  static TPCE_DEVICE_INLINE std::uint32_t joined_unsigned(std::uint32_t word) { return word; }
  static TPCE_DEVICE_INLINE float value(std::uint32_t joined) { return bit_cast<float>(joined); }
  static TPCE_DEVICE_INLINE float at(const Words4& words, int i) { return bit_cast<float>(words.word[i]); }
};

// The largest signed and unsigned integers of some words.
template <class T>
struct Largest {
  std::uint32_t as_signed;
  std::uint32_t as_unsigned;

  // Of all negative values the maximum is not known yet.
  TPCE_DEVICE_INLINE bool all_negative() const { return static_cast<std::int32_t>(as_signed) < 0; }
  TPCE_DEVICE_INLINE Extremes extremes() const { return {Packed<T>::value(as_signed), Packed<T>::value(as_unsigned)}; }
};

// Of vectors(0), ..., vectors(count - 1), count > 0; each gives the same words each time it is asked.
template <class T, class Vectors>
TPCE_DEVICE_INLINE Largest<T> largest_of(int count, Vectors&& vectors) {
  using P = Packed<T>;
  const Words4 first = vectors(0);
  std::uint32_t s = P::signed_max(first.word[0], first.word[1], first.word[2]);
  std::uint32_t u = P::unsigned_max(first.word[0], first.word[1], first.word[2]);
  std::uint32_t left = first.word[3];  // of each vector one word waits for the next, three being taken at once
  TPCE_UNROLLED for (int v = 1; v < count; ++v) {
    const Words4 next = vectors(v);
    s = P::signed_max(s, left, next.word[0]);
    u = P::unsigned_max(u, left, next.word[0]);
    s = P::signed_max(s, next.word[1], next.word[2]);
    u = P::unsigned_max(u, next.word[1], next.word[2]);
    left = next.word[3];
  }
  return {P::joined_signed(P::signed_max(s, left, left)), P::joined_unsigned(P::unsigned_max(u, left, left))};
}

// The maximum of values that are all negative: the smallest unsigned integer.
template <class T, class Vectors>
TPCE_DEVICE_INLINE float max_of_negative(int count, Vectors&& vectors) {
  using P = Packed<T>;
  std::uint32_t inverted = 0;
  TPCE_UNROLLED for (int v = 0; v < count; ++v) {
    const Words4 words = vectors(v);
    inverted = P::unsigned_max(inverted, ~words.word[0], ~words.word[1]);
    inverted = P::unsigned_max(inverted, ~words.word[2], ~words.word[3]);
  }
  return P::value(~P::joined_unsigned(inverted) & P::kValue);
}

template <class T, class Vectors>
TPCE_DEVICE_INLINE Extremes extremes_of(int count, Vectors&& vectors) {
  const Largest<T> largest = largest_of<T>(count, vectors);
  Extremes extremes = largest.extremes();
  if (largest.all_negative()) extremes.max = max_of_negative<T>(count, vectors);
  return extremes;
}

}  // namespace tpce::gpu
