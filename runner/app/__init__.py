"""Use cases, which the command line, the web app and the Python API call.

``from runner.app import control`` loads the module when one of its names is first used, so that
``runner --help`` imports no database library.
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

if not TYPE_CHECKING:  # type checkers read the modules themselves

    def __getattr__(name: str) -> ModuleType:
        """Return a module of this package, to be loaded later, as
        https://docs.python.org/3/library/importlib.html#implementing-lazy-imports shows."""
        spec = find_spec(f"{__name__}.{name}")
        if spec is None:
            raise AttributeError(name)
        spec.loader = LazyLoader(spec.loader)
        module = sys.modules[spec.name] = globals()[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
