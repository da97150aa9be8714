"""The session's own kernels, as PTX that every driver since CUDA 10 compiles in milliseconds by itself."""

from __future__ import annotations

OWN_PREFIX = "kernelwright_"
READ_ENTRY = "kernelwright_read"
DELAY_ENTRY = "kernelwright_delay"
DIFFER_ENTRY = "kernelwright_differ"
WITHIN_ENTRY = "kernelwright_within_"
"""And the bytes of an element."""
FORGET_ENTRY = "kernelwright_forget"
FORGET_LOCAL_ENTRY = "kernelwright_forget_local"

HELPER_PTX = """
.version 6.3
.target sm_70
.address_size 64

// read(const uint4 *data, u64 count, u32 *sink): loads all of `data` past the first-level cache. Stores only what
// is not zero, and the data are zeros: the second-level cache ends up full of lines that need no writing back.
.visible .entry kernelwright_read(.param .u64 data, .param .u64 count, .param .u64 sink)
{
  .reg .pred %p<3>;
  .reg .b32 %r<10>;
  .reg .b64 %d<10>;
  ld.param.u64 %d0, [data];
  ld.param.u64 %d1, [count];
  ld.param.u64 %d2, [sink];
  cvta.to.global.u64 %d0, %d0;
  cvta.to.global.u64 %d2, %d2;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %d3, %r0, %r1;
  cvt.u64.u32 %d4, %r2;
  add.u64 %d3, %d3, %d4;
  mul.wide.u32 %d5, %r3, %r1;
  mov.u32 %r8, 0;
LOOP:
  setp.ge.u64 %p0, %d3, %d1;
  @%p0 bra DONE;
  shl.b64 %d6, %d3, 4;
  add.u64 %d6, %d6, %d0;
  ld.global.cg.v4.u32 {%r4, %r5, %r6, %r7}, [%d6];
  or.b32 %r4, %r4, %r5;
  or.b32 %r6, %r6, %r7;
  or.b32 %r4, %r4, %r6;
  or.b32 %r8, %r8, %r4;
  add.u64 %d3, %d3, %d5;
  bra LOOP;
DONE:
  setp.eq.u32 %p1, %r8, 0;
  @%p1 bra END;
  st.global.u32 [%d2], %r8;
END:
  ret;
}

// differ(const uint4 *first, const uint4 *second, u64 count, u32 *flag): sets the flag if any word differs.
.visible .entry kernelwright_differ(.param .u64 first, .param .u64 second, .param .u64 count, .param .u64 flag)
{
  .reg .pred %p<3>;
  .reg .b32 %r<16>;
  .reg .b64 %d<12>;
  ld.param.u64 %d0, [first];
  ld.param.u64 %d1, [second];
  ld.param.u64 %d2, [count];
  ld.param.u64 %d3, [flag];
  cvta.to.global.u64 %d0, %d0;
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d3, %d3;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %d4, %r0, %r1;
  cvt.u64.u32 %d5, %r2;
  add.u64 %d4, %d4, %d5;
  mul.wide.u32 %d6, %r3, %r1;
  mov.u32 %r12, 0;
LOOP:
  setp.ge.u64 %p0, %d4, %d2;
  @%p0 bra DONE;
  shl.b64 %d7, %d4, 4;
  add.u64 %d8, %d7, %d0;
  add.u64 %d9, %d7, %d1;
  ld.global.cg.v4.u32 {%r4, %r5, %r6, %r7}, [%d8];
  ld.global.cg.v4.u32 {%r8, %r9, %r10, %r11}, [%d9];
  xor.b32 %r4, %r4, %r8;
  xor.b32 %r5, %r5, %r9;
  xor.b32 %r6, %r6, %r10;
  xor.b32 %r7, %r7, %r11;
  or.b32 %r4, %r4, %r5;
  or.b32 %r6, %r6, %r7;
  or.b32 %r4, %r4, %r6;
  or.b32 %r12, %r12, %r4;
  add.u64 %d4, %d4, %d6;
  bra LOOP;
DONE:
  setp.eq.u32 %p1, %r12, 0;
  @%p1 bra END;
  mov.u32 %r13, 1;
  st.global.u32 [%d3], %r13;
END:
  ret;
}

// delay(u64 nanoseconds): keeps the stream busy for so long.
.visible .entry kernelwright_delay(.param .u64 nanoseconds)
{
  .reg .pred %p<2>;
  .reg .b64 %d<5>;
  ld.param.u64 %d0, [nanoseconds];
  mov.u64 %d1, %globaltimer;
WAIT:
  mov.u64 %d2, %globaltimer;
  sub.u64 %d3, %d2, %d1;
  setp.lt.u64 %p0, %d3, %d0;
  @%p0 bra WAIT;
  ret;
}
"""

