// /// kernelwright
// [parameters]
// TILE_X  = { values = [32, 64, 128, 256, 512], default = 64, why = "columns that one group finishes" }
// TILE_Y  = { values = [8, 16, 32, 64, 128], default = 16, why = "rows that one group finishes" }
// GROUP_X = { values = [1, 4, 8, 16, 32, 64], default = 16, why = "work-items of a group along a row" }
// GROUP_Y = { values = [1, 2, 4, 8, 16], default = 16, why = "work-items of a group down the rows" }
// VEC     = { values = [1, 2, 4, 8], default = 4, why = "points per load, update and store" }
// [constraints]
// threads = "GROUP_X * GROUP_Y <= min(256, device.max_threads_per_block)"
// shared  = "8 * (TILE_X + 2 * max(4, VEC)) * (TILE_Y + 8) <= device.shared_memory_per_block"
// cached  = "8 * (TILE_X + 2 * max(4, VEC)) * (TILE_Y + 8) <= 524288"
// busy_x  = "GROUP_X * VEC <= TILE_X"
// busy_y  = "GROUP_Y <= TILE_Y"
// fits    = "TILE_X <= width and TILE_Y <= height"
// [launch]
// grid  = ["ceil_div(width, TILE_X)", "ceil_div(height, TILE_Y)"]
// block = ["GROUP_X", "GROUP_Y"]
// arguments = ["now", "later", "width", "height", "rate"]
// ///

// Four explicit steps of the heat equation on a height x width grid whose border keeps its values, in one launch: a group reads
// its tile and a halo of four points into local memory, makes four steps there, each one point narrower, and writes the tile.
// The halo is computed by its neighbours too: some arithmetic more, for a quarter of the traffic. Any size of at least 2 x 2 is
// right.

#ifndef TILE_X
#define TILE_X 64
#endif
#ifndef TILE_Y
#define TILE_Y 16
#endif
#ifndef GROUP_X
#define GROUP_X 16
#endif
#ifndef GROUP_Y
#define GROUP_Y 16
#endif
#ifndef VEC
#define VEC 4
#endif

#define STEPS 4
// Whole vectors to the left and to the right, so that no step needs a part of one.
#define HALO_X (VEC > STEPS ? VEC : STEPS)
#define PITCH (TILE_X + 2 * HALO_X)
#define HEIGHT (TILE_Y + 2 * STEPS)

#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
#if VEC == 1
typedef float vec_t;
#else
typedef JOIN(float, VEC) vec_t;
#endif
// A vector that may start at any float, unlike vec_t. Plain loads and stores of it, not vloadn and vstoren: some compilers
// turn those into calls.
typedef vec_t __attribute__((aligned(4))) any_vec_t;
#define LOAD(p) (*(__global const any_vec_t *)(p))
#define STORE(v, p) (*(__global any_vec_t *)(p) = (v))
#define LOAD_LOCAL(p) (*(__local const any_vec_t *)(p))
#define STORE_LOCAL(v, p) (*(__local any_vec_t *)(p) = (v))

// Reads the vector at column x of one row of the grid; zeros, which nothing depends on, where it sticks out.
static void fetch(__global const float *row, __local float *to, const int x, const int width) {
  if (x >= 0 && x + VEC <= width) {
    STORE_LOCAL(LOAD(row + x), to);
  } else {
    for (int lane = 0; lane < VEC; ++lane) {
      to[lane] = x + lane >= 0 && x + lane < width ? row[x + lane] : 0.0f;
    }
  }
}

static void write_back(__local const float *from, __global float *row, const int x, const int width) {
  if (x + VEC <= width) {
    STORE(LOAD_LOCAL(from), row + x);
  } else {
    for (int lane = 0; x + lane < width; ++lane) {
      row[x + lane] = from[lane];
    }
  }
}

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void heat(__global const float *restrict now, __global float *restrict later, const int width, const int height,
          const float rate) {
  __local float tiles[2][HEIGHT * PITCH];
  const int first_x = (int)get_group_id(0) * TILE_X - HALO_X;
  const int first_y = (int)get_group_id(1) * TILE_Y - STEPS;
  const int item_x = get_local_id(0) * VEC;
  const int item_y = get_local_id(1);

  for (int i = item_y; i < HEIGHT; i += GROUP_Y) {
    const int y = clamp(first_y + i, 0, height - 1);
    for (int j = item_x; j < PITCH; j += GROUP_X * VEC) {
      fetch(now + y * width, &tiles[0][i * PITCH + j], first_x + j, width);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);

  // Where the border's columns lie in the tile, and whether one of this work-item's vectors holds them.
  const int west = -first_x;
  const int east = width - 1 - first_x;
  const bool has_west = first_x < 0 && west / VEC % GROUP_X == get_local_id(0);
  const bool has_east = east < PITCH && east / VEC % GROUP_X == get_local_id(0);

  // The outermost columns read past their row, into the next one. That error moves inwards by one column a step, and the halo is
  // as wide as there are steps.
  for (int step = 1; step <= STEPS; ++step) {
    for (int i = step + item_y; i < HEIGHT - step; i += GROUP_Y) {
      __local const float *from = tiles[(step + 1) % 2] + i * PITCH;
      __local float *to = tiles[step % 2] + i * PITCH;
      if (first_y + i <= 0 || first_y + i >= height - 1) {
        for (int j = item_x; j < PITCH; j += GROUP_X * VEC) {
          STORE_LOCAL(LOAD_LOCAL(from + j), to + j);
        }
        continue;
      }
      for (int j = item_x; j < PITCH; j += GROUP_X * VEC) {
        __local const float *at = from + j;
        const vec_t here = LOAD_LOCAL(at);
        const vec_t around = LOAD_LOCAL(at - 1) + LOAD_LOCAL(at + 1) + LOAD_LOCAL(at - PITCH) + LOAD_LOCAL(at + PITCH);
        STORE_LOCAL(here + rate * (around - 4.0f * here), to + j);
      }
      if (has_west) {
        to[west] = from[west];
      }
      if (has_east) {
        to[east] = from[east];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  __local const float *done = tiles[STEPS % 2];
  for (int i = STEPS + item_y; i < STEPS + TILE_Y && first_y + i < height; i += GROUP_Y) {
    for (int j = HALO_X + item_x; j < HALO_X + TILE_X && first_x + j < width; j += GROUP_X * VEC) {
      write_back(done + i * PITCH + j, later + (first_y + i) * width, first_x + j, width);
    }
  }
}
