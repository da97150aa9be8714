"""The bodies of transpositions through tiles, in CUDA (and HIP) and OpenCL C."""

from __future__ import annotations

ORIGIN = """\
const int kw_end_u = @END_U@, kw_end_v = @END_V@;
if (kw_end_u <= 0 || kw_end_v <= 0) {
  return;
}
const int kw_across = (kw_end_u + @TILE_U@ - 1) / (@TILE_U@), kw_down = (kw_end_v + @TILE_V@ - 1) / (@TILE_V@);
const int kw_block = @BLOCK_INDEX@;
#if @WALK@ == 0
const int kw_u0 = kw_block % kw_across * (@TILE_U@), kw_v0 = kw_block / kw_across * (@TILE_V@);
#else
const int kw_u0 = kw_block / kw_down * (@TILE_U@), kw_v0 = kw_block % kw_down * (@TILE_V@);
#endif
if (kw_u0 >= kw_end_u || kw_v0 >= kw_end_v) {
  return;
}
@BATCH@"""
"""`u` walks neighbours of what is read, `v` neighbours of what is written."""

CUDA_MOVE = """{
  // A block moves a tile of @TILE_U@ x @TILE_V@ elements: along what is read to shared memory, and from there along
  // what is written. Tiles that stick out are cut; what is not aligned is moved element by element.
  extern __shared__ __align__(16) unsigned char @MEMORY@[];
  struct __align__(@READ@ * sizeof(@T@)) kw_pack_in { @T@ at[@READ@]; };
  struct __align__(@WRITE@ * sizeof(@T@)) kw_pack_out { @T@ at[@WRITE@]; };
  @T@ *const kw_tile = reinterpret_cast<@T@ *>(@MEMORY@);
  @ORIGIN@
  const bool kw_wide_in = @WIDE_IN@, kw_wide_out = @WIDE_OUT@;
  @T@ kw_own[@TILE_U@ * @TILE_V@ / @READ@ / @BLOCK@][@READ@];
#pragma unroll
  for (int kw_i = 0; kw_i < @TILE_U@ * @TILE_V@ / @READ@ / @BLOCK@; ++kw_i) {
    const int kw_at = kw_i * @BLOCK@ + (int)threadIdx.x;
    const int kw_u = kw_u0 + kw_at % (@TILE_U@ / @READ@) * @READ@, kw_v = kw_v0 + kw_at / (@TILE_U@ / @READ@);
    if (@READ@ > 1 && kw_wide_in && kw_v < kw_end_v && kw_u + @READ@ <= kw_end_u) {
      kw_pack_in kw_pack;
      KW_TAKE(kw_pack, &@FROM@[@ELEMENT_IN@]);
#pragma unroll
      for (int kw_q = 0; kw_q < @READ@; ++kw_q) {
        kw_own[kw_i][kw_q] = kw_pack.at[kw_q];
      }
    } else {
#pragma unroll
      for (int kw_q = 0; kw_q < @READ@; ++kw_q) {
        if (kw_v < kw_end_v && kw_u + kw_q < kw_end_u) {
          kw_own[kw_i][kw_q] = @FROM@[@ELEMENT_IN@ + kw_q];
        }
      }
    }
  }
#pragma unroll
  for (int kw_i = 0; kw_i < @TILE_U@ * @TILE_V@ / @READ@ / @BLOCK@; ++kw_i) {
    const int kw_at = kw_i * @BLOCK@ + (int)threadIdx.x;
    const int kw_u = kw_at % (@TILE_U@ / @READ@) * @READ@, kw_v = kw_at / (@TILE_U@ / @READ@);
#pragma unroll
    for (int kw_q = 0; kw_q < @READ@; ++kw_q) {
      kw_tile[kw_v * (@TILE_U@ + @PAD@) + kw_u + kw_q] = kw_own[kw_i][kw_q];
    }
  }
  __syncthreads();
#pragma unroll
  for (int kw_i = 0; kw_i < @TILE_U@ * @TILE_V@ / @WRITE@ / @BLOCK@; ++kw_i) {
    const int kw_at = kw_i * @BLOCK@ + (int)threadIdx.x;
    const int kw_in_v = kw_at % (@TILE_V@ / @WRITE@) * @WRITE@, kw_in_u = kw_at / (@TILE_V@ / @WRITE@);
    const int kw_u = kw_u0 + kw_in_u, kw_v = kw_v0 + kw_in_v;
    if (@WRITE@ > 1 && kw_wide_out && kw_u < kw_end_u && kw_v + @WRITE@ <= kw_end_v) {
      kw_pack_out kw_pack;
#pragma unroll
      for (int kw_q = 0; kw_q < @WRITE@; ++kw_q) {
        kw_pack.at[kw_q] = kw_tile[(kw_in_v + kw_q) * (@TILE_U@ + @PAD@) + kw_in_u];
      }
      KW_PUT(&@TO@[@ELEMENT_OUT@], kw_pack);
    } else {
#pragma unroll
      for (int kw_q = 0; kw_q < @WRITE@; ++kw_q) {
        if (kw_u < kw_end_u && kw_v + kw_q < kw_end_v) {
          @TO@[@ELEMENT_OUT@ + kw_q] = kw_tile[(kw_in_v + kw_q) * (@TILE_U@ + @PAD@) + kw_in_u];
        }
      }
    }
  }
}
"""

