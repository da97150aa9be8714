"""Transpositions and permutations through tiles, so that reads and writes both walk along memory.

Where a value is moved as it is, tiles are moved with vectors. Where something is computed, the kernel's own code makes
the value and stores it, each as a function of the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.analysis.patterns.indices import Touch
from kernelwright.analysis.polynomial import Polynomial, named
from kernelwright.tactics.base import Effect, Rewrite, RuleTactic, Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.tiling.frame import Frame, Index, drop_sized_attributes, place_attribute
from kernelwright.tactics.tiling.index_space import frame_of
from kernelwright.tactics.tiling.store import (
    VECTOR_TYPES,
    LoopIndex,
    StorePlace,
    loop_indices,
    moved_load,
    plain_type,
    stores_of,
    storing_edits,
    value_edits,
)
from kernelwright.tactics.tiling.text import fill, put_macro, take_macro
from kernelwright.tactics.transpose.tiles_text import (
    CUDA_MADE,
    CUDA_MOVE,
    OPENCL_BLOCKS,
    OPENCL_EDGE,
    OPENCL_MACROS,
    OPENCL_STAGED,
    OPENCL_UNDEFINES,
    OPENCL_VECTORS,
    ORIGIN,
)

NAME = "transpose-tiles"


@dataclass(frozen=True, slots=True)
class _Permutation:
    """A kernel whose fastest index is another where it reads than where it writes."""

    frame: Frame
    store: StorePlace
    read: Touch
    loops: tuple[LoopIndex, ...]
    along_read: Index
    along_write: Index
    batch: tuple[Index, ...]
    c_type: str
    element_bytes: int
    is_moved: bool
    """Whether what is stored is the load as it is."""

    @property
    def names(self) -> dict[str, str]:
        """How indices are called in the text."""
        names = {self.along_read.atom: "kw_u", self.along_write.atom: "kw_v"}
        return names | {index.atom: index.text(f"kw_batch_{number}") for number, index in enumerate(self.batch)}

    def element(self, touch: Touch) -> str:
        """C text of an element's index."""
        form = self.frame.form(touch)
        return self.frame.text(_sum(form.offset, form.terms), self.names, cast=f"({self.frame.dialect.signed_64})")

    def call(self, name: str, *extra: str) -> str:
        """A call of one of the kernel's functions."""
        names = self.names
        loops = tuple(names[loop.index.atom] for loop in self.loops)
        return self.frame.call(name, self.frame.place(names), *loops, *extra)


def _sum(offset: Polynomial, terms: Mapping[str, Polynomial]) -> Polynomial:
    for name, coefficient in terms.items():
        offset = offset + coefficient * named(name)
    return offset


def _permutation(subject: Subject, plan: RewriteBuilder) -> _Permutation:
    pattern = subject.pattern
    if pattern.kind != "transpose":
        raise Unfit("its fastest index is the same where it reads and where it writes")
    if pattern.variant == "tiled":
        raise Unfit("it already goes through a tile", is_already_so=True)
    frame = frame_of(subject)
    stores = stores_of(subject)
    if len(stores) != 1:
        raise Unfit("it stores more than one value")
    store = stores[0]
    loops = loop_indices(frame, store)
    read = _permuted(subject, store)
    moved = moved_load(subject, store)
    of_loops = {loop.index.atom: loop.index for loop in loops}
    units = [_unit(frame, touch) for touch in (subject.indices.aligned(read, store.touch), store.touch)]
    if units[0] == units[1]:
        raise Unfit("its fastest index is the same where it reads and where it writes")
    atoms = (*frame.atoms(), *of_loops)
    ends: dict[str, Polynomial | None] = dict.fromkeys(atoms)
    if moved is not None:
        ends |= frame.only_bounds([read.access, store.touch.access], frame.atoms())
    else:
        ends |= _ends(frame, store)
    every = {atom: of_loops.get(atom) or frame.index(plan, atom, ends[atom]) for atom in atoms}
    if any(every[unit].start for unit in units):
        raise Unfit(f"{frame.name(units[0])} or {frame.name(units[1])} counts from another number than 0")
    array = subject.analysis.facts.arrays[store.touch.array]
    if array.width != 1 or (array.element_bytes is None and subject.language == "opencl"):
        raise Unfit(f"{array.name} holds vectors already")
    return _Permutation(
        frame, store, read, loops, every[units[0]], every[units[1]],
        tuple(index for atom, index in every.items() if atom not in units), plain_type(array.c_type),
        array.element_bytes or 8, moved is not None and array.element_bytes is not None,
    )  # fmt: skip


