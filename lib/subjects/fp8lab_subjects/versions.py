"""Versions of installed packages."""

import importlib.metadata
import importlib.util
import re

CHECKOUT = "checkout"  # version of a package that was not installed


def version_of(package):
    """The installed version of a package; "" if there is none, CHECKOUT for a folder that was not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return CHECKOUT if importlib.util.find_spec(package) else ""


def checked(version, oldest):
    """True if a version is not known to be older than `oldest`, (major, minor)."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= oldest