CUDA_MADE = """{
  // A block makes a tile of @TILE_U@ x @TILE_V@ values: threads go along what is read to make them, and along what is
  // written to store them; shared memory stands between.
  extern __shared__ __align__(16) unsigned char @MEMORY@[];
  @T@ *const kw_tile = reinterpret_cast<@T@ *>(@MEMORY@);
  @ORIGIN@
  @T@ kw_own[@TILE_U@ * @TILE_V@ / @BLOCK@];
#pragma unroll
  for (int kw_i = 0; kw_i < @TILE_U@ * @TILE_V@ / @BLOCK@; ++kw_i) {
    const int kw_at = kw_i * @BLOCK@ + (int)threadIdx.x;
    const int kw_u = kw_u0 + kw_at % @TILE_U@, kw_v = kw_v0 + kw_at / @TILE_U@;
    if (kw_u < kw_end_u && kw_v < kw_end_v) {
      @VALUE@;
    }
  }
#pragma unroll
  for (int kw_i = 0; kw_i < @TILE_U@ * @TILE_V@ / @BLOCK@; ++kw_i) {
    const int kw_at = kw_i * @BLOCK@ + (int)threadIdx.x;
    kw_tile[kw_at / @TILE_U@ * (@TILE_U@ + @PAD@) + kw_at % @TILE_U@] = kw_own[kw_i];
  }
  __syncthreads();
#pragma unroll
  for (int kw_i = 0; kw_i < @TILE_U@ * @TILE_V@ / @BLOCK@; ++kw_i) {
    const int kw_at = kw_i * @BLOCK@ + (int)threadIdx.x;
    const int kw_u = kw_u0 + kw_at / @TILE_V@, kw_v = kw_v0 + kw_at % @TILE_V@;
    if (kw_u < kw_end_u && kw_v < kw_end_v) {
      @STORE@;
    }
  }
}
"""

OPENCL_STAGED = """{
  // A group makes a tile of values, work-items along what is read; from local memory they go along what is written.
  __local @T@ kw_tile[(@TILE_V@) * (@TILE_U@ + @PAD@)];
  @ORIGIN@
  const int kw_item = (int)(get_local_id(1) * @GROUP_U@ + get_local_id(0));
  for (int kw_at = kw_item; kw_at < @TILE_U@ * @TILE_V@; kw_at += @GROUP_U@ * @GROUP_V@) {
    const int kw_u = kw_u0 + kw_at % (@TILE_U@), kw_v = kw_v0 + kw_at / (@TILE_U@);
    if (kw_u < kw_end_u && kw_v < kw_end_v) {
      @T@ kw_own = 0;
      @VALUE@;
      kw_tile[kw_at / (@TILE_U@) * (@TILE_U@ + @PAD@) + kw_at % (@TILE_U@)] = kw_own;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int kw_at = kw_item; kw_at < @TILE_U@ * @TILE_V@; kw_at += @GROUP_U@ * @GROUP_V@) {
    const int kw_u = kw_u0 + kw_at / (@TILE_V@), kw_v = kw_v0 + kw_at % (@TILE_V@);
    if (kw_u < kw_end_u && kw_v < kw_end_v) {
      @STORE@;
    }
  }
}
"""

