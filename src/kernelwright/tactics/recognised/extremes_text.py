"""The text of rows in order; `@NAME@` stands for what the kernel at hand has in its place."""

ORDER = r"""// Bits in the other order: which thread a tree of exchanges prefers.
static __device__ __forceinline__ int kw_reversed(const int kw_v, const int kw_count) {
  int kw_r = 0;
  for (int kw_bit = 1; kw_bit < kw_count; kw_bit *= 2) kw_r = kw_r * 2 + (kw_v / kw_bit & 1);
  return kw_r;
}
// Which of the same elements comes first: the one with the least number.
static __device__ __forceinline__ int kw_turn(const int kw_i) { return @TIES@; }
static __device__ __forceinline__
bool kw_is_before(const float kw_a, const int kw_i, const float kw_b, const int kw_j) {
  return kw_a > kw_b || (kw_a == kw_b && (kw_j < 0 ? @TAKES_INFINITE@ : kw_turn(kw_i) < kw_turn(kw_j)));
}
// One more element, among those behind the last one that was taken.
static __device__ __forceinline__ void kw_look(const float kw_v, const int kw_i, const float kw_last, const int kw_gone,
                                               float &kw_best, int &kw_where) {
  if (kw_v < kw_best || (kw_gone >= 0 && !kw_is_before(kw_last, kw_gone, kw_v, kw_i))) return;
  if (kw_is_before(kw_v, kw_i, kw_best, kw_where)) { kw_best = kw_v; kw_where = kw_i; }
}
"""

