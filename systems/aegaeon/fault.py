"""The one fault that can be had on purpose (`system.store.restart_at_s`): the proxy dies."""

from __future__ import annotations

from collections.abc import Callable

from harness.clock import Loop
from harness.request import Request
from systems.aegaeon.proxy import Proxy
from systems.aegaeon.store import StoreConfig, open_empty_store, open_store


class MortalProxy:
    """A proxy on the store, and a new one after its death. dispatch, ask: as Proxy has them.

    It dies with the first request from `restart_at_s` on, between the store and the dispatch: no
    instance has heard of that request. All that the proxy remembers is lost; the store is not.
    """

    def __init__(
        self, config: StoreConfig, loop: Loop, dispatch: Callable[[Request], str],
        ask: Callable[[int], str | None],
    ) -> None:  # fmt: skip
        self._config, self._loop = config, loop
        self._dispatch, self._ask = dispatch, ask
        self._dies_at_s = config.restart_at_s
        self.store = open_empty_store(config)
        self.proxy = Proxy(self.store, dispatch)

    def submit(self, request: Request) -> None:
        if self._dies_at_s is None or self._loop.now < self._dies_at_s:
            self.proxy.submit(request)
        else:
            self._dies_at_s = None
            self.proxy.accept(request)
            self.restart()

    def restart(self) -> None:
        """Throws the proxy away and opens another on the same store."""
        store = open_store(self._config)
        self.store.close()
        self.store, self.proxy = store, Proxy(store, self._dispatch)
        self.proxy.recover(self._ask)