OPENCL_BLOCKS = """{
  // A work-item takes blocks of @VEC@ x @VEC@ elements, a group apart.
  @ORIGIN@
  for (int kw_number = 0; kw_number < @BLOCKS_U@ * @BLOCKS_V@; ++kw_number) {
#if @WALK@ == 0
    const int kw_block_u = kw_number % @BLOCKS_U@, kw_block_v = kw_number / @BLOCKS_U@;
#else
    const int kw_block_u = kw_number / @BLOCKS_V@, kw_block_v = kw_number % @BLOCKS_V@;
#endif
    const int kw_u1 = kw_u0 + (kw_block_u * @GROUP_U@ + (int)get_local_id(0)) * @VEC@;
    const int kw_v1 = kw_v0 + (kw_block_v * @GROUP_V@ + (int)get_local_id(1)) * @VEC@;
    @BLOCK@
  }
}
"""

OPENCL_EDGE = """\
for (int kw_i = 0; kw_i < @VEC@ && kw_u1 + kw_i < kw_end_u; ++kw_i) {
  for (int kw_j = 0; kw_j < @VEC@ && kw_v1 + kw_j < kw_end_v; ++kw_j) {
    const int kw_u = kw_u1 + kw_i, kw_v = kw_v1 + kw_j;
    @WHOLE@;
  }
}"""

OPENCL_VECTORS = """\
// Zipping line i with line i + VEC / 2, log2(VEC) times, is a transposition.
if (kw_u1 + @VEC@ <= kw_end_u && kw_v1 + @VEC@ <= kw_end_v) {
  typedef KW_VECTOR kw_vector __attribute__((aligned(sizeof(@T@))));
  KW_VECTOR kw_line[@VEC@];
#pragma unroll
  for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
    const int kw_u = kw_u1, kw_v = kw_v1 + kw_i;
    kw_line[kw_i] = *(__global const kw_vector *)(@FROM@ + (@ELEMENT_IN@));
  }
#if @VEC@ > 1
#pragma unroll
  for (int kw_step = 1; kw_step < @VEC@; kw_step *= 2) {
    KW_VECTOR kw_zipped[@VEC@];
#pragma unroll
    for (int kw_i = 0; kw_i < @VEC@ / 2; ++kw_i) {
      kw_zipped[2 * kw_i] = KW_ZIP_LOW(kw_line[kw_i], kw_line[kw_i + @VEC@ / 2]);
      kw_zipped[2 * kw_i + 1] = KW_ZIP_HIGH(kw_line[kw_i], kw_line[kw_i + @VEC@ / 2]);
    }
#pragma unroll
    for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
      kw_line[kw_i] = kw_zipped[kw_i];
    }
  }
#endif
#pragma unroll
  for (int kw_i = 0; kw_i < @VEC@; ++kw_i) {
    const int kw_u = kw_u1 + kw_i, kw_v = kw_v1;
    *(__global kw_vector *)(@TO@ + (@ELEMENT_OUT@)) = kw_line[kw_i];
  }
} else {
  @EDGE@
}"""

OPENCL_MACROS = """\
#define KW_JOIN_(x, y) x##y
#define KW_JOIN(x, y) KW_JOIN_(x, y)
#if @VEC@ == 1
#define KW_VECTOR @T@
#else
#define KW_VECTOR KW_JOIN(@T@, @VEC@)
#endif
#if @VEC@ == 2
#define KW_ZIP_LOW(a, b) (KW_VECTOR)((a).s0, (b).s0)
#define KW_ZIP_HIGH(a, b) (KW_VECTOR)((a).s1, (b).s1)
#elif @VEC@ == 4
#define KW_ZIP_LOW(a, b) (KW_VECTOR)((a).s0, (b).s0, (a).s1, (b).s1)
#define KW_ZIP_HIGH(a, b) (KW_VECTOR)((a).s2, (b).s2, (a).s3, (b).s3)
#elif @VEC@ == 8
#define KW_ZIP_LOW(a, b) (KW_VECTOR)((a).s0, (b).s0, (a).s1, (b).s1, (a).s2, (b).s2, (a).s3, (b).s3)
#define KW_ZIP_HIGH(a, b) (KW_VECTOR)((a).s4, (b).s4, (a).s5, (b).s5, (a).s6, (b).s6, (a).s7, (b).s7)
#endif
"""

OPENCL_UNDEFINES = """\
#undef KW_JOIN_
#undef KW_JOIN
#undef KW_VECTOR
#undef KW_ZIP_LOW
#undef KW_ZIP_HIGH
"""
