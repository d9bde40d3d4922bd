"""A source for COCO: pictures, and one JSON file with the boxes, masks, keypoints or captions of all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import xxhash

from storeds.errors import ConfigError
from storeds.jpeg import read_picture_header
from storeds.ops.coco_records import REST, CocoLayout, to_record
from storeds.ops.packing.sources.base import BadItem, Fingerprint, Problem, Root, class_notes, read_file, show
from storeds.ops.packing.sources.coco_annotations import CocoAnnotations, CocoCategories
from storeds.ops.packing.sources.coco_images import find_images, image_name, listed_size
from storeds.ops.packing.sources.coco_json import parse_coco, parse_item, read_coco
from storeds.protocols import JSON, Field, Record
from storeds.records.fields import canonical_json
from storeds.records.roles import check_values

__all__ = ["CocoSource"]


class CocoSource:
    """A file of COCO annotations, and the folder of its pictures.

    Parameters
    ----------
    path : path
        The JSON file of detection, segmentation, keypoints or captions.
    root : path, optional
        The folder that the paths in ``file_name`` are relative to. The default is the first of these with pictures of the
        file: its own folder, ``images`` in it, for ``annotations/instances_val2017.json``, ``val2017`` beside it, and the
        folder above.
    allow_outside : bool
        Allow paths that leave `root`: through ``..``, as absolute paths, or through a link.

    Notes
    -----
    A record is an image. An image without annotations is a record with 0 boxes. A bad annotation is a problem of its own:
    with ``on_bad="skip"`` its image is packed without it. Annotations keep their order within an image. An image without
    ``file_name``, as in LVIS, is named by its ``coco_url``: ``train2017/1.jpg``, or ``1.jpg`` if no such file exists.

    Raises
    ------
    StoreNotFoundError
        The file or `root` does not exist, or no picture is found.
    ConfigError
        It is not a file of COCO, or two categories have one id.
    """

    thread_safe = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        allow_outside: bool = False,
    ) -> None:
        file = os.fspath(path)
        where = show(os.path.basename(file))
        data = read_coco(file)
        document = parse_coco(data, where)
        images, annotations = document.pop("images"), document.pop("annotations", [])
        categories = CocoCategories(document.get("categories", []), where)
        listing, folder = find_images(images, file, root, where)
        listing.find(Root(folder, allow_outside=allow_outside))
        found = CocoAnnotations(listing, categories, where)
        for number, raw in enumerate(annotations):
            found.add(number, raw)
        self._root, self._where = folder, where
        self._images, self._sizes = listing.good, listing.sizes
        self._rows = [found.of_image.get(image["id"], []) for image in self._images]
        self._layout = CocoLayout(found.keys(), categories.index, found.points, listing.id_kind)
        self.fields: Mapping[str, Field] = self._layout.fields
        self.attrs: Mapping[str, JSON] = {
            **categories.attrs(),
            REST: document,
            "source": {"kind": "coco", "file": where},
        }
        try:
            canonical_json(dict(self.attrs))
        except ValueError as error:
            raise ConfigError(
                f"{where}: its categories, or keys such as info, cannot be stored: {error}; correct or remove them"
            ) from None
        self.problems: Sequence[Problem] = (*listing.problems, *found.problems)
        self.notes: tuple[str, ...] = (*class_notes(categories.names), *listing.notes(folder))
        if not self._images and not self.problems:
            raise ConfigError(f"{where} lists no image")
        fingerprint = Fingerprint()
        for image, state in zip(self._images, listing.states, strict=True):
            fingerprint.add(image["file_name"], *state)
        fingerprint.add(xxhash.xxh3_128_hexdigest(data))
        self.fingerprint: JSON = fingerprint.finish("coco", len(self._images))

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return image_name(self._where, self._images[index])

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index] + sum(map(len, self._rows[index]))

    def read(self, index: int, /) -> Record:
        # docstring inherited
        image = self._images[index]
        blob = read_file(os.path.join(self._root, image["file_name"]))
        header = read_picture_header(blob)
        size = None if header is None else (header.height, header.width)
        listed = listed_size(image)
        if size is not None and listed is not None and size != listed:
            raise BadItem(_other_size(size, listed, self._where))
        record = {"image": blob, **to_record(image, [parse_item(raw) for raw in self._rows[index]], self._layout)}
        try:
            if listed is None:  # the annotations were not compared with a size yet
                check_values(record, self.fields, size)
            canonical_json(record[REST])
        except ValueError as error:
            raise BadItem(f"its annotations cannot be stored: {error}") from None
        return record


def _other_size(size: tuple[int, int], listed: tuple[int, int], where: str) -> str:
    turned = size == listed[::-1]
    why = (
        "; if its EXIF orientation turns it, store it upright: its annotations are those of the turned picture"
        if turned
        else ""
    )
    return (
        f"the picture has another size than in {where}: {size[1]} × {size[0]} pixels (width × height), not {listed[1]} × "
        f"{listed[0]}, so its annotations do not fit{why}"
    )
