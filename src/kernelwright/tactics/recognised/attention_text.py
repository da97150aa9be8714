"""The text of attention in parts; `@NAME@` stands for what the kernel at hand has in its place."""

PARTS = r"""{
  // Keys are taken by groups of @LANES@ threads; each keeps its largest product, its weights' sum, its weighted values.
  constexpr int kw_chunks = (@DIM@ + @LANES@ * @VEC@ - 1) / (@LANES@ * @VEC@);
  constexpr int kw_groups = @BLOCK@ / @LANES@, kw_warps = @BLOCK@ / 32;
  __shared__ float kw_left[kw_warps][@HEADS@][@DIM@ + 2];
  const int kw_lane = threadIdx.x % @LANES@, kw_group = threadIdx.x / @LANES@;
  const unsigned kw_first = blockIdx.x * @HEADS@, kw_end = @ROWS@ - 1;
  bool kw_is_shared = true;
  {
    long long kw_own[@MARKS@], kw_other[@MARKS@];
    @marks_of@(@ARGS@, kw_first, kw_own);
    for (unsigned kw_h = 1; kw_h < @HEADS@; ++kw_h) {
      @marks_of@(@ARGS@, kw_first + kw_h < kw_end ? kw_first + kw_h : kw_end, kw_other);
      for (int kw_i = 0; kw_i < @MARKS@; ++kw_i) kw_is_shared = kw_is_shared && kw_own[kw_i] == kw_other[kw_i];
    }
  }
  // Rows with keys of their own are taken one after the other.
  for (int kw_turn = 0; kw_turn < (kw_is_shared ? 1 : @HEADS@); ++kw_turn) {
    float kw_query[@HEADS@][kw_chunks][@VEC@], kw_sum[@HEADS@][kw_chunks][@VEC@], kw_top[@HEADS@], kw_total[@HEADS@];
    const unsigned kw_at_first = kw_first + kw_turn < kw_end ? kw_first + kw_turn : kw_end;
    _Pragma("unroll") for (int kw_h = 0; kw_h < @HEADS@; ++kw_h) {
      const unsigned kw_next = kw_first + (kw_is_shared ? kw_h : kw_turn);
      long long kw_at;
      @query_at@(@ARGS@, kw_next < kw_end ? kw_next : kw_end, 0, kw_at);
      kw_top[kw_h] = -3.0e38f;
      kw_total[kw_h] = 0.0f;
      _Pragma("unroll") for (int kw_c = 0; kw_c < kw_chunks; ++kw_c) {
        const int kw_d = (kw_c * @LANES@ + kw_lane) * @VEC@;
        _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
          kw_sum[kw_h][kw_c][kw_i] = 0.0f;
          kw_query[kw_h][kw_c][kw_i] = kw_d < @DIM@ ? (float)@Q@[kw_at + kw_d + kw_i] * (@SCALE@) * 1.44269504f : 0.0f;
        }
      }
    }
    long long kw_count;
    @length_of@(@ARGS@, kw_at_first, 0, kw_count);
    const long long kw_share = (kw_count + @SPLIT@ - 1) / @SPLIT@, kw_from = blockIdx.y * kw_share;
    const long long kw_stop = kw_from + kw_share < kw_count ? kw_from + kw_share : kw_count;
    for (long long kw_base = kw_from; kw_base < kw_stop; kw_base += kw_groups * @AHEAD@) {
      kw_lanes<@K_TYPE@> kw_keys[@AHEAD@][kw_chunks];
      kw_lanes<@V_TYPE@> kw_values[@AHEAD@][kw_chunks];
      long long kw_key[@AHEAD@], kw_value[@AHEAD@], kw_uneven = 0;
      _Pragma("unroll") for (int kw_a = 0; kw_a < @AHEAD@; ++kw_a) {
        const long long kw_next = kw_base + kw_a * kw_groups + kw_group;
        @key_at@(@ARGS@, kw_at_first, kw_next < kw_stop ? kw_next : kw_stop - 1, kw_key[kw_a]);
        @value_at@(@ARGS@, kw_at_first, kw_next < kw_stop ? kw_next : kw_stop - 1, kw_value[kw_a]);
        kw_uneven |= kw_key[kw_a] | kw_value[kw_a];
      }
      if (kw_uneven % @VEC@ == 0) {
        _Pragma("unroll") for (int kw_a = 0; kw_a < @AHEAD@; ++kw_a) {
          _Pragma("unroll") for (int kw_c = 0; kw_c < kw_chunks; ++kw_c) {
            const int kw_d = (kw_c * @LANES@ + kw_lane) * @VEC@, kw_near = kw_d < @DIM@ ? kw_d : 0;
            kw_keys[kw_a][kw_c] = kw_load_whole(@K@, kw_key[kw_a] + kw_near);
            kw_values[kw_a][kw_c] = kw_load_whole(@V@, kw_value[kw_a] + kw_near);
          }
        }
      } else {
        _Pragma("unroll") for (int kw_n = 0; kw_n < @AHEAD@ * kw_chunks; ++kw_n) {
          const int kw_a = kw_n / kw_chunks, kw_c = kw_n % kw_chunks;
          const int kw_d = (kw_c * @LANES@ + kw_lane) * @VEC@, kw_near = kw_d < @DIM@ ? kw_d : 0;
          kw_keys[kw_a][kw_c] = kw_load(@K@, kw_key[kw_a] + kw_near);
          kw_values[kw_a][kw_c] = kw_load(@V@, kw_value[kw_a] + kw_near);
        }
      }
      _Pragma("unroll") for (int kw_h = 0; kw_h < @HEADS@; ++kw_h) {
        float kw_product[@AHEAD@], kw_most = kw_top[kw_h];
        _Pragma("unroll") for (int kw_a = 0; kw_a < @AHEAD@; ++kw_a) {
          float kw_dot = 0.0f;
          _Pragma("unroll") for (int kw_c = 0; kw_c < kw_chunks; ++kw_c) {
            _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
              kw_dot += kw_query[kw_h][kw_c][kw_i] * (float)kw_keys[kw_a][kw_c].v[kw_i];
            }
          }
          _Pragma("unroll") for (int kw_reach = @LANES@ / 2; kw_reach > 0; kw_reach /= 2) {
            kw_dot += __shfl_xor_sync(0xffffffffu, kw_dot, kw_reach);
          }
          kw_product[kw_a] = kw_base + kw_a * kw_groups + kw_group < kw_stop ? kw_dot : -3.0e38f;
          kw_most = fmaxf(kw_most, kw_product[kw_a]);
        }
        const float kw_by = exp2f(kw_top[kw_h] - kw_most);
        kw_top[kw_h] = kw_most;
        kw_total[kw_h] *= kw_by;
        _Pragma("unroll") for (int kw_c = 0; kw_c < kw_chunks; ++kw_c) {
          _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) kw_sum[kw_h][kw_c][kw_i] *= kw_by;
        }
        _Pragma("unroll") for (int kw_a = 0; kw_a < @AHEAD@; ++kw_a) {
          const bool kw_is_in = kw_base + kw_a * kw_groups + kw_group < kw_stop;
          const float kw_weight = kw_is_in ? exp2f(kw_product[kw_a] - kw_most) : 0.0f;
          kw_total[kw_h] += kw_weight;
          _Pragma("unroll") for (int kw_c = 0; kw_c < kw_chunks; ++kw_c) {
            _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
              kw_sum[kw_h][kw_c][kw_i] += kw_weight * (float)kw_values[kw_a][kw_c].v[kw_i];
            }
          }
        }
      }
    }
    _Pragma("unroll") for (int kw_h = 0; kw_h < @HEADS@; ++kw_h) {
      _Pragma("unroll") for (int kw_reach = @LANES@; kw_reach < 32; kw_reach *= 2) {
        const float kw_other = __shfl_xor_sync(0xffffffffu, kw_top[kw_h], kw_reach);
        const float kw_most = fmaxf(kw_top[kw_h], kw_other);
        const float kw_by = exp2f(kw_top[kw_h] - kw_most), kw_its = exp2f(kw_other - kw_most);
        kw_top[kw_h] = kw_most;
        kw_total[kw_h] = kw_total[kw_h] * kw_by + __shfl_xor_sync(0xffffffffu, kw_total[kw_h], kw_reach) * kw_its;
        _Pragma("unroll") for (int kw_c = 0; kw_c < kw_chunks; ++kw_c) {
          _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
            const float kw_theirs = __shfl_xor_sync(0xffffffffu, kw_sum[kw_h][kw_c][kw_i], kw_reach);
            kw_sum[kw_h][kw_c][kw_i] = kw_sum[kw_h][kw_c][kw_i] * kw_by + kw_theirs * kw_its;
          }
        }
      }
      if (threadIdx.x % 32 < @LANES@) {
        float *kw_to = kw_left[threadIdx.x / 32][kw_h];
        _Pragma("unroll") for (int kw_c = 0; kw_c < kw_chunks; ++kw_c) {
          const int kw_d = (kw_c * @LANES@ + kw_lane) * @VEC@;
          _Pragma("unroll") for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
            if (kw_d < @DIM@) kw_to[kw_d + kw_i] = kw_sum[kw_h][kw_c][kw_i];
          }
        }
        kw_to[@DIM@] = kw_top[kw_h];
        kw_to[@DIM@ + 1] = kw_total[kw_h];
      }
    }
    __syncthreads();
    for (int kw_n = threadIdx.x; kw_n < (kw_is_shared ? @HEADS@ : 1) * @DIM@; kw_n += @BLOCK@) {
      const int kw_h = kw_n / @DIM@, kw_d = kw_n % @DIM@;
      const unsigned kw_row = kw_first + kw_turn + kw_h;
      if (kw_row > kw_end) break;
      float kw_most = -3.0e38f, kw_all = 0.0f, kw_whole = 0.0f;
      for (int kw_w = 0; kw_w < kw_warps; ++kw_w) kw_most = fmaxf(kw_most, kw_left[kw_w][kw_h][@DIM@]);
      for (int kw_w = 0; kw_w < kw_warps; ++kw_w) {
        const float kw_by = exp2f(kw_left[kw_w][kw_h][@DIM@] - kw_most);
        kw_all += kw_left[kw_w][kw_h][kw_d] * kw_by;
        kw_whole += kw_left[kw_w][kw_h][@DIM@ + 1] * kw_by;
      }
      if (@SPLIT@ == 1) {
        long long kw_at;
        @out_at@(@ARGS@, kw_row, 0, kw_at);
        @O@[kw_at + kw_d] = (@O_TYPE@)(kw_all / kw_whole);
        if (kw_d == 0) { @MORE@ }
      } else {
        const size_t kw_part = (size_t)kw_row * @SPLIT@ + blockIdx.y;
        @parts@[kw_part * @DIM@ + kw_d] = kw_all;
        if (kw_d == 0) {
          @tops@[kw_part] = kw_most;
          @sums@[kw_part] = kw_whole;
        }
      }
    }
    __syncthreads();
  }
}"""