def _ends(frame: Frame, store: StorePlace) -> dict[str, Polynomial | None]:
    """Ends from what decides on the store; conditions that are more than ends stay in the kernel's own code."""
    limits, _ = frame.limits(store.touch.access)
    found: dict[str, Polynomial | None] = {}
    for limit in limits:
        if limit.kind == "below":
            found.setdefault(limit.atom, limit.value)
    return {atom: found.get(atom) for atom in frame.atoms()}


def _permuted(subject: Subject, store: StorePlace) -> Touch:
    names = [name for name, role in subject.pattern.roles.items() if role == "permuted"]
    found = [touch for touch in subject.indices.feeding(store.touch) if touch.array in names]
    if len(found) != 1:
        raise Unfit("which load is permuted is not certain")
    return found[0]


def _unit(frame: Frame, touch: Touch) -> str:
    terms = frame.form(touch).terms
    found = [name for name, coefficient in terms.items() if coefficient.constant == 1]
    if len(found) != 1:
        raise Unfit(f"no single index walks along {touch.array}")
    return found[0]


def _rule(subject: Subject) -> Rewrite:
    plan = RewriteBuilder(subject, NAME, "transpose")
    found = _permutation(subject, plan)
    drop_sized_attributes(subject, plan)
    return _opencl(plan, found) if subject.language == "opencl" else _cuda(plan, found)


def _functions(plan: RewriteBuilder, found: _Permutation, *wanted: str) -> dict[str, str]:
    """The kernel's own code as functions before it, and their calls."""
    frame, entry = found.frame, plan.subject.entry
    edits = [edit for loop in found.loops for edit in loop.edits]
    loops = "".join(f"const int {loop.parameter}, " for loop in found.loops)
    own = {"STORE": "kw_tile[(kw_v - kw_v0) * (@TILE_U@ + @PAD@) + (kw_u - kw_u0)]", "WHOLE": ""}
    own["VALUE"] = "&kw_own" if frame.dialect.is_opencl else "&kw_own[kw_i]"
    extra = {"VALUE": f"{found.c_type} *kw_value", "STORE": f"const {found.c_type} kw_value", "WHOLE": ""}
    more = {"VALUE": value_edits([found.store]), "STORE": storing_edits([found.store]), "WHOLE": ()}
    calls = {}
    for word in wanted:
        name = plan.fresh(f"{entry}_{word.lower()}")
        text = frame.function(name, edits=(*edits, *more[word]), extra=(loops + extra[word]).removesuffix(", "))
        plan.prelude.append(text + "\n")
        calls[word] = found.call(name, *([own[word]] if own[word] else []))
    return calls


def _batch(found: _Permutation) -> str:
    if len(found.batch) > 2:
        raise Unfit("it has more than two further indices")
    query = found.frame.dialect.block
    lines = [f"const int kw_batch_{number} = {query('yz'[number])};" for number in range(len(found.batch))]
    lines += [
        f"if (kw_batch_{number} >= {index.end}) {{\n  return;\n}}" for number, index in enumerate(found.batch)
    ]  # fmt: skip
    return "\n".join(lines)


def _common(found: _Permutation) -> dict[str, object]:
    return {
        "T": found.c_type, "END_U": found.along_read.end, "END_V": found.along_write.end, "BATCH": _batch(found),
        "BLOCK_INDEX": found.frame.dialect.block("x"), "FROM": found.read.array, "TO": found.store.touch.array,
        "ELEMENT_IN": found.element(found.read) if found.is_moved else "",
        "ELEMENT_OUT": found.element(found.store.touch) if found.is_moved else "",
    }  # fmt: skip


def _grid(found: _Permutation, tile_u: str, tile_v: str) -> tuple[str, ...]:
    tiles = f"ceil_div({found.along_read.host}, {tile_u}) * ceil_div({found.along_write.host}, {tile_v})"
    return (tiles, *(index.host for index in found.batch))


# CUDA and HIP