_WITHIN = """
// within(values, low, high, u64 count, u32 *flag, u64 sign, u64 negative, u64 every, u64 greatest): sets the flag if
// the key of any element (`KeyOrder`) is outside of its bounds.
.visible .entry kernelwright_within_WIDTH(.param .u64 values, .param .u64 low, .param .u64 high, .param .u64 count,
  .param .u64 flag, .param .u64 sign, .param .u64 negative, .param .u64 every, .param .u64 greatest)
{
  .reg .pred %p<6>;
  .reg .b32 %r<8>;
  .reg .b64 %d<32>;
  ld.param.u64 %d0, [values];
  ld.param.u64 %d1, [low];
  ld.param.u64 %d2, [high];
  ld.param.u64 %d3, [count];
  ld.param.u64 %d4, [flag];
  ld.param.u64 %d5, [sign];
  ld.param.u64 %d6, [negative];
  ld.param.u64 %d7, [every];
  ld.param.u64 %d8, [greatest];
  cvta.to.global.u64 %d0, %d0;
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  cvta.to.global.u64 %d4, %d4;
  not.b64 %d9, %d5;
  and.b64 %d9, %d9, %d7;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %d10, %r0, %r1;
  cvt.u64.u32 %d11, %r2;
  add.u64 %d10, %d10, %d11;
  mul.wide.u32 %d12, %r3, %r1;
  mov.u32 %r4, 0;
LOOP:
  setp.ge.u64 %p0, %d10, %d3;
  @%p0 bra DONE;
  shl.b64 %d13, %d10, SHIFT;
  add.u64 %d14, %d0, %d13;
  add.u64 %d15, %d1, %d13;
  add.u64 %d16, %d2, %d13;
  ld.global.cg.uBITS %d17, [%d14];
  ld.global.cg.uBITS %d18, [%d15];
  ld.global.cg.uBITS %d19, [%d16];
  and.b64 %d20, %d17, %d5;
  setp.ne.u64 %p1, %d20, 0;
  xor.b64 %d21, %d17, %d6;
  or.b64 %d22, %d17, %d5;
  selp.b64 %d23, %d21, %d22, %p1;
  and.b64 %d24, %d17, %d9;
  setp.gt.u64 %p2, %d24, %d8;
  selp.b64 %d23, %d7, %d23, %p2;
  setp.lt.u64 %p3, %d23, %d18;
  setp.gt.u64 %p4, %d23, %d19;
  or.pred %p3, %p3, %p4;
  selp.u32 %r5, 1, 0, %p3;
  or.b32 %r4, %r4, %r5;
  add.u64 %d10, %d10, %d12;
  bra LOOP;
DONE:
  setp.eq.u32 %p5, %r4, 0;
  @%p5 bra END;
  st.global.u32 [%d4], %r4;
END:
  ret;
}
"""


def _within(item_bytes: int) -> str:
    """The kernel for elements of so many bytes; registers of 64 bits take narrower loads."""
    shift = item_bytes.bit_length() - 1
    return _WITHIN.replace("WIDTH", str(item_bytes)).replace("SHIFT", str(shift)).replace("BITS", str(8 * item_bytes))


HELPER_PTX += "".join(_within(item_bytes) for item_bytes in (1, 2, 4, 8))

FORGET_PTX = """
.version 6.3
.target sm_70
.address_size 64

.extern .shared .align 16 .b8 kernelwright_shared[];

// forget(u64 words): stores a pattern over so many words of shared memory, each block for itself.
.visible .entry kernelwright_forget(.param .u64 words)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %d<2>;
  ld.param.u64 %d0, [words];
  cvt.u32.u64 %r0, %d0;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, kernelwright_shared;
  shl.b32 %r4, %r1, 2;
  add.u32 %r3, %r3, %r4;
  shl.b32 %r5, %r2, 2;
LOOP:
  setp.ge.u32 %p0, %r1, %r0;
  @%p0 bra DONE;
  st.volatile.shared.u32 [%r3], 0xffc0feed;
  add.u32 %r1, %r1, %r2;
  add.u32 %r3, %r3, %r5;
  bra LOOP;
DONE:
  ret;
}
"""
"""Apart from the others, because it is only needed by candidates that use shared memory."""

_FORGET_LOCAL = """
.version 6.3
.target sm_70
.address_size 64

// forget_local(): stores a pattern over BYTES bytes of each thread's local memory, then stays for as long as it takes
// until all blocks run, so that no two threads get the same memory.
.visible .entry kernelwright_forget_local()
{
  .local .align 16 .b8 frame[BYTES];
  .reg .pred %p<3>;
  .reg .b32 %r<2>;
  .reg .b64 %d<6>;
  mov.u64 %d3, %globaltimer;
  mov.u64 %d0, frame;
  cvta.local.u64 %d0, %d0;
  add.u64 %d1, %d0, BYTES;
  mov.u32 %r0, 0xffc0feed;
LOOP:
  st.volatile.v4.u32 [%d0], {%r0, %r0, %r0, %r0};
  add.u64 %d0, %d0, 16;
  setp.lt.u64 %p0, %d0, %d1;
  @%p0 bra LOOP;
WAIT:
  mov.u64 %d4, %globaltimer;
  sub.u64 %d5, %d4, %d3;
  setp.lt.u64 %p1, %d5, 2000;
  @%p1 bra WAIT;
  ret;
}
"""


def forget_local_ptx(byte_count: int) -> str:
    """The kernel for threads with so many bytes, a multiple of 16."""
    return _FORGET_LOCAL.replace("BYTES", str(byte_count))
