"""``python -m bench.size``: lines and modules of ``runner/`` and ``migrations/``, by package."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 3  # modules that are named for each package


def main() -> None:
    packages: dict[str, dict[str, int]] = defaultdict(dict)
    for path in sorted(p for top in ("runner", "migrations") for p in (ROOT / top).rglob("*.py")):
        lines = len(path.read_text().splitlines())
        if lines:
            parts = path.relative_to(ROOT).parts
            package = "/".join(parts[: min(2, len(parts) - 1)])
            packages[package]["/".join(parts[len(package.split("/")) :])] = lines
    total = sum(sum(modules.values()) for modules in packages.values())
    count = sum(map(len, packages.values()))
    print(f"{total:7,} lines {count:4} modules")
    for package, modules in sorted(packages.items(), key=lambda item: -sum(item[1].values())):
        largest = sorted(modules.items(), key=lambda item: -item[1])[:LARGEST]
        named = ", ".join(f"{name} {lines}" for name, lines in largest)
        print(f"{sum(modules.values()):7,} lines {len(modules):4} modules  {package}: {named}")


if __name__ == "__main__":
    main()
