"""A fault on purpose: the proxy dies and is opened anew (`system.store.restart_at_s`)."""

from __future__ import annotations

from collections.abc import Callable

from harness.clock import Loop
from harness.request import Request
from systems.aegaeon.proxy import Proxy
from systems.aegaeon.store import StoreConfig, open_empty_store, open_store


class MortalProxy(Proxy):
    """A proxy that dies once, and its successor. dispatch, ask: as in `Proxy`.

    It dies with the first request at or after `restart_at_s`, between the entry in the store and
    the dispatch: no instance knows that request yet. The proxy loses all that it remembers; the
    store lives on.
    """

    def __init__(
        self, config: StoreConfig, loop: Loop, dispatch: Callable[[Request], str | None],
        ask: Callable[[int], str | None],
    ) -> None:  # fmt: skip
        super().__init__(open_empty_store(config), dispatch)
        self._config, self._loop, self._ask = config, loop, ask
        self._dies_at_s = config.restart_at_s

    def submit(self, request: Request) -> None:
        if self._dies_at_s is None or self._loop.now < self._dies_at_s:
            super().submit(request)
        else:
            self._dies_at_s = None
            self.accept(request)
            self.restart()

    def restart(self) -> None:
        """Discards the proxy's memory and opens a new proxy on the same store."""
        store = open_store(self._config)
        self.store.close()
        super().__init__(store, self._dispatch)
        self.recover(self._ask)
