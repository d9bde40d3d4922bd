"""What the shell offers for a word that is not written out: URLs of stores, files, names of plug-ins."""

from __future__ import annotations

import glob
import os

from storeds import registry

__all__ = ["complete_decoder", "complete_layout", "complete_reader", "complete_url"]


def complete_url(incomplete: str) -> list[str]:
    """Return the schemes, and the files and folders behind a scheme or without one, that begin so."""
    scheme, mark, path = incomplete.partition("//")
    # bash breaks words at ":", and asks for what follows it alone.
    if mark and (not scheme or scheme.endswith(":")):
        return [f"{scheme}//{name}" for name in _paths(path)] if not _is_server(scheme) else []
    names = [f"{name}://" for name in sorted(registry.BACKENDS.names()) if name.startswith(incomplete)]
    return names + _paths(incomplete)


def complete_layout(incomplete: str) -> list[str]:
    """Return the names of layouts that begin so."""
    return _begin(registry.LAYOUTS, incomplete)


def complete_reader(incomplete: str) -> list[str]:
    """Return the names of readers that begin so."""
    return _begin(registry.READERS, incomplete)


def complete_decoder(incomplete: str) -> list[str]:
    """Return the names of decoders that begin so."""
    return _begin(registry.DECODERS, incomplete)


def _begin(known: registry.Registry, incomplete: str) -> list[str]:
    return [name for name in sorted(known.names()) if name.startswith(incomplete)]


def _is_server(scheme: str) -> bool:
    return scheme.startswith(("mongodb", "memory"))


def _paths(beginning: str) -> list[str]:
    found = glob.glob(f"{glob.escape(beginning)}*")
    return sorted(f"{path}/" if os.path.isdir(path) else path for path in found)
