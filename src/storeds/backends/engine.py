"""Names what opens and writes the stores of one scheme, for registries and plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storeds._utils.urls import StoreURL
from storeds.backends.raw import Opener
from storeds.backends.store import Store

if TYPE_CHECKING:
    from storeds.backends.versions.place import VersionPlace
    from storeds.backends.writer import Sink

__all__ = ["Engine"]


@dataclass(frozen=True)
class Engine:
    """Opens the stores of one scheme: a call with a URL and options returns a `Store`.

    Parameters
    ----------
    opener : callable
        ``opener(url, **options)`` returns the `Opener` of a native store. The URL is parsed.
    sink : callable or None
        ``sink(url, **options)`` returns the `storeds.backends.writer.Sink` of one; None if the engine only reads.
    holds_foreign : callable or None
        ``holds_foreign(url, options)`` returns whether a store of another tool is there; raises UnavailableError, and FormatError
        for a damaged one. None if there are only native ones.
    presets : mapping
        Of stores of another tool: the names of layouts, of which `opener` takes one as ``layout=``.
    guess_can_open : callable or None
        Of a layout of a plug-in: ``guess_can_open(url, **options)`` returns why a store is certainly of this layout, or None.
    is_folder_of_files : callable or None
        ``is_folder_of_files(url, columns)`` returns whether the option ``columns`` makes one store of files in a folder.
    versions : callable or None
        ``versions(url, options)`` returns where a versioned store is, or None if the URL names one store. Engines of files, whose
        versioned stores are folders, need none.
    """

    opener: Callable[..., Opener[Any]]
    sink: Callable[..., Sink] | None = None
    holds_foreign: Callable[[StoreURL, Mapping[str, Any]], bool] | None = None
    presets: Mapping[str, Any] = field(default_factory=dict)
    guess_can_open: Callable[..., str | None] | None = None
    is_folder_of_files: Callable[[StoreURL, Any], bool] | None = None
    versions: Callable[[StoreURL, Mapping[str, Any]], VersionPlace | None] | None = None

    def __call__(self, url: str | StoreURL, **options: Any) -> Store:
        """Open the store at `url`."""
        return Store(self.opener(StoreURL.parse(url), **options))
