"""The text of a matrix times a vector, or a few; `@NAME@` stands for what the kernel at hand has in its place."""

ROWS = r"""{
  // A warp takes @TAKEN@ rows of the matrix, or a share of them, for all @MANY@ vectors.
  constexpr int kw_teams = @BLOCK@ / 32 / @SHARE@;
  constexpr unsigned kw_far = @ROWS@ / @MANY@;
  __shared__ float kw_left[@BLOCK@ / 32][@TAKEN@][@MANY@];
  const int kw_lane = threadIdx.x % 32, kw_warp = threadIdx.x / 32, kw_part = kw_warp % @SHARE@;
  const unsigned kw_first = (blockIdx.x * kw_teams + kw_warp / @SHARE@) * @TAKEN@, kw_end = kw_far - 1;
  long long kw_row[@TAKEN@], kw_own[@MANY@], kw_uneven = 0;
  bool kw_is_shared = true;
  float kw_sum[@TAKEN@][@MANY@];
  _Pragma("unroll") for (int kw_m = 0; kw_m < @MANY@; ++kw_m) {
    @vector_at@(@ARGS@, (kw_first < kw_end ? kw_first : kw_end) + kw_m * kw_far, 0, kw_own[kw_m]);
    kw_uneven |= kw_own[kw_m];
    _Pragma("unroll") for (int kw_r = 0; kw_r < @TAKEN@; ++kw_r) {
      const unsigned kw_next = (kw_first + kw_r < kw_end ? kw_first + kw_r : kw_end) + kw_m * kw_far;
      long long kw_its, kw_theirs;
      @matrix_at@(@ARGS@, kw_next, 0, kw_its);
      @vector_at@(@ARGS@, kw_next, 0, kw_theirs);
      if (kw_m == 0) kw_row[kw_r] = kw_its;
      kw_is_shared = kw_is_shared && kw_its == kw_row[kw_r] && kw_theirs == kw_own[kw_m];
      kw_uneven |= kw_its;
      kw_sum[kw_r][kw_m] = 0.0f;
    }
  }
  if (kw_is_shared && kw_uneven % @VEC@ == 0) {
#pragma unroll @UNROLL@
    for (int kw_k = (kw_part * 32 + kw_lane) * @VEC@; kw_k < @LENGTH@; kw_k += @SHARE@ * 32 * @VEC@) {
      kw_lanes<@W_TYPE@> kw_w[@TAKEN@];
      _Pragma("unroll") for (int kw_r = 0; kw_r < @TAKEN@; ++kw_r) kw_w[kw_r] = kw_load_whole(@W@, kw_row[kw_r] + kw_k);
      _Pragma("unroll") for (int kw_m = 0; kw_m < @MANY@; ++kw_m) {
        const kw_lanes<@X_TYPE@> kw_x = kw_load_near(@X@ + kw_own[kw_m] + kw_k);
        _Pragma("unroll") for (int kw_r = 0; kw_r < @TAKEN@; ++kw_r) {
          _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
            kw_sum[kw_r][kw_m] += (float)kw_w[kw_r].v[kw_i] * (float)kw_x.v[kw_i];
          }
        }
      }
    }
  } else {
    for (int kw_n = 0; kw_n < @TAKEN@ * @MANY@; ++kw_n) {
      const int kw_r = kw_n / @MANY@, kw_m = kw_n % @MANY@;
      const unsigned kw_next = (kw_first + kw_r < kw_end ? kw_first + kw_r : kw_end) + kw_m * kw_far;
      long long kw_its, kw_theirs;
      @matrix_at@(@ARGS@, kw_next, 0, kw_its);
      @vector_at@(@ARGS@, kw_next, 0, kw_theirs);
      float kw_dot = 0.0f;
      for (int kw_k = kw_part * 32 + kw_lane; kw_k < @LENGTH@; kw_k += @SHARE@ * 32) {
        kw_dot += (float)@W@[kw_its + kw_k] * (float)@X@[kw_theirs + kw_k];
      }
      _Pragma("unroll") for (int kw_r2 = 0; kw_r2 < @TAKEN@; ++kw_r2) {
        _Pragma("unroll") for (int kw_m2 = 0; kw_m2 < @MANY@; ++kw_m2) {
          if (kw_r2 == kw_r && kw_m2 == kw_m) kw_sum[kw_r2][kw_m2] = kw_dot;
        }
      }
    }
  }
  _Pragma("unroll") for (int kw_r = 0; kw_r < @TAKEN@; ++kw_r) {
    _Pragma("unroll") for (int kw_m = 0; kw_m < @MANY@; ++kw_m) {
      _Pragma("unroll") for (int kw_reach = 16; kw_reach > 0; kw_reach /= 2) {
        kw_sum[kw_r][kw_m] += __shfl_xor_sync(0xffffffffu, kw_sum[kw_r][kw_m], kw_reach);
      }
      if (kw_lane == 0) kw_left[kw_warp][kw_r][kw_m] = kw_sum[kw_r][kw_m];
    }
  }
  __syncthreads();
  if (kw_part != 0) return;
  for (int kw_n = kw_lane; kw_n < @TAKEN@ * @MANY@; kw_n += 32) {
    const int kw_r = kw_n % @TAKEN@, kw_m = kw_n / @TAKEN@;
    if (kw_first + kw_r > kw_end) continue;
    float kw_all = 0.0f;
    for (int kw_p = 0; kw_p < @SHARE@; ++kw_p) kw_all += kw_left[kw_warp + kw_p][kw_r][kw_m];
    long long kw_at;
    @out_at@(@ARGS@, kw_first + kw_r + kw_m * kw_far, 0, kw_at);
    @result_of@(@ARGS@, kw_first + kw_r + kw_m * kw_far, kw_all, @O@[kw_at]);
  }
}"""

NEAR = r"""// Loads of what other warps load, too: kept as near as can be.
template <class T> __device__ __forceinline__ kw_lanes<T> kw_load_near(const T *from) {
  typedef typename kw_packed<(sizeof(T) * @VEC@ < 16 ? sizeof(T) * @VEC@ : 16)>::type packed;
  kw_lanes<T> r;
  const packed *at = reinterpret_cast<const packed *>(from);
  _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) * @VEC@ / sizeof(packed)); ++i) {
    reinterpret_cast<packed *>(r.v)[i] = at[i];
  }
  return r;
}
"""
