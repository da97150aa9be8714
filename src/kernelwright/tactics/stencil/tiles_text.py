"""The bodies of stencils with several points of a thread, in CUDA (and HIP) and OpenCL C."""

from __future__ import annotations

ORIGIN = """\
const int kw_end_x = @END_X@, kw_end_y = @END_Y@;
if (kw_end_x <= 0 || kw_end_y <= 0) {
  return;
}
const int kw_across = (kw_end_x + KW_TILE_X - 1) / KW_TILE_X, kw_down = (kw_end_y + KW_TILE_Y - 1) / KW_TILE_Y;
const int kw_block = @BLOCK_INDEX@;
#if @WALK@ == 0
const int kw_tile_x = kw_block % kw_across * KW_TILE_X, kw_tile_y = kw_block / kw_across * KW_TILE_Y;
#else
const int kw_tile_x = kw_block / kw_down * KW_TILE_X, kw_tile_y = kw_block % kw_down * KW_TILE_Y;
#endif
if (kw_tile_x >= kw_end_x || kw_tile_y >= kw_end_y) {
  return;
}
@BATCH@"""

RUNS = """\
// A thread takes @RUN@ columns of @ROWS@ rows. Where all conditions hold, a row's inner part is one loop without them.
@ORIGIN@
const int kw_x0 = kw_tile_x + @THREAD_X@ * @RUN@, kw_x1 = min(kw_x0 + @RUN@, kw_end_x);
for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
  const int kw_y = kw_tile_y + @THREAD_Y@ * @ROWS@ + kw_i;
  if (kw_y >= kw_end_y) {
    break;
  }
  int kw_first = kw_x0, kw_last = kw_x1;
  @NARROW@
  if (!(@ROW_INSIDE@) || kw_first >= kw_last) {
    kw_first = kw_last = kw_x1;
  }
  for (int kw_x = kw_x0; kw_x < kw_first; ++kw_x) {
    @WHOLE@;
  }
  for (int kw_x = kw_first; kw_x < kw_last; ++kw_x) {
    @INNER@;
  }
  for (int kw_x = kw_last; kw_x < kw_x1; ++kw_x) {
    @WHOLE@;
  }
}
"""

WINDOW = """\
// A thread makes @VEC@ columns of @ROWS@ rows from a window in registers: what points share is loaded once.
// Rows where conditions may not hold are made by the kernel's own code, point by point.
@ORIGIN@
const int kw_x0 = kw_tile_x + @THREAD_X@ * @VEC@, kw_y0 = kw_tile_y + @THREAD_Y@ * @ROWS@;
if (kw_x0 >= kw_end_x || kw_y0 >= kw_end_y) {
  return;
}
const int kw_is_inside = @INSIDE_THREAD@;
@LEGAL@
if (!kw_is_inside && !KW_MAY) {
  for (int kw_y = kw_y0; kw_y < kw_y0 + @ROWS@ && kw_y < kw_end_y; ++kw_y) {
    for (int kw_x = kw_x0; kw_x < kw_x0 + @VEC@ && kw_x < kw_end_x; ++kw_x) {
      @WHOLE@;
    }
  }
  return;
}
@WIDE@
@IN@ kw_window[KW_HEIGHT * KW_PITCH];
#pragma unroll
for (int kw_r = 0; kw_r < KW_HEIGHT; ++kw_r) {
  const int kw_y = kw_y0 + kw_r - @ABOVE@, kw_x = kw_x0;
  const @LONG@ kw_start = @ELEMENT_IN@;
  @SPACE@const @IN@ *const kw_from = @FROM@ + kw_start;
  if (KW_ROW_NEEDED(kw_r - @ABOVE@) && KW_LEGAL(0) && KW_LEGAL(@VEC@ - 1)) {
    @LOAD_VECTOR@
  } else {
#pragma unroll
    for (int kw_c = 0; kw_c < @VEC@; ++kw_c) {
      if (KW_NEEDED(kw_r - @ABOVE@, kw_c) && KW_LEGAL(kw_c)) {
        kw_window[kw_r * KW_PITCH + @LEFT@ + kw_c] = kw_from[kw_c];
      }
    }
  }
#pragma unroll
  for (int kw_c = -@LEFT@; kw_c < 0; ++kw_c) {
    if (KW_NEEDED(kw_r - @ABOVE@, kw_c) && KW_LEGAL(kw_c)) {
      kw_window[kw_r * KW_PITCH + @LEFT@ + kw_c] = kw_from[kw_c];
    }
  }
#pragma unroll
  for (int kw_c = @VEC@; kw_c < @VEC@ + @RIGHT@; ++kw_c) {
    if (KW_NEEDED(kw_r - @ABOVE@, kw_c) && KW_LEGAL(kw_c)) {
      kw_window[kw_r * KW_PITCH + @LEFT@ + kw_c] = kw_from[kw_c];
    }
  }
}
#if @EDGES@ < 2
if (kw_is_inside) {
#pragma unroll
  for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
    const int kw_y = kw_y0 + kw_i;
    @OUT@ kw_own[@VEC@];
#pragma unroll
    for (int kw_j = 0; kw_j < @VEC@; ++kw_j) {
      const int kw_x = kw_x0 + kw_j;
      @VALUE_WINDOW@;
    }
    const int kw_x = kw_x0;
    @STORE_VECTOR@
  }
}
#endif
@EDGE@
"""

