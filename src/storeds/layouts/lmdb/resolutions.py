"""StyleGAN2's LMDB: every image in several sizes, under ``256-00000``, and how many images there are."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from storeds._utils.text import counted
from storeds.errors import ConfigError, FormatError
from storeds.layouts.embedded import is_image
from storeds.layouts.lmdb.base import ForeignLmdb, Survey
from storeds.layouts.lmdb.entries import entries_of
from storeds.layouts.lmdb.environment import ForeignOptions, Look
from storeds.layouts.lmdb.keys import NumberedKeys
from storeds.protocols import Field

__all__ = ["ResolutionsLmdb", "ResolutionsOptions", "resolutions"]

_KEY = re.compile(rb"([1-9][0-9]{0,4})-([0-9]{5,})")
_MOST = 32
_WIDTH = 5


class ResolutionsOptions(ForeignOptions):
    """Options of the ``resolutions`` layout.

    Attributes
    ----------
    resolution : int, optional
        The size that is read; needed where there are several.
    """

    resolution: int | None = None


class ResolutionsLmdb(ForeignLmdb):
    """Images of one size out of several, as rosinality's ``prepare_data.py`` for StyleGAN2 writes them; field ``image``."""

    layout = "resolutions"
    Options: ClassVar[type[ForeignOptions]] = ResolutionsOptions

    @classmethod
    def _looks(cls, look: Look) -> str | None:
        found = resolutions(look)
        return f"images in the resolutions {_listed(found)}" if found else None

    def _survey(self, look: Look) -> Survey:
        found, count = resolutions(look), entries_of(look).count
        if not found or count is None:
            raise FormatError(
                f"{look.url} has no keys such as 256-00000 and an entry 'length', as StyleGAN2's stores have"
            )
        resolution = self._chosen(look, found)
        said = count[1]
        self._check_count(
            look, said * len(found) + len(entries_of(look).keys), f"length says {said} images of each size"
        )
        unread = tuple(
            f"resolution {other}: {counted(said, 'image')}; resolution={other} reads it"
            for other in found
            if other != resolution
        )
        return Survey(NumberedKeys(said, width=_WIDTH), {"image": Field("image")}, how=resolution, unread=unread)

    def _chosen(self, look: Look, found: list[int]) -> int:
        settings = self._opener.settings
        assert isinstance(settings, ResolutionsOptions)
        chosen = found[0] if settings.resolution is None and len(found) == 1 else settings.resolution
        if chosen not in found:
            what = "has no such resolution" if chosen is not None else "holds each image in several resolutions"
            raise ConfigError(f"{look.url} {what}; pass one of them: {', '.join(f'resolution={one}' for one in found)}")
        return chosen

    def _values(self, look: Look, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        return {"image": self._fetch(look, self._full(key))}

    def _key_text(self, key: bytes) -> str:
        return self._full(key).decode()

    def _full(self, key: bytes) -> bytes:
        return b"%d-%b" % (self._survey_found.how, key)


def resolutions(look: Look) -> list[int]:
    """Return the sizes in which a store holds every image, ascending; none if it is no such store."""
    if look.get(b"length") is None or entries_of(look).count is None:
        return []
    found: list[int] = []
    key = look.first_from(b"")
    while key is not None and (match := _KEY.fullmatch(key)) and len(found) < _MOST:
        found.append(int(match[1]))
        key = look.first_from(match[1] + b"-:")  # a colon comes behind the digits
    image = look.get(b"%d-%0*d" % (found[0], _WIDTH, 0)) if found else None
    return sorted(found) if image is not None and is_image(image) else []


def _listed(found: list[int]) -> str:
    return ", ".join(map(str, found))
