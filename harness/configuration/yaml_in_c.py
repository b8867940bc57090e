"""OmegaConf, and with it Hydra, reads YAML with PyYAML's parser in C; its own choice is the one in
Python, which takes ten times as long: as long as all else of composing a configuration."""

from __future__ import annotations

from typing import IO, Any

import omegaconf._utils
import yaml

Rules = omegaconf._utils.get_yaml_loader()  # what is a number, a key told twice is refused, …


def loader() -> type:
    """OmegaConf's loader on the parser in C, where PyYAML has it."""
    if not yaml.__with_libyaml__:
        loader: type = Rules
        return loader
    from yaml._yaml import CParser

    class Loader(CParser, Rules):  # type: ignore[misc, valid-type]
        def __init__(self, stream: str | bytes | IO[Any]) -> None:
            CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader


LOADER = loader()
omegaconf._utils.get_yaml_loader = lambda: LOADER