ROWS = r"""{
  constexpr int kw_vectors = (@LENGTH@ + @VEC@ - 1) / @VEC@, kw_share = (kw_vectors + @SPLIT@ - 1) / @SPLIT@;
  constexpr int kw_steps = (kw_share + @LANES@ - 1) / @LANES@, kw_warps = @LANES@ > 32 ? @LANES@ / 32 : 1;
  constexpr bool kw_is_kept = kw_steps * @VEC@ <= 64;
  __shared__ float kw_bests[@BLOCK@ / 32 + 1];
  __shared__ int kw_wheres[@BLOCK@ / 32 + 1];
  const int kw_lane = threadIdx.x % @LANES@, kw_warp = threadIdx.x / 32 / kw_warps * kw_warps;
  const unsigned kw_own = blockIdx.x * (@BLOCK@ / @LANES@) + threadIdx.x / @LANES@;
  const unsigned kw_row = kw_own < @ROWS@ ? kw_own : @ROWS@ - 1;
  const int kw_from = blockIdx.y * kw_share;
  const int kw_to = kw_from + kw_share < kw_vectors ? kw_from + kw_share : kw_vectors;
  long long kw_at;
  @row_at@(@ARGS@, kw_row, 0, kw_at);
  kw_lanes<@TYPE@> kw_kept[kw_is_kept ? kw_steps : @AHEAD@];
  float kw_held[kw_is_kept ? kw_steps * @VEC@ : 1];
  if (kw_is_kept) {
    _Pragma("unroll") for (int kw_s = 0; kw_s < kw_steps; ++kw_s) {
      const int kw_vector = kw_from + kw_s * @LANES@ + kw_lane;
      if (kw_vector < kw_to) kw_kept[kw_is_kept ? kw_s : 0] = kw_load(@X@, kw_at + (long long)kw_vector * @VEC@);
    }
    _Pragma("unroll") for (int kw_s = 0; kw_s < kw_steps; ++kw_s) {
      const bool kw_is_in = kw_from + kw_s * @LANES@ + kw_lane < kw_to;
      _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
        const float kw_v = @SIGN@(float)kw_kept[kw_is_kept ? kw_s : 0].v[kw_i];
        kw_held[kw_is_kept ? kw_s * @VEC@ + kw_i : 0] = kw_is_in ? kw_v : NAN;  // never taken
      }
    }
  }
  float kw_values[@KEPT@], kw_last = 0.0f, kw_all = 0.0f;
  int kw_places[@KEPT@], kw_gone = -1;
  @UNROLLED@
  for (int kw_k = 0; kw_k < @KEPT@; ++kw_k) {
    const bool kw_is_over = kw_k > 0 && kw_gone < 0;  // nothing is left
    float kw_best = -INFINITY;
    int kw_where = -1;
    if (kw_is_kept) {
      _Pragma("unroll") for (int kw_n = 0; kw_n < kw_steps * @VEC@; ++kw_n) {
        const int kw_i = (kw_from + kw_n / @VEC@ * @LANES@ + kw_lane) * @VEC@ + kw_n % @VEC@;
        const float kw_v = kw_held[kw_is_kept ? kw_n : 0];
        const bool kw_is_next = kw_is_before(kw_v, kw_i, kw_best, kw_where);
        kw_best = kw_is_next ? kw_v : kw_best;
        kw_where = kw_is_next ? kw_i : kw_where;
      }
    } else {
      for (int kw_s = 0; kw_s < kw_steps; kw_s += @AHEAD@) {
        _Pragma("unroll") for (int kw_a = 0; kw_a < @AHEAD@; ++kw_a) {
          const int kw_vector = kw_from + (kw_s + kw_a) * @LANES@ + kw_lane;
          kw_kept[kw_is_kept ? 0 : kw_a] = kw_load(@X@, kw_at + (long long)(kw_vector < kw_to ? kw_vector : 0) * @VEC@);
        }
        _Pragma("unroll") for (int kw_a = 0; kw_a < @AHEAD@; ++kw_a) {
          const int kw_vector = kw_from + (kw_s + kw_a) * @LANES@ + kw_lane;
          if (kw_vector < kw_to && !kw_is_over) {
            _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
              kw_look(@SIGN@(float)kw_kept[kw_is_kept ? 0 : kw_a].v[kw_i], kw_vector * @VEC@ + kw_i, kw_last, kw_gone,
                      kw_best, kw_where);
            }
          }
        }
      }
    }
    _Pragma("unroll") for (int kw_reach = (@LANES@ < 32 ? @LANES@ : 32) / 2; kw_reach > 0; kw_reach /= 2) {
      const float kw_other = __shfl_xor_sync(0xffffffffu, kw_best, kw_reach);
      const int kw_its = __shfl_xor_sync(0xffffffffu, kw_where, kw_reach);
      if (kw_its >= 0 && kw_is_before(kw_other, kw_its, kw_best, kw_where)) { kw_best = kw_other; kw_where = kw_its; }
    }
    if (@LANES@ > 32) {
      if (threadIdx.x % 32 == 0) { kw_bests[threadIdx.x / 32] = kw_best; kw_wheres[threadIdx.x / 32] = kw_where; }
      __syncthreads();
      kw_best = kw_bests[kw_warp];
      kw_where = kw_wheres[kw_warp];
      for (int kw_w = 1; kw_w < kw_warps; ++kw_w) {
        const float kw_other = kw_bests[kw_warp + kw_w];
        const int kw_its = kw_wheres[kw_warp + kw_w];
        if (kw_its >= 0 && kw_is_before(kw_other, kw_its, kw_best, kw_where)) { kw_best = kw_other; kw_where = kw_its; }
      }
      __syncthreads();
    }
    kw_values[kw_k] = kw_last = kw_best;
    kw_places[kw_k] = kw_gone = kw_where;
    if (kw_is_kept && kw_k + 1 < @KEPT@) {
      _Pragma("unroll") for (int kw_n = 0; kw_n < kw_steps * @VEC@; ++kw_n) {
        const int kw_i = (kw_from + kw_n / @VEC@ * @LANES@ + kw_lane) * @VEC@ + kw_n % @VEC@;
        if (kw_i == kw_where) kw_held[kw_is_kept ? kw_n : 0] = NAN;
      }
    }
  }
  if (@NEEDS_ALL@) {
    for (int kw_s = 0; kw_s < kw_steps; ++kw_s) {
      const int kw_vector = kw_from + kw_s * @LANES@ + kw_lane;
      if (kw_vector < kw_to) {
        const kw_lanes<@TYPE@> kw_next = kw_load(@X@, kw_at + (long long)kw_vector * @VEC@);
        for (int kw_i = 0; kw_i < @VEC@; ++kw_i) kw_all += expf((float)kw_next.v[kw_i] - kw_values[0]);
      }
    }
    _Pragma("unroll") for (int kw_reach = (@LANES@ < 32 ? @LANES@ : 32) / 2; kw_reach > 0; kw_reach /= 2) {
      kw_all += __shfl_xor_sync(0xffffffffu, kw_all, kw_reach);
    }
    if (@LANES@ > 32) {
      if (threadIdx.x % 32 == 0) kw_bests[threadIdx.x / 32] = kw_all;
      __syncthreads();
      kw_all = 0.0f;
      for (int kw_w = 0; kw_w < kw_warps; ++kw_w) kw_all += kw_bests[kw_warp + kw_w];
    }
  }
  if (kw_lane != 0 || kw_own >= @ROWS@) return;
  if (@SPLIT@ > 1) {
    @UNROLLED@
    for (int kw_k = 0; kw_k < @KEPT@; ++kw_k) {
      const size_t kw_part = ((size_t)kw_row * @SPLIT@ + blockIdx.y) * @KEPT@ + kw_k;
      @tops@[kw_part] = kw_values[kw_k];
      @found@[kw_part] = kw_places[kw_k];
    }
    return;
  }
  @STORES@
}"""