JOIN = r"""{
  if (@SPLIT@ == 1) return;
  const unsigned kw_row = blockIdx.x;
  float kw_most = -3.0e38f, kw_whole = 0.0f;
  for (int kw_p = 0; kw_p < @SPLIT@; ++kw_p) kw_most = fmaxf(kw_most, @tops@[(size_t)kw_row * @SPLIT@ + kw_p]);
  for (int kw_p = 0; kw_p < @SPLIT@; ++kw_p) {
    const size_t kw_part = (size_t)kw_row * @SPLIT@ + kw_p;
    kw_whole += @sums@[kw_part] * exp2f(@tops@[kw_part] - kw_most);
  }
  long long kw_at;
  @out_at@(@ARGS@, kw_row, 0, kw_at);
  for (int kw_d = threadIdx.x; kw_d < @DIM@; kw_d += blockDim.x) {
    float kw_all = 0.0f;
    for (int kw_p = 0; kw_p < @SPLIT@; ++kw_p) {
      const size_t kw_part = (size_t)kw_row * @SPLIT@ + kw_p;
      kw_all += @parts@[kw_part * @DIM@ + kw_d] * exp2f(@tops@[kw_part] - kw_most);
    }
    @O@[kw_at + kw_d] = (@O_TYPE@)(kw_all / kw_whole);
    if (kw_d == 0) { @MORE@ }
  }
}"""
