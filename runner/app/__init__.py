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


def load_all() -> None:
    """Load the modules of this package that were imported and not used yet. For servers: of two threads
    that use one first, the second would find it empty (https://github.com/python/cpython/issues/114763)."""
    modules = [each for each in globals().values() if isinstance(each, ModuleType)]
    if lazy := [each for each in modules if type(each) is not ModuleType]:
        for module in lazy:
            vars(module)
        load_all()  # they import others
