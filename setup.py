# Lists the packages: the `packages.find` of pyproject.toml cannot add one that lies in a mapped folder.
from setuptools import find_packages, setup

packages = [*find_packages(include=["runner*"]), "runner.migrations", "runner.migrations.versions"]
setup(packages=packages, package_dir={"runner.migrations": "migrations"})
