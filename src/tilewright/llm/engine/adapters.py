"""`Adapters`: the low-rank adapters that an engine has loaded, by name, and the requests that use them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

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
        self._changing = threading.RLock()
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
            replace: Whether it may replace an adapter of this name, which running requests keep. It takes a
                free place, or the old one's if no request uses that.

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
            adapter = slots.read(Path(folder))
            with self._changing:
                if not self._free:
                    old = self._loaded.get(name)
                    if old is None or old.users:
                        raise RequestError(
                            f"all {slots.count} places are in use by {', '.join(self._loaded)}, or by "
                            "requests that still run: unload one, or compile the library with more "
                            "--max-adapters"
                        )
                    # Requests for the name wait for `_changing` until the place has the new matrices.
                    self._unload(name)
                    self._put(slots, adapter, name, Path(folder))
                    return
            self._put(slots, adapter, name, Path(folder))

    def _put(self, slots: AdapterSlots, adapter: Any, name: str, folder: Path) -> None:
        """Write an adapter into a free place, and let requests choose it."""
        with self._changing:
            number = self._free.pop()
        try:
            slots.write(number, adapter)
        except BaseException:
            with self._changing:
                self._free.append(number)
            raise
        with self._changing:
            self._unload(name)
            self._loaded[name] = LoadedAdapter(name, folder, number)

    def unload(self, name: str) -> None:
        """Remove an adapter: no further request can choose it. Its place is free when those that use it have
        ended.

        Raises:
            RequestError: There is none of this name.
        """
        with self._changing:
            self._named(name)
            self._unload(name)

    def _named(self, name: str) -> LoadedAdapter:
        if name not in self._loaded:
            raise RequestError(f"no adapter {name!r} is loaded; loaded: {', '.join(self._loaded) or 'none'}")
        return self._loaded[name]

    def _unload(self, name: str) -> None:
        adapter = self._loaded.pop(name, None)
        if adapter is not None:
            adapter.unloaded = True
            if not adapter.users:
                self._free.append(adapter.number)

    def taken(self, name: str, count: int) -> LoadedAdapter | None:
        """The adapter of a name, for `count` choices that use it until `left`; None for no name.

        Raises:
            RequestError: There is none of this name.
        """
        if not name:
            return None
        with self._changing:
            adapter = self._named(name)
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
