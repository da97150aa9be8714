"""The bodies of tiled contractions, in CUDA (and HIP) and OpenCL C."""

from __future__ import annotations

CUDA_MACROS = """\
#define KW_LANES_N (32 / @LANES_M@)
#define KW_THREADS (32 * @WARPS_M@ * @WARPS_N@)
#define KW_BM (@TM@ * @LANES_M@ * @WARPS_M@)
#define KW_BN (@TN@ * KW_LANES_N * @WARPS_N@)
#define KW_PITCH (KW_BM + @PAD@)
#define KW_STAGE (@BK@ * (KW_PITCH + KW_BN))
#define KW_VM (@TM@ % @WIDEST@ == 0 ? @WIDEST@ : 1)
#define KW_VN (@TN@ % @WIDEST@ == 0 ? @WIDEST@ : 1)
#define KW_LOADS_A (KW_BM * @BK@ / @LOAD_A@ / KW_THREADS)
#define KW_LOADS_B (KW_BN * @BK@ / @LOAD_B@ / KW_THREADS)
"""

CUDA_UNDEFINES = """
#undef KW_LANES_N
#undef KW_THREADS
#undef KW_BM
#undef KW_BN
#undef KW_PITCH
#undef KW_STAGE
#undef KW_VM
#undef KW_VN
#undef KW_LOADS_A
#undef KW_LOADS_B
"""