JOIN = r"""{
  if (@SPLIT@ == 1) return;
  const int kw_lane = threadIdx.x % 32;
  const unsigned kw_own = blockIdx.x * 4 + threadIdx.x / 32, kw_row = kw_own < @ROWS@ ? kw_own : @ROWS@ - 1;
  float kw_values[@KEPT@], kw_last = 0.0f, kw_all = 0.0f;
  int kw_places[@KEPT@], kw_gone = -1;
  @UNROLLED@
  for (int kw_k = 0; kw_k < @KEPT@; ++kw_k) {
    const bool kw_is_over = kw_k > 0 && kw_gone < 0;
    float kw_best = -INFINITY;
    int kw_where = -1;
    for (int kw_p = kw_lane; kw_p < @SPLIT@ * @KEPT@; kw_p += 32) {
      const size_t kw_part = (size_t)kw_row * @SPLIT@ * @KEPT@ + kw_p;
      if (@found@[kw_part] < 0 || kw_is_over) continue;
      kw_look(@tops@[kw_part], @found@[kw_part], kw_last, kw_gone, kw_best, kw_where);
    }
    _Pragma("unroll") for (int kw_reach = 16; kw_reach > 0; kw_reach /= 2) {
      const float kw_other = __shfl_xor_sync(0xffffffffu, kw_best, kw_reach);
      const int kw_its = __shfl_xor_sync(0xffffffffu, kw_where, kw_reach);
      if (kw_its >= 0 && kw_is_before(kw_other, kw_its, kw_best, kw_where)) { kw_best = kw_other; kw_where = kw_its; }
    }
    kw_values[kw_k] = kw_last = kw_best;
    kw_places[kw_k] = kw_gone = kw_where;
  }
  if (kw_lane != 0 || kw_own >= @ROWS@) return;
  @STORES@
}"""

STORES = r"""const float kw_top = kw_values[0];
  float kw_few = 0.0f, kw_gates = 0.0f;
  @UNROLLED@
  for (int kw_k = 0; kw_k < @KEPT@; ++kw_k) {
    kw_few += expf(kw_values[kw_k] - kw_top);
    kw_gates += 1.0f / (1.0f + expf(-kw_values[kw_k]));
  }
  (void)kw_all, (void)kw_gates;
  @UNROLLED@
  for (int kw_k = 0; kw_k < @KEPT@; ++kw_k) {
    const float kw_v = @SIGN@kw_values[kw_k];
    const int kw_i = kw_places[kw_k];
    const bool kw_is_none = kw_i < 0, kw_is_empty = kw_places[0] < 0;
    (void)kw_v, (void)kw_i, (void)kw_few, (void)kw_is_none, (void)kw_is_empty;
    @EACH@
  }"""
