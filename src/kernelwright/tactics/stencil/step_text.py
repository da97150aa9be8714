"""The bodies of launches that make several steps of a stencil, in OpenCL C and CUDA (and HIP)."""

from __future__ import annotations

ROW = """\
@HELPER@ void @NAME@(@PARAMETERS@, @ROWS@,
    const int kw_from, KW_GIVEN@TYPE@ *@RESTRICT@ kw_to, const int kw_at, const int kw_y, const int kw_x0,
    const int kw_x1) {
  KW_TAKEN const @TYPE@ *const kw_rows[] = {@ROW_NAMES@};
  int kw_first = kw_x0, kw_last = kw_x1;
  @NARROW@
  if (!(@ROW_INSIDE@) || kw_first >= kw_last) {
    kw_first = kw_last = kw_x1;
  }
  for (int kw_x = kw_x0; kw_x < kw_first; ++kw_x) {
    @TYPE@ kw_own;
    @EDGE@;
    kw_to[kw_x - kw_at] = kw_own;
  }
  for (int kw_x = kw_first; kw_x < kw_last; ++kw_x) {
    @TYPE@ kw_own;
    @INNER@;
    kw_to[kw_x - kw_at] = kw_own;
  }
  for (int kw_x = kw_last; kw_x < kw_x1; ++kw_x) {
    @TYPE@ kw_own;
    @EDGE@;
    kw_to[kw_x - kw_at] = kw_own;
  }
}
"""
"""One row of one step, from rows of the step before; where all conditions hold, a loop without them."""

ORIGIN = """\
const int kw_end_x = @END_X@, kw_end_y = @END_Y@;
if (kw_end_x <= 0 || kw_end_y <= 0) {
  return;
}
const int kw_across = (kw_end_x + @TILE_X@ - 1) / @TILE_X@;
const int kw_tile_x = @GROUP@ % kw_across * @TILE_X@, kw_tile_y = @GROUP@ / kw_across * @TILE_Y@;
const int kw_stop_x = min(kw_tile_x + @TILE_X@, kw_end_x), kw_stop_y = min(kw_tile_y + @TILE_Y@, kw_end_y);
if (kw_tile_y >= kw_end_y) {
  return;
}"""

STRIP = """\
// A work-item makes @STEPS@ steps of a tile, all of them on its way down the rows: of each step but the last it keeps
// the rows that the next one still needs. Columns and rows around the tile are made by its neighbours too.
__local @TYPE@ kw_kept[(@STEPS@ - 1) * KW_HEIGHT * KW_PITCH];
@ORIGIN@
const int kw_from = kw_tile_x - @LEFT@ * (@STEPS@ - 1);
for (int kw_t = max(kw_tile_y - @ABOVE@ * (@STEPS@ - 1), 0); kw_t < kw_stop_y + @BELOW@ * (@STEPS@ - 1); ++kw_t) {
  if (kw_t < kw_end_y) {
    const int kw_y = kw_t;
    @FIRST@;
  }
  for (int kw_s = 2; kw_s < @STEPS@; ++kw_s) {
    const int kw_y = kw_t - @BELOW@ * (kw_s - 1);
    const int kw_lowest = max(kw_tile_y - @ABOVE@ * (@STEPS@ - kw_s), 0);
    if (kw_y >= kw_lowest && kw_y < min(kw_stop_y + @BELOW@ * (@STEPS@ - kw_s), kw_end_y)) {
      @MIDDLE@;
    }
  }
  const int kw_y = kw_t - @BELOW@ * (@STEPS@ - 1);
  if (kw_y >= kw_tile_y && kw_y < kw_stop_y) {
    @LAST@;
  }
}
"""

TILE = """\
// A block copies a tile with its neighbourhood into shared memory and makes @STEPS@ steps there, each narrower by what
// a cell reads; what is around the tile is made by other blocks too.
@SHARED@ @TYPE@ kw_tiles[2 * KW_HEIGHT * KW_PITCH];
@ORIGIN@
// Columns and rows that step kw_s makes; those of step 0 are loaded.
#define KW_LOW_X(kw_s) max(kw_tile_x - @LEFT@ * (@STEPS@ - (kw_s)), 0)
#define KW_HIGH_X(kw_s) min(kw_stop_x + @RIGHT@ * (@STEPS@ - (kw_s)), kw_end_x)
#define KW_LOW_Y(kw_s) max(kw_tile_y - @ABOVE@ * (@STEPS@ - (kw_s)), 0)
#define KW_HIGH_Y(kw_s) min(kw_stop_y + @BELOW@ * (@STEPS@ - (kw_s)), kw_end_y)
const int kw_from = kw_tile_x - @LEFT@ * @STEPS@, kw_from_y = kw_tile_y - @ABOVE@ * @STEPS@;
for (int kw_y = KW_LOW_Y(0) + @THREAD_Y@; kw_y < KW_HIGH_Y(0); kw_y += @BLOCK_Y@) {
  for (int kw_x = KW_LOW_X(0) + @THREAD_X@; kw_x < KW_HIGH_X(0); kw_x += @BLOCK_X@) {
    kw_tiles[(kw_y - kw_from_y) * KW_PITCH + kw_x - kw_from] = @FROM@[@ELEMENT@];
  }
}
@BARRIER@
const int kw_x0 = KW_LOW_X(1), kw_x1 = KW_HIGH_X(1), kw_y0 = KW_LOW_Y(1), kw_y1 = KW_HIGH_Y(1);
const int kw_is_inside = @BLOCK_INSIDE@;
for (int kw_s = 1; kw_s <= @STEPS@; ++kw_s) {
  KW_TAKEN const @TYPE@ *const kw_now = kw_tiles + (kw_s - 1) % 2 * (KW_HEIGHT * KW_PITCH);
  KW_TAKEN @TYPE@ *const kw_next = kw_tiles + kw_s % 2 * (KW_HEIGHT * KW_PITCH);
  for (int kw_y = KW_LOW_Y(kw_s) + @THREAD_Y@; kw_y < KW_HIGH_Y(kw_s); kw_y += @BLOCK_Y@) {
    KW_TAKEN const @TYPE@ *const kw_rows[] = {@TILE_ROWS@};
    for (int kw_x = KW_LOW_X(kw_s) + @THREAD_X@; kw_x < KW_HIGH_X(kw_s); kw_x += @BLOCK_X@) {
      @TYPE@ kw_own;
      if (kw_is_inside) {
        @INNER@;
      } else {
        @EDGE@;
      }
      if (kw_s == @STEPS@) {
        @TO@[@ELEMENT@] = kw_own;
      } else {
        kw_next[(kw_y - kw_from_y) * KW_PITCH + kw_x - kw_from] = kw_own;
      }
    }
  }
  @BARRIER@
}
"""
