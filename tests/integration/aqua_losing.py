"""A connector that loses what it saved, now and then: what vLLM then has to compute again."""

from __future__ import annotations

from typing import Any

from systems.aqua.plugin.connector import AquaConnector
from systems.aqua.plugin.pages import Pages


class LosingConnector(AquaConnector):
    """Each third page-in finds nothing."""

    seen = 0

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pages = self._get_connector_metadata()
        assert isinstance(pages, Pages)
        for page in pages.into:
            self.seen += 1
            if self.seen % 3 == 0:
                assert self._paged is not None
                self._paged._host.pop(page.request_id)
        super().start_load_kv(forward_context, **kwargs)