CUDA_BODY = """{
  // A block computes a tile of KW_BM x KW_BN sums, a thread @TM@ x @TN@ of them. Slices of @BK@ steps travel through
  // registers to shared memory, where the left factor lies step by step too; what sticks out counts as zero. Each
  // finished sum goes through the kernel's own code.
  extern __shared__ __align__(16) unsigned char @MEMORY@[];
  struct __align__(@LOAD_A@ * sizeof(@TYPE_A@)) kw_pack_a { @TYPE_A@ at[@LOAD_A@]; };
  struct __align__(@LOAD_B@ * sizeof(@TYPE_B@)) kw_pack_b { @TYPE_B@ at[@LOAD_B@]; };
  struct __align__(KW_VM * sizeof(@T@)) kw_pack_m { @T@ at[KW_VM]; };
  struct __align__(KW_VN * sizeof(@T@)) kw_pack_n { @T@ at[KW_VN]; };
  @T@ *const kw_tiles = reinterpret_cast<@T@ *>(@MEMORY@);
  const int kw_end_m = @END_M@, kw_end_n = @END_N@, kw_first_k = @FIRST_K@, kw_end_k = @END_K@;
  if (kw_end_m <= 0 || kw_end_n <= 0) {
    return;
  }
  const int kw_down = (kw_end_m + KW_BM - 1) / KW_BM, kw_across = (kw_end_n + KW_BN - 1) / KW_BN;
  const int kw_band = (int)blockIdx.x / (@BAND@ * kw_across) * @BAND@;
  if (kw_band >= kw_down) {
    return;
  }
  const int kw_height = kw_down - kw_band < @BAND@ ? kw_down - kw_band : @BAND@;
  const int kw_place = (int)blockIdx.x % (@BAND@ * kw_across);
  if (kw_place >= kw_height * kw_across) {
    return;
  }
  const int kw_m0 = (kw_band + kw_place % kw_height) * KW_BM, kw_n0 = kw_place / kw_height * KW_BN;
  @BATCH@
  const int kw_item = threadIdx.x, kw_warp = kw_item / 32, kw_lane = kw_item % 32;
  const int kw_own_m = (kw_warp / @WARPS_N@ * @LANES_M@ + kw_lane / KW_LANES_N) * KW_VM;
  const int kw_own_n = (kw_warp % @WARPS_N@ * KW_LANES_N + kw_lane % KW_LANES_N) * KW_VN;
  const bool kw_wide_a = @WIDE_A@, kw_wide_b = @WIDE_B@;

  @T@ kw_sums[@TM@][@TN@];
#pragma unroll
  for (int kw_i = 0; kw_i < @TM@; ++kw_i) {
#pragma unroll
    for (int kw_j = 0; kw_j < @TN@; ++kw_j) {
      kw_sums[kw_i][kw_j] = @T@(0);
    }
  }
  const int kw_slices = (kw_end_k - kw_first_k + @BK@ - 1) / @BK@;
  constexpr int kw_unroll = @UNROLL@;  // nvcc expands no macros in pragmas
#pragma unroll 1
  for (int kw_slice = -1; kw_slice < kw_slices; ++kw_slice) {
    @T@ kw_next_a[KW_LOADS_A][@LOAD_A@], kw_next_b[KW_LOADS_B][@LOAD_B@];
    const bool kw_is_more = kw_slice + 1 < kw_slices;
    const int kw_k0 = kw_first_k + (kw_slice + 1) * @BK@;
    if (kw_is_more) {
#pragma unroll
      for (int kw_i = 0; kw_i < KW_LOADS_A; ++kw_i) {
        const int kw_at = kw_i * KW_THREADS + kw_item;
        const int kw_m = kw_m0 + @ROW_A@, kw_k = kw_k0 + @STEP_A@;
        if (@LOAD_A@ > 1 && kw_wide_a && @WHOLE_A@) {
          const kw_pack_a kw_pack = *reinterpret_cast<const kw_pack_a *>(&@ARRAY_A@[@ELEMENT_A@]);
#pragma unroll
          for (int kw_q = 0; kw_q < @LOAD_A@; ++kw_q) {
            const @TYPE_A@ kw_element = kw_pack.at[kw_q];
            kw_next_a[kw_i][kw_q] = @FACTOR_A@;
          }
        } else {
#pragma unroll
          for (int kw_q = 0; kw_q < @LOAD_A@; ++kw_q) {
            kw_next_a[kw_i][kw_q] = @T@(0);
            if (@INSIDE_A@) {
              const @TYPE_A@ kw_element = @ARRAY_A@[@ELEMENT_A@ + kw_q * (@UNIT_A@)];
              kw_next_a[kw_i][kw_q] = @FACTOR_A@;
            }
          }
        }
      }
#pragma unroll
      for (int kw_i = 0; kw_i < KW_LOADS_B; ++kw_i) {
        const int kw_at = kw_i * KW_THREADS + kw_item;
        const int kw_n = kw_n0 + @ROW_B@, kw_k = kw_k0 + @STEP_B@;
        if (@LOAD_B@ > 1 && kw_wide_b && @WHOLE_B@) {
          const kw_pack_b kw_pack = *reinterpret_cast<const kw_pack_b *>(&@ARRAY_B@[@ELEMENT_B@]);
#pragma unroll
          for (int kw_q = 0; kw_q < @LOAD_B@; ++kw_q) {
            const @TYPE_B@ kw_element = kw_pack.at[kw_q];
            kw_next_b[kw_i][kw_q] = @FACTOR_B@;
          }
        } else {
#pragma unroll
          for (int kw_q = 0; kw_q < @LOAD_B@; ++kw_q) {
            kw_next_b[kw_i][kw_q] = @T@(0);
            if (@INSIDE_B@) {
              const @TYPE_B@ kw_element = @ARRAY_B@[@ELEMENT_B@ + kw_q * (@UNIT_B@)];
              kw_next_b[kw_i][kw_q] = @FACTOR_B@;
            }
          }
        }
      }
    }
    if (kw_slice >= 0) {
      const @T@ *const kw_left = kw_tiles + (@STAGES@ == 2 ? kw_slice % 2 : 0) * KW_STAGE + kw_own_m;
      const @T@ *const kw_right = kw_left - kw_own_m + @BK@ * KW_PITCH + kw_own_n;
#pragma unroll kw_unroll
      for (int kw_p = 0; kw_p < @BK@; ++kw_p) {
        @T@ kw_a[@TM@], kw_b[@TN@];
#pragma unroll
        for (int kw_i = 0; kw_i < @TM@; kw_i += KW_VM) {
          const kw_pack_m kw_pack = *reinterpret_cast<const kw_pack_m *>(
              kw_left + kw_p * KW_PITCH + kw_i * (@LANES_M@ * @WARPS_M@));
#pragma unroll
          for (int kw_q = 0; kw_q < KW_VM; ++kw_q) {
            kw_a[kw_i + kw_q] = kw_pack.at[kw_q];
          }
        }
#pragma unroll
        for (int kw_j = 0; kw_j < @TN@; kw_j += KW_VN) {
          const kw_pack_n kw_pack = *reinterpret_cast<const kw_pack_n *>(
              kw_right + kw_p * KW_BN + kw_j * (KW_LANES_N * @WARPS_N@));
#pragma unroll
          for (int kw_q = 0; kw_q < KW_VN; ++kw_q) {
            kw_b[kw_j + kw_q] = kw_pack.at[kw_q];
          }
        }
#pragma unroll
        for (int kw_i = 0; kw_i < @TM@; ++kw_i) {
#pragma unroll
          for (int kw_j = 0; kw_j < @TN@; ++kw_j) {
            const int kw_turn = kw_i % 2 ? @TN@ - 1 - kw_j : kw_j;  // back and forth: neighbours share an operand
            kw_sums[kw_i][kw_turn] += kw_a[kw_i] * kw_b[kw_turn];
          }
        }
      }
    }
#if @STAGES@ == 1
    __syncthreads();
#endif
    if (kw_is_more) {
      @T@ *const kw_left = kw_tiles + (@STAGES@ == 2 ? (kw_slice + 1) % 2 : 0) * KW_STAGE;
      @T@ *const kw_right = kw_left + @BK@ * KW_PITCH;
#pragma unroll
      for (int kw_i = 0; kw_i < KW_LOADS_A; ++kw_i) {
        const int kw_at = kw_i * KW_THREADS + kw_item;
        const int kw_m = @ROW_A@, kw_k = @STEP_A@;
#pragma unroll
        for (int kw_q = 0; kw_q < @LOAD_A@; ++kw_q) {
          kw_left[kw_k * KW_PITCH + kw_m + kw_q * @TURN_A@] = kw_next_a[kw_i][kw_q];
        }
      }
#pragma unroll
      for (int kw_i = 0; kw_i < KW_LOADS_B; ++kw_i) {
        const int kw_at = kw_i * KW_THREADS + kw_item;
        const int kw_n = @ROW_B@, kw_k = @STEP_B@;
#pragma unroll
        for (int kw_q = 0; kw_q < @LOAD_B@; ++kw_q) {
          kw_right[kw_k * KW_BN + kw_n + kw_q * @TURN_B@] = kw_next_b[kw_i][kw_q];
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int kw_i = 0; kw_i < @TM@; ++kw_i) {
#pragma unroll
    for (int kw_j = 0; kw_j < @TN@; ++kw_j) {
      const int kw_m = kw_m0 + kw_i / KW_VM * (KW_VM * @LANES_M@ * @WARPS_M@) + kw_own_m + kw_i % KW_VM;
      const int kw_n = kw_n0 + kw_j / KW_VN * (KW_VN * KW_LANES_N * @WARPS_N@) + kw_own_n + kw_j % KW_VN;
      if (kw_m < kw_end_m && kw_n < kw_end_n) {
        @FINISH@;
      }
    }
  }
}"""
"""`ROW_x` and `STEP_x` say where in a tile a load goes, `TURN_x` how far apart its elements lie there."""