NO_EDGE = "#define KW_LEGAL(kw_c) 1\n#define KW_MAY 0"

EDGE_LEGAL = """\
#if @EDGES@
// Between the first and the last element that the plain kernel reads, every element may be read.
const int kw_low_x = @LOW_X@, kw_high_x = @HIGH_X@, kw_low_y = @LOW_Y@, kw_high_y = @HIGH_Y@;
const @LONG@ kw_least = @LEAST@, kw_most = @MOST@;
#define KW_LEGAL(kw_c) (kw_is_inside || (kw_start + (kw_c) >= kw_least && kw_start + (kw_c) <= kw_most))
#define KW_MAY (@MAY@)
#else
#define KW_LEGAL(kw_c) 1
#define KW_MAY 0
#endif"""

EDGE = """\
#if @EDGES@ == 1
else
#endif
#if @EDGES@
{
#pragma unroll
  for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
    const int kw_y = kw_y0 + kw_i;
    @OUT@ kw_own[@VEC@];
    int kw_is_made[@VEC@], kw_count = 0;
#pragma unroll
    for (int kw_j = 0; kw_j < @VEC@; ++kw_j) {
      const int kw_x = kw_x0 + kw_j;
      kw_is_made[kw_j] = 0;
      if (kw_x < kw_end_x) {
        @VALUE_EDGE@;
      }
      kw_count += kw_is_made[kw_j];
    }
    if (kw_count == @VEC@) {
      const int kw_x = kw_x0;
      @STORE_VECTOR@
    } else {
#pragma unroll
      for (int kw_j = 0; kw_j < @VEC@; ++kw_j) {
        const int kw_x = kw_x0 + kw_j;
        if (kw_is_made[kw_j]) {
          @TO@[@ELEMENT_OUT@] = kw_own[kw_j];
        }
      }
    }
  }
}
#endif"""

