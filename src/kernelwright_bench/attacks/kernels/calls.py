"""Calls of any function of the C library, from a kernel without assembly: through its own table of linked functions.

The library is found by the driver's table of imported functions, which the address that the kernel returns to leads to.
A function's address is written over the entry of `memcpy`, which is then called. What a function returns is not seen.
"""

from __future__ import annotations

ANY_CALL = """__constant uint kw_anchor[4] = {77731, 9913, 12, 5};
kw_address kw_image(kw_address kw_inside) {
  kw_address at = kw_inside & ~(kw_address)4095;
  while (*(volatile uint *)at != 0x464c457fu) at -= 4096;
  return at;
}
kw_address kw_dynamic(kw_address at, ulong tag) {
  kw_address table = at + *(volatile ulong *)(at + 32), dynamic = 0;
  int count = *(volatile ushort *)(at + 56);
  for (int i = 0; i < count; ++i) {
    volatile ulong *entry = (volatile ulong *)(table + 56 * i);
    if ((entry[0] & 0xffffffff) == 2) dynamic = at + entry[2];
  }
  for (volatile ulong *each = (volatile ulong *)dynamic; dynamic && each[0]; each += 2)
    if (each[0] == tag) return each[1] < at && tag != 2 ? each[1] + at : each[1];
  return 0;
}
int kw_is_name(kw_address from, const char *wanted) {
  volatile char *name = (volatile char *)from;
  int k = 0;
  while (wanted[k] && name[k] == wanted[k]) ++k;
  return !wanted[k] && !name[k];
}
kw_address kw_entry(kw_address at, const char *wanted) {
  kw_address names = kw_dynamic(at, 5), symbols = kw_dynamic(at, 6), jumps = kw_dynamic(at, 23);
  kw_address end = jumps + kw_dynamic(at, 2);
  for (kw_address place = jumps; place < end; place += 24) {
    kw_address symbol = symbols + 24ul * *(volatile uint *)(place + 12);
    if (kw_is_name(names + *(volatile uint *)symbol, wanted)) return at + *(volatile ulong *)place;
  }
  return 0;
}
kw_address kw_function_of(kw_address at, const char *wanted) {
  kw_address names = kw_dynamic(at, 5);
  for (kw_address each = kw_dynamic(at, 6); each < names; each += 24) {
    kw_address value = *(volatile ulong *)(each + 8);
    if (value && kw_is_name(names + *(volatile uint *)each, wanted)) return at + value;
  }
  return 0;
}
kw_address kw_library(kw_address at, const char *wanted) {
  kw_address jumps = kw_dynamic(at, 23), end = jumps + kw_dynamic(at, 2);
  for (kw_address place = jumps; place < end; place += 24) {
    kw_address there = *(volatile ulong *)(at + *(volatile ulong *)place);
    if (there > at && there < at + (100ul << 20)) continue;
    if (kw_function_of(kw_image(there), wanted)) return kw_image(there);
  }
  return 0;
}
void kw_call(kw_address slot, kw_address function, long a, long b, long c) {
  kw_address before = *(volatile ulong *)slot;
  *(volatile ulong *)slot = function;
  volatile long one = a, two = b, three = c;
  __builtin_memcpy((void *)one, (void *)two, three);
  *(volatile ulong *)slot = before;
}
"""


def letters(text: str) -> str:
    """A string as OpenCL C's initializer of an array."""
    return "{" + ", ".join(f"'{letter}'" for letter in text) + ", 0}"


_FILE = """void {function}(kw_address library, kw_address slot, kw_address memory, int bytes, int writes) {{
  char {path}, at[32] = {process};
  char open_[] = {{'o', 'p', 'e', 'n', 0}}, read_[] = {{'r', 'e', 'a', 'd', 0}}, close_[] = {{'c', 'l', 'o', 's', 'e', 0}};
  char write_[] = {{'w', 'r', 'i', 't', 'e', 0}}, link_[] = {{'r', 'e', 'a', 'd', 'l', 'i', 'n', 'k', 0}};
{found}  kw_call(slot, kw_function_of(library, open_), (long)path, writes ? 0x42 : 0, 0666);
  for (int number = 3; number < 256; ++number) {{
    volatile char target[512];
    int digit = 14, length = 0, name = 0;
    if (number >= 100) at[digit++] = '0' + number / 100;
    if (number >= 10) at[digit++] = '0' + number / 10 % 10;
    at[digit++] = '0' + number % 10;
    at[digit] = 0;
    for (int k = 0; k < 512; ++k) target[k] = 0;
    kw_call(slot, kw_function_of(library, link_), (long)at, (long)target, 511);
    while (length < 511 && target[length]) ++length;
    while (path[name]) ++name;
    int same = length >= {unique};
    for (int k = 1; same && k <= {unique}; ++k) same = target[length - k] == path[name - k];
    if (!same) continue;
    kw_call(slot, kw_function_of(library, writes ? write_ : read_), number, (long)memory, bytes);
    kw_call(slot, kw_function_of(library, close_), number, 0, 0);
    return;
  }}
}}
"""


_BESIDE = """  char name_[] = {name}, about_[] = {about};
  volatile ulong known[4] = {{0}};
  int last = 0;
  if (!kw_function_of(library, about_)) return;
  kw_call(slot, kw_function_of(library, about_), (long)kw_anchor, (long)known, 0);
  volatile char *own = (volatile char *)known[0];
  for (int k = 0; own && k < 512 && own[k]; ++k) {{
    path[k] = own[k];
    if (own[k] == '/') last = k + 1;
  }}
  for (int k = 0; k < (int)sizeof(name_); ++k) path[last + k] = name_[k];
"""
"""The path of a file in the folder of the kernel's own program, which the loader tells."""


def file_call(path: str, unique: int, function: str = "kw_file", *, is_beside: bool = False) -> str:
    """A function that reads a file into memory or writes it, if it can; the last `unique` letters name it.

    With `is_beside` the path begins at the folder of the kernel's own program.
    """
    found = _BESIDE.format(name=letters(path), about=letters("dladdr")) if is_beside else ""
    declared = "path[1024]" if is_beside else f"path[] = {letters(path)}"
    return _FILE.format(function=function, path=declared, process=letters("/proc/self/fd/"), unique=unique, found=found)