OPENCL_MACROS = """\
#define KW_JOIN_(x, y) x##y
#define KW_JOIN(x, y) KW_JOIN_(x, y)
#if @VEC@ == 1
#define KW_VECTOR @T@
#else
#define KW_VECTOR KW_JOIN(@T@, @VEC@)
#endif
#define KW_BM (@GROUP_Y@ * @ROWS@)
#define KW_BN (@GROUP_X@ * @CHUNKS@ * @VEC@)
"""

OPENCL_UNDEFINES = """
#undef KW_JOIN_
#undef KW_JOIN
#undef KW_VECTOR
#undef KW_BM
#undef KW_BN
"""

OPENCL_START = """
  // A vector that may start at any element.
  typedef KW_VECTOR kw_vector __attribute__((aligned(sizeof(@T@))));
  const int kw_end_m = @END_M@, kw_end_n = @END_N@, kw_first_k = @FIRST_K@, kw_end_k = @END_K@;
  if (kw_end_m <= 0 || kw_end_n <= 0) {
    return;
  }
  const int kw_down = (kw_end_m + KW_BM - 1) / KW_BM, kw_across = (kw_end_n + KW_BN - 1) / KW_BN;
  const int kw_group = get_group_id(0);
  const int kw_band = kw_group / (@BAND@ * kw_across) * @BAND@;
  if (kw_band >= kw_down) {
    return;
  }
  const int kw_height = min(kw_down - kw_band, @BAND@);
  const int kw_place = kw_group % (@BAND@ * kw_across);
  if (kw_place >= kw_height * kw_across) {
    return;
  }
  const int kw_m0 = (kw_band + kw_place % kw_height) * KW_BM, kw_n0 = kw_place / kw_height * KW_BN;
  @BATCH@
  const int kw_x = get_local_id(0), kw_y = get_local_id(1);
"""