def _cuda(plan: RewriteBuilder, found: _Permutation) -> Rewrite:
    size, add = found.element_bytes, plan.parameter
    names: dict[str, object] = {
        "TILE_U": add(
            "TILE_U", (16, 32, 64, 128), 64 if found.is_moved else 32, "elements of a tile along what is read"
        ),
        "TILE_V": add(
            "TILE_V", (16, 32, 64, 128), 64 if found.is_moved else 32, "elements of a tile along what is written"
        ),
        "BLOCK": add("BLOCK", (64, 128, 256, 512, 1024), 256, "threads of a block"),
        "PAD": add("PAD", (0, 1, 2, 4), 1, "extra elements of a row of the tile, against bank conflicts"),
        "WALK": add("WALK", (0, 1), 0, "0: blocks go along what is read; 1: along what is written"),
    }
    widths = tuple(width for width in (1, 2, 4, 8) if width * size <= 16)
    if found.is_moved:
        names["READ"] = add("READ", widths, widths[-1], "elements of a load where they are aligned")
        names["WRITE"] = add("WRITE", widths, widths[-1], "elements of a store where they are aligned")
        is_hinted = plan.subject.language == "cuda" and len(widths) > 1
        hint = "are kept in caches, 0: as usual; 1: as little as can be"
        names["LOADING"] = add("LOADING", (0, 1), 0, f"vectors that were loaded {hint}") if is_hinted else 0
        names["STORING"] = add("STORING", (0, 1), 0, f"vectors that were stored {hint}") if is_hinted else 0
    else:
        names |= {"READ": 1, "WRITE": 1}
    for name, condition in (
        ("reads", "@TILE_U@ * @TILE_V@ % (@BLOCK@ * @READ@) == 0"),
        ("writes", "@TILE_U@ * @TILE_V@ % (@BLOCK@ * @WRITE@) == 0"),
        ("work", "@TILE_U@ * @TILE_V@ <= 64 * @BLOCK@"),
        ("shared", f"{size} * @TILE_V@ * (@TILE_U@ + @PAD@) <= device.shared_memory_per_block"),
    ):
        plan.constraint(name, fill(condition, names))
    if names.get("LOADING"):
        plan.constraint("hints", fill("(@READ@ > 1 or @LOADING@ == 0) and (@WRITE@ > 1 or @STORING@ == 0)", names))
    values = {**names, **_common(found), "MEMORY": plan.fresh("kw_memory")}
    if found.is_moved:
        macros = take_macro(names["READ"], size, names["LOADING"]) + put_macro(names["WRITE"], size, names["STORING"])
        plan.prelude.append(macros + "\n")
        form_in, form_out = found.frame.form(found.read), found.frame.form(found.store.touch)
        values["WIDE_IN"] = _wide(
            found, form_in.offset, form_in.terms, found.along_read, found.read.array, "READ", values
        )
        values["WIDE_OUT"] = _wide(
            found, form_out.offset, form_out.terms, found.along_write, found.store.touch.array, "WRITE", values
        )  # fmt: skip
    else:
        calls = _functions(plan, found, "VALUE", "STORE")
        values |= {name: fill(text, values) for name, text in calls.items()}
    values["ORIGIN"] = fill(ORIGIN, values)
    subject = plan.subject
    body = fill(CUDA_MOVE if found.is_moved else CUDA_MADE, values)
    if found.is_moved:
        body += "".join(f"#undef KW_{word}\n" for word in ("TAKE", "PUT", "WORD_IN", "WORD_OUT"))
    plan.replace(subject.analysis.function.body.place.span, body)
    place_attribute(subject, plan, fill("__launch_bounds__(@BLOCK@)", values))
    plan.header = plan.header.relaunched(
        only_shape(subject).entry, grid=_grid(found, str(names["TILE_U"]), str(names["TILE_V"])),
        block=(str(names["BLOCK"]),),
        shared_bytes=fill(f"{size} * @TILE_V@ * (@TILE_U@ + @PAD@)", names),
    )  # fmt: skip
    return _finished(plan, found)


def _wide(
    found: _Permutation, offset: Polynomial, terms: Mapping[str, Polynomial], along: Index, array: str, word: str,
    values: Mapping[str, object],
) -> str:  # fmt: skip
    """Whether vectors of an array are aligned wherever they start."""
    frame, width = found.frame, values[word]
    cast = f"({frame.dialect.signed_64})"
    parts = [f"(size_t){array} % (sizeof({found.c_type}) * {width}) == 0"]
    others = [coefficient for name, coefficient in terms.items() if name != along.atom]
    parts += [f"({frame.text(value, cast=cast)}) % {width} == 0" for value in (offset, *others) if value.terms]
    return " && ".join(parts)


# OpenCL