TILE = """\
// A block makes a tile of KW_TILE_X x KW_TILE_Y points from a copy of their neighbourhood in shared memory. Where
// conditions may not hold for all of them, the kernel's own code makes them one by one.
@TILE_MEMORY@
@ORIGIN@
if (!(@INSIDE_BLOCK@)) {
  for (int kw_y = kw_tile_y + @THREAD_Y@; kw_y < kw_tile_y + KW_TILE_Y && kw_y < kw_end_y; kw_y += @BLOCK_Y@) {
    for (int kw_x = kw_tile_x + @THREAD_X@; kw_x < kw_tile_x + KW_TILE_X && kw_x < kw_end_x; kw_x += @BLOCK_X@) {
      @WHOLE@;
    }
  }
  return;
}
const int kw_item = @THREAD_Y@ * @BLOCK_X@ + @THREAD_X@;
for (int kw_at = kw_item; kw_at < KW_HEIGHT * KW_PITCH; kw_at += @BLOCK_X@ * @BLOCK_Y@) {
  const int kw_r = kw_at / KW_PITCH - @ABOVE@, kw_c = kw_at % KW_PITCH - @LEFT@;
  const int kw_y = kw_tile_y + kw_r, kw_x = kw_tile_x + kw_c;
  if (KW_NEEDED(kw_r, kw_c)) {
    kw_window[kw_at] = @FROM@[@ELEMENT_IN@];
  }
}
@BARRIER@
#pragma unroll
for (int kw_i = 0; kw_i < @ROWS@; ++kw_i) {
#pragma unroll
  for (int kw_j = 0; kw_j < @VEC@; ++kw_j) {
    const int kw_row = kw_i * @BLOCK_Y@ + @THREAD_Y@, kw_column = kw_j * @BLOCK_X@ + @THREAD_X@;
    const int kw_y = kw_tile_y + kw_row, kw_x = kw_tile_x + kw_column;
    @OUT@ kw_own[1];
    @VALUE_TILE@;
    @TO@[@ELEMENT_OUT@] = kw_own[0];
  }
}
"""

CUDA_WIDE = """\
struct __align__(@VEC@ * sizeof(@IN@)) kw_pack_in { @IN@ at[@VEC@]; };
struct __align__(@VEC@ * sizeof(@OUT@)) kw_pack_out { @OUT@ at[@VEC@]; };
const bool kw_wide_in = @WIDE_IN@, kw_wide_out = @WIDE_OUT@;"""

CUDA_LOAD = """\
if (@VEC@ > 1 && kw_wide_in) {
  const kw_pack_in kw_pack = *reinterpret_cast<const kw_pack_in *>(kw_from);
#pragma unroll
  for (int kw_c = 0; kw_c < @VEC@; ++kw_c) {
    kw_window[kw_r * KW_PITCH + @LEFT@ + kw_c] = kw_pack.at[kw_c];
  }
} else {
#pragma unroll
  for (int kw_c = 0; kw_c < @VEC@; ++kw_c) {
    kw_window[kw_r * KW_PITCH + @LEFT@ + kw_c] = kw_from[kw_c];
  }
}"""

CUDA_STORE = """\
if (@VEC@ > 1 && kw_wide_out) {
  kw_pack_out kw_pack;
#pragma unroll
  for (int kw_j = 0; kw_j < @VEC@; ++kw_j) {
    kw_pack.at[kw_j] = kw_own[kw_j];
  }
  KW_PUT(&@TO@[@ELEMENT_OUT@], kw_pack);
} else {
#pragma unroll
  for (int kw_j = 0; kw_j < @VEC@; ++kw_j) {
    @TO@[@ELEMENT_OUT@ + kw_j] = kw_own[kw_j];
  }
}"""

SCALAR_LOAD = """\
#pragma unroll
for (int kw_c = 0; kw_c < @VEC@; ++kw_c) {
  kw_window[kw_r * KW_PITCH + @LEFT@ + kw_c] = kw_from[kw_c];
}"""

SCALAR_STORE = """\
#pragma unroll
for (int kw_j = 0; kw_j < @VEC@; ++kw_j) {
  @TO@[@ELEMENT_OUT@ + kw_j] = kw_own[kw_j];
}"""

OPENCL_WIDE = """\
typedef KW_VECTOR_IN kw_vector_in __attribute__((aligned(sizeof(@IN@))));
typedef KW_VECTOR_OUT kw_vector_out __attribute__((aligned(sizeof(@OUT@))));"""

OPENCL_LOAD = """\
*(kw_vector_in *)(kw_window + kw_r * KW_PITCH + @LEFT@) = *(__global const kw_vector_in *)kw_from;"""

OPENCL_STORE = """\
*(__global kw_vector_out *)(@TO@ + (@ELEMENT_OUT@)) = *(kw_vector_out *)kw_own;"""
