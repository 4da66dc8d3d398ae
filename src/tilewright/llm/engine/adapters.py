"""`Adapters`: the low-rank adapters that an engine has loaded, by name, and the requests that use them."""

from __future__ import annotations

import threading
from pathlib import Path

from ...errors import RequestError
from ..runner import AdapterSlots
from .prefix_cache import PrefixNode


class LoadedAdapter:
    """An adapter in one of the model's places.

    Args:
        name: The name by which requests choose it.
        folder: Where it was loaded from.
        number: Its place in the model.
    """

    def __init__(self, name: str, folder: Path, number: int) -> None:
        self.name, self.folder, self.number = name, folder, number
        self.root = PrefixNode(None, b"", -1)
        """The root of its own tree of prefixes: keys and values depend on the adapter."""
        self.users = 0
        """Choices that have not ended."""
        self.unloaded = False


class Adapters:
    """The adapters of an engine. Its methods may be called from any thread.

    Args:
        slots: The places of the model; None: it has none.
    """

    def __init__(self, slots: AdapterSlots | None) -> None:
        self._slots = slots
        self._changing = threading.Lock()
        self._loading = threading.Lock()
        self._free = [] if slots is None else list(range(slots.count, 0, -1))
        self._loaded: dict[str, LoadedAdapter] = {}

    @property
    def names(self) -> list[str]:
        """The names of the adapters, in the order of loading."""
        return list(self._loaded)

    def load(self, name: str, folder: str | Path, replace: bool = False) -> None:
        """Load an adapter. Requests that run are not affected.

        Args:
            name: The name by which requests choose it.
            folder: The folder that PEFT wrote.
            replace: Whether it may replace an adapter of this name, which running requests keep.

        Raises:
            RequestError: The name is taken, there is no free place, or the model has none.
            WeightsError: A file is missing or damaged, or the adapter does not fit the model.
        """
        slots = self._slots
        if slots is None:
            raise RequestError("the library was compiled without adapters: compile it with --max-adapters N")
        with self._loading:
            if name in self._loaded and not replace:
                raise RequestError(f"the adapter {name!r} is loaded already: unload it first")
            with self._changing:
                if not self._free:
                    raise RequestError(
                        f"all {slots.count} places are in use by {', '.join(self._loaded)}, or by "
                        "requests that still run: unload one, or compile the library with more --max-adapters"
                    )
                number = self._free.pop()
            try:
                slots.load(number, Path(folder))
            except BaseException:
                with self._changing:
                    self._free.append(number)
                raise
            with self._changing:
                self._unload(name)
                self._loaded[name] = LoadedAdapter(name, Path(folder), number)

    def unload(self, name: str) -> None:
        """Remove an adapter: no further request can choose it. Its place is free when those that use it have
        ended.

        Raises:
            RequestError: There is none of this name.
        """
        with self._changing:
            if not self._unload(name):
                raise RequestError(
                    f"no adapter {name!r} is loaded; loaded: {', '.join(self._loaded) or 'none'}"
                )

    def _unload(self, name: str) -> bool:
        adapter = self._loaded.pop(name, None)
        if adapter is None:
            return False
        adapter.unloaded = True
        if not adapter.users:
            self._free.append(adapter.number)
        return True

    def taken(self, name: str, count: int) -> LoadedAdapter | None:
        """The adapter of a name, for `count` choices that use it until `left`; None for no name.

        Raises:
            RequestError: There is none of this name.
        """
        if not name:
            return None
        with self._changing:
            adapter = self._loaded.get(name)
            if adapter is None:
                raise RequestError(
                    f"no adapter {name!r} is loaded; loaded: {', '.join(self._loaded) or 'none'}"
                )
            adapter.users += count
            return adapter

    def left(self, adapter: LoadedAdapter | None, count: int = 1) -> None:
        """End the use of an adapter by `count` choices."""
        if adapter is None:
            return
        with self._changing:
            adapter.users -= count
            if adapter.unloaded and not adapter.users:
                self._free.append(adapter.number)


__all__ = ["Adapters", "LoadedAdapter"]