def _opencl(plan: RewriteBuilder, found: _Permutation) -> Rewrite:
    add, is_cpu = plan.parameter, plan.subject.device.kind == "cpu"
    size = found.element_bytes
    is_vector = found.is_moved and found.c_type in VECTOR_TYPES and _is_global(plan.subject, found)
    names: dict[str, object] = {
        "GROUP_U": add(
            "GROUP_U", (1, 2, 4, 8, 16, 32), 8 if is_cpu else 32, "work-items of a group along what is read"
        ),
        "GROUP_V": add("GROUP_V", (1, 2, 4, 8, 16), 8, "work-items of a group along what is written"),
        "BLOCKS_U": add("BLOCKS_U", (1, 2, 4, 8), 1, "blocks along what is read that one work-item takes"),
        "BLOCKS_V": add(
            "BLOCKS_V", (1, 2, 4, 8), 1 if is_cpu else 4, "blocks along what is written that one work-item takes"
        ),
        "VEC": add("VEC", (1, 2, 4, 8), 4 if is_cpu else 1, "side of the block that goes through registers"),
        "WALK": add("WALK", (0, 1), 0, "0: groups and blocks go along what is read; 1: along what is written"),
        "STAGE": add(
            "STAGE", (0, 1), 0 if is_cpu else 1, "1: through a tile in local memory; 0: from memory to memory"
        ),
        "PAD": add("PAD", (0, 1), 0 if is_cpu else 1, "extra element of a row of the tile, against bank conflicts"),
    }
    names |= {
        "TILE_U": fill("@GROUP_U@ * @BLOCKS_U@ * @VEC@", names),
        "TILE_V": fill("@GROUP_V@ * @BLOCKS_V@ * @VEC@", names),
    }
    for name, condition in (
        ("threads", "@GROUP_U@ * @GROUP_V@ <= device.max_threads_per_block"),
        ("tile", "@TILE_U@ * @TILE_V@ <= 8192"),
        ("registers", "@BLOCKS_U@ * @BLOCKS_V@ * @VEC@ <= 64"),
        ("shared", f"@STAGE@ * {size} * @TILE_V@ * (@TILE_U@ + @PAD@) <= device.shared_memory_per_block"),
        ("scalars", "@STAGE@ == 0 or @VEC@ == 1"),
        ("sharing", "@STAGE@ == 0 or @GROUP_U@ * @GROUP_V@ >= 32"),
        ("direct", "@STAGE@ == 1 or @PAD@ == 0"),
    ):
        plan.constraint(name, fill(condition, names))
    values = {**names, **_common(found)}
    calls = _functions(plan, found, "VALUE", "STORE", "WHOLE")
    values |= {name: fill(text, {**values, "TILE_U": f"({values['TILE_U']})"}) for name, text in calls.items()}
    values["ORIGIN"] = fill(ORIGIN, values)
    values["EDGE"] = fill(OPENCL_EDGE, values)
    values["BLOCK"] = fill(OPENCL_VECTORS if is_vector else OPENCL_EDGE, values)
    subject = plan.subject
    staged, blocks = fill(OPENCL_STAGED, values), fill(OPENCL_BLOCKS, values)
    text = f"\n#if {names['STAGE']}\n{staged}#else\n{blocks}#endif\n"
    if is_vector:
        plan.prelude.append(fill(OPENCL_MACROS, values) + "\n")
        text += OPENCL_UNDEFINES
    plan.replace(subject.analysis.function.body.place.span, text)
    place_attribute(subject, plan, fill("__attribute__((reqd_work_group_size(@GROUP_U@, @GROUP_V@, 1)))", values))
    plan.header = plan.header.relaunched(
        only_shape(subject).entry, grid=_grid(found, str(names["TILE_U"]), str(names["TILE_V"])),
        block=(str(names["GROUP_U"]), str(names["GROUP_V"])),
    )  # fmt: skip
    return _finished(plan, found)


def _is_global(subject: Subject, found: _Permutation) -> bool:
    arrays = subject.analysis.facts.arrays
    return all(arrays[name].space == "global" for name in (found.read.array, found.store.touch.array))


def _finished(plan: RewriteBuilder, found: _Permutation) -> Rewrite:
    sentence = (
        f"{found.read.array} is read and {found.store.touch.array} written along memory, both, with tiles between; "
        f"the plain kernel walks only one of them along memory."
    )
    because = "every line of memory that is fetched or written is used whole at once"
    is_cpu = plan.subject.device.kind == "cpu"
    return plan.finish(sentence, Effect(2.0 if is_cpu else 3.0, because))


TRANSPOSE_TILES = RuleTactic(
    NAME,
    "transpose",
    "Sends a transposition or permutation through tiles, so that both sides walk along memory.",
    _rule,
)
