"""`array`: reads the values of one record, arrays as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend
from storeds.readers.channels import check_channels
from storeds.readers.choice import Fields, choose, target_of
from storeds.readers.elements import ArrayElement, Element
from storeds.readers.reader import ElementReader
from storeds.readers.rows import OneRow
from storeds.records.shapes import Channels, is_image_like
from storeds.records.verdict_fields import without_verdicts

__all__ = ["array"]


def array(
    fields: Fields = (), *, decode: str | None = None, channels: Channels | Mapping[str, Channels] | None = None
) -> ArraySpec:
    """One record → its values. Arrays become `torch.Tensor` of the same dtype and shape, sharing no memory.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample, as for `image`. Default: all fields of the store.
    decode : str, optional
        ``"tensor"``: the array that is the sample's image, and those that `channels` names, get the shape
        (…, channels, height, width); (height, width) becomes (1, height, width). Default: arrays keep their shape. A
        dataset whose transforms take images does this for the arrays to which they apply.
    channels : str or mapping of str to str, optional
        Position of the channels of the image: ``"last"``, as in (height, width, channels), or ``"first"``. Needed if
        the shape is ambiguous. It is not if exactly one of the last and the third-last dimension is 1, 3 or 4. A
        mapping gives the position for each of several elements.
    """
    if decode not in (None, "tensor"):
        raise ConfigError(
            f"decode={decode!r}: reader 'array' returns arrays as stored, or with decode='tensor' image arrays with their "
            "channels first"
        )
    check_channels(channels)
    return ArraySpec(fields, decode, channels)


@dataclass(frozen=True)
class ArraySpec:
    """The options of `array`."""

    fields: Fields
    decode: str | None
    channels: Channels | Mapping[str, Channels] | None

    def bind(self, view: Backend, /) -> ElementReader:
        """Return the reader of a store; raises ConfigError if it does not fit."""
        declared = dict(view.meta.fields)
        chosen = choose(view, self.fields, lambda: tuple(without_verdicts(declared)), declared)
        names = [each.name for each in chosen if each.path]
        data = _data_of(chosen)
        positions = self._positions(data)
        for name in positions:
            if name not in names:
                raise ConfigError(f"channels names {name!r}; {suggest(name, names, 'elements of a sample')}")
        elements = {each.name: each for each in chosen}
        for each in chosen:
            is_image = self.decode is not None and each.name == data
            if each.name in positions or is_image or each.declared.kind == "array":
                array = each.as_kind(ArrayElement, channels=positions.get(each.name))
                # Without decode, this only checks `channels`.
                as_image = array.as_image() if is_image or each.name in positions else array
                elements[each.name] = array if self.decode is None else as_image
        rows, target = OneRow(len(view)), target_of(chosen, (data,))
        return ElementReader("array", rows, (*elements.values(),), data, target, may_fit=True)

    def _positions(self, data: str | None) -> dict[str, Channels]:
        """Return the positions of channels that the user gives, by element."""
        if self.channels is None:
            return {}
        return dict(self.channels) if isinstance(self.channels, Mapping) else {data or "": self.channels}


def _data_of(chosen: list[Element]) -> str | None:
    """Return the element of the image: of several arrays, the first one in the shape of images."""
    stored = [each for each in chosen if each.path]
    arrays = [each.name for each in stored if each.declared.kind in ("array", "image")]
    images = [each.name for each in stored if each.name in arrays and is_image_like(each.declared)]
    return next(iter((*images, *arrays, *[each.name for each in stored])), None)