OPENCL_STAGED = """{
  // A group computes a tile of KW_BM x KW_BN sums, a work-item @ROWS@ rows of @CHUNKS@ vectors of them. Slices of
  // @DEPTH@ steps pass through local memory; what sticks out counts as zero. Each finished sum goes through the
  // kernel's own code.
  __local @T@ kw_left[@DEPTH@ * (KW_BM + @PAD@)];
  __local @T@ kw_right[@DEPTH@ * KW_BN];
@START@
  const int kw_item = kw_y * @GROUP_X@ + kw_x;
  KW_VECTOR kw_sums[@ROWS@][@CHUNKS@];
#pragma unroll
  for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
#pragma unroll
    for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
      kw_sums[kw_i][kw_j] = (KW_VECTOR)(0);
    }
  }
  for (int kw_k0 = kw_first_k; kw_k0 < kw_end_k; kw_k0 += @DEPTH@) {
    for (int kw_at = kw_item; kw_at < KW_BM * @DEPTH@; kw_at += @GROUP_X@ * @GROUP_Y@) {
      const int kw_m = kw_m0 + @ROW_A@, kw_k = kw_k0 + @STEP_A@;
      @T@ kw_value = 0;
      if (kw_m < kw_end_m && kw_k < kw_end_k@WHERE_A@) {
        const @TYPE_A@ kw_element = @ARRAY_A@[@ELEMENT_A@];
        kw_value = @FACTOR_A@;
      }
      kw_left[(@STEP_A@) * (KW_BM + @PAD@) + @ROW_A@] = kw_value;
    }
    for (int kw_at = kw_item; kw_at < KW_BN * @DEPTH@; kw_at += @GROUP_X@ * @GROUP_Y@) {
      const int kw_n = kw_n0 + @ROW_B@, kw_k = kw_k0 + @STEP_B@;
      @T@ kw_value = 0;
      if (kw_n < kw_end_n && kw_k < kw_end_k@WHERE_B@) {
        const @TYPE_B@ kw_element = @ARRAY_B@[@ELEMENT_B@];
        kw_value = @FACTOR_B@;
      }
      kw_right[(@STEP_B@) * KW_BN + @ROW_B@] = kw_value;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll @UNROLL@
    for (int kw_p = 0; kw_p < @DEPTH@; ++kw_p) {
      KW_VECTOR kw_b[@CHUNKS@];
#pragma unroll
      for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
        kw_b[kw_j] = *(__local const kw_vector *)(kw_right + kw_p * KW_BN + (kw_j * @GROUP_X@ + kw_x) * @VEC@);
      }
#pragma unroll
      for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
        const KW_VECTOR kw_a = (KW_VECTOR)(kw_left[kw_p * (KW_BM + @PAD@) + kw_y * @ROWS@ + kw_i]);
#pragma unroll
        for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
          kw_sums[kw_i][kw_j] += kw_a * kw_b[kw_j];
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#pragma unroll
  for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
#pragma unroll
    for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
      @T@ kw_lanes[@VEC@];
      *(kw_vector *)kw_lanes = kw_sums[kw_i][kw_j];
#pragma unroll
      for (int kw_q = 0; kw_q < @VEC@; ++kw_q) {
        const int kw_m = kw_m0 + kw_y * @ROWS@ + kw_i, kw_n = kw_n0 + (kw_j * @GROUP_X@ + kw_x) * @VEC@ + kw_q;
        if (kw_m < kw_end_m && kw_n < kw_end_n) {
          @FINISH@;
        }
      }
    }
  }
}"""

