"""The store seam: where the events of a run are kept.

```
store.append([event, ...])              # durable when it returns, all or none
for event in store.read():              # in the order they were appended, from any process, at any time
    ...
```

Contract (tested for every store by `kernelwright.testing.contracts_store.RunStoreContract`):

- What `append` acknowledged is there after the process is killed and the store is opened again.
- An append that fails raises `StoreError` and leaves every earlier event readable.
- A last record that was torn by a crash is not an event; damage anywhere else raises `StoreError`.
- `read` changes nothing, and may run while another process appends: it gives a prefix of the events.
- One writer at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernelwright.store.event import Event


@runtime_checkable
class RunStore(Protocol):
    """Keeps the events of one run; see the module's contract."""

    def append(self, events: Sequence[Event]) -> None:
        """Record `events` after those already there. Durable when it returns.

        Raises:
            StoreError: they could not be written; none of them is recorded.
        """
        ...

    def read(self, from_index: int = 0) -> Iterator[Event]:
        """The events from the `from_index`-th on, in order.

        Raises:
            StoreError: a record before the last is damaged, or the format is newer than this version reads.
        """
        ...
