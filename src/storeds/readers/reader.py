"""`ElementReader`: makes the samples of one store. Rows say which records make a sample, elements what it holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from storeds.errors import RecordError
from storeds.pictures.decode import draw_crops
from storeds.pictures.decoders import UNCHANGED
from storeds.protocols import Array, Backend, Cropper, Field, Record, SampleContext
from storeds.readers.elements import ArrayElement, Element, Facts, PictureElement, PixelsElement, TensorElement
from storeds.readers.rows import Read, Rows, read_located
from storeds.records.columns import read_column

if TYPE_CHECKING:
    from storeds.readers.samples import Joint

__all__ = ["ElementReader", "built_in", "read_rows"]


@dataclass(frozen=True)
class ElementReader:
    """Makes the samples of the store to which it is bound. Picklable and thread-safe; keeps nothing between samples.

    Parameters
    ----------
    kind : str
        The name of the function that describes it: ``image``, ``sample``, ``array``, ``video``, ``sequence`` or
        ``patch``.
    rows : Rows
        Which records make a sample.
    elements : tuple of Element
        What a sample holds, in order.
    data, target : str or None
        The elements that ``transform`` and ``target_transform`` apply to.
    joint : Joint, optional
        Makes a ``Sample`` of the elements, for transforms of all of them.
    may_fit : bool
        Whether the transforms of `data`, or those of whole samples, see images only as these elements make them.
    cropper : Cropper, optional
        The crop with which the transforms begin. Only a part of a picture is decoded, where that is enough.
    """

    kind: str
    rows: Rows
    elements: tuple[Element, ...]
    data: str | None
    target: str | None
    joint: Joint | None = None
    may_fit: bool = False
    cropper: Cropper | None = None
    fields: tuple[str, ...] = field(init=False, repr=False)
    """The names of the elements."""
    stored: tuple[str, ...] = field(init=False, repr=False)
    """The fields of the records that `build` needs."""

    def __post_init__(self) -> None:
        needs = [name for element in self.elements for name in element.needs]
        object.__setattr__(self, "fields", tuple(element.name for element in self.elements))
        object.__setattr__(self, "stored", tuple(dict.fromkeys((*needs, *self.rows.needs))))

    def __len__(self) -> int:
        return len(self.rows)

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        """Return the positions of the records of sample `index`."""
        return self.rows.locate(index, context)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> Any:
        """Return the sample of some records: a dict of its elements, or a ``Sample`` if there is a `joint`.

        Raises
        ------
        RecordError
            A value is bad; DecodeError for an image.
        """
        self.rows.check(records, context)
        facts = Facts(context)
        if self.cropper is not None:
            pictures = (element for element in self.elements if isinstance(element, PictureElement))
            facts.looked = {element.name: element.look(records[0]) for element in pictures}
            facts.crops = draw_crops(self.cropper, facts.looked.values(), context)
        if self.joint is not None:
            return self.joint.build(self.elements, records, facts)
        return {element.name: element.value(records, facts) for element in self.elements}

    def declared(self) -> dict[str, Field]:
        """Return element → declaration, for the elements that come from the store."""
        return {element.name: element.declared for element in self.elements if element.path is not None}

    def element(self, name: str) -> Element | None:
        """Return an element by its name."""
        return next((element for element in self.elements if element.name == name), None)

    def column(self, view: Backend, name: str, /) -> Array:
        """Return an element, or another stored field, of all samples; raises as `read_column` does.

        Of several records, that is the value of the first one.
        """
        element = self.element(name)
        return self.rows.pick(read_column(view, name) if element is None else element.column(view))

    def mode_of(self, name: str) -> str:
        """Return the Pillow mode to which an element is decoded; RGB for elements that keep the mode of their file."""
        element = self.element(name)
        if not isinstance(element, (PictureElement, PixelsElement)) or element.decoder.mode == UNCHANGED:
            return "RGB"
        return element.decoder.mode

    # --- For transforms ---

    def fit(self, images: Collection[str], *, strided: bool, cropper: Cropper | None) -> ElementReader:
        """Return a reader that fits the transforms, and skips work which they do not need.

        Parameters
        ----------
        images : collection of str
            The elements whose transforms take images.
        strided : bool
            Whether the transforms of `data` take images with their channels last in memory.
        cropper : Cropper or None
            The crop with which these begin.

        Raises
        ------
        ConfigError
            The array of one of `images` holds no images.
        """
        if not self.may_fit:
            return self
        # The result of a crop is contiguous, whatever comes after it.
        is_strided, fitted = strided or cropper is not None, list[Element]()
        for each in self.elements:
            if isinstance(each, (PictureElement, PixelsElement)):
                fitted.append(replace(each, decoder=replace(each.decoder, strided=is_strided)))
            elif isinstance(each, ArrayElement):
                array = each.as_image() if each.name in images else each
                fitted.append(replace(array, is_view=strided and each.name == self.data and array.axis is not None))
            else:
                fitted.append(each)
        has_arrays = any(isinstance(each, TensorElement) and each.axis is not None for each in fitted)
        return replace(self, elements=tuple(fitted), cropper=None if has_arrays else cropper)

    # --- For columns ---

    @property
    def columns(self) -> dict[str, Field]:
        """The declarations of the elements if each makes one array of a batch by itself, otherwise nothing."""
        if self.kind != "array" or not self.stored or not all(element.declared.is_fixed for element in self.elements):
            return {}
        return {element.name: element.declared for element in self.elements}

    def batches(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return element → batch of shape (n, …), with the channels of images first; `arrays` is by stored field."""
        return {element.name: element.batch(arrays) for element in self.elements if element.path is not None}

    def shape_of(self, name: str) -> tuple[int | None, ...] | None:
        """Return the shape of an array of every sample; None for other elements."""
        element = self.element(name)
        return element.shape if isinstance(element, ArrayElement) else None


def read_rows(
    reader: Any, view: Backend, contexts: Sequence[SampleContext], known: Mapping[int, RecordError]
) -> list[Read]:
    """Return what ``reader.build`` takes for each sample; `known` bad records are not read."""
    if isinstance(reader, ElementReader):
        return reader.rows.read(view, contexts, reader.stored, known)
    return read_located(reader.locate, view, contexts, reader.stored, known)


def built_in(reader: Any) -> ElementReader | None:
    """Return a reader of storeds itself, which knows more than the protocol asks for; None for one of a plug-in."""
    return reader if isinstance(reader, ElementReader) else None