OPENCL_DIRECT = """{
  // A work-item keeps @ROWS@ rows of @CHUNKS@ vectors of sums in registers and reads through the caches. Each finished
  // sum goes through the kernel's own code, and so does what sticks out, whole.
@START@
  const int kw_row = kw_m0 + kw_y * @ROWS@, kw_column = kw_n0 + kw_x * @VEC@;
  if (kw_row + @ROWS@ <= kw_end_m && kw_column + (@CHUNKS@ - 1) * @GROUP_X@ * @VEC@ + @VEC@ <= kw_end_n) {
    KW_VECTOR kw_sums[@ROWS@][@CHUNKS@];
#pragma unroll
    for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
#pragma unroll
      for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
        kw_sums[kw_i][kw_j] = (KW_VECTOR)(0);
      }
    }
    __global const @T@ *const kw_left = @ARRAY_A@ + (@START_A@);
    __global const @T@ *const kw_right = @ARRAY_B@ + (@START_B@);
#pragma unroll @UNROLL@
    for (int kw_k = kw_first_k; kw_k < kw_end_k; ++kw_k) {
      KW_VECTOR kw_b[@CHUNKS@];
#pragma unroll
      for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
        kw_b[kw_j] = *(__global const kw_vector *)(kw_right + (long)kw_k * (@BY_K_B@) + kw_j * @GROUP_X@ * @VEC@);
      }
#pragma unroll
      for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
        const KW_VECTOR kw_a = (KW_VECTOR)(kw_left[(long)kw_i * (@BY_OWN_A@) + (long)kw_k * (@BY_K_A@)]);
#pragma unroll
        for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
          kw_sums[kw_i][kw_j] += kw_a * kw_b[kw_j];
        }
      }
    }
#pragma unroll
    for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
#pragma unroll
      for (int kw_j = 0; kw_j < @CHUNKS@; ++kw_j) {
        @T@ kw_lanes[@VEC@];
        *(kw_vector *)kw_lanes = kw_sums[kw_i][kw_j];
#pragma unroll
        for (int kw_q = 0; kw_q < @VEC@; ++kw_q) {
          const int kw_m = kw_row + kw_i, kw_n = kw_column + kw_j * @GROUP_X@ * @VEC@ + kw_q;
          @FINISH@;
        }
      }
    }
  } else {
    for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
      for (int kw_j = 0; kw_j < @CHUNKS@ * @VEC@; ++kw_j) {
        const int kw_m = kw_row + kw_i, kw_n = kw_column + kw_j / @VEC@ * @GROUP_X@ * @VEC@ + kw_j % @VEC@;
        if (kw_m < kw_end_m && kw_n < kw_end_n) {
          @WHOLE@;
        }
      }
    }
  }
}"""
