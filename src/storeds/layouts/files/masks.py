"""The source for folders of images beside folders of masks: Cityscapes, and ``images`` beside ``masks``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.rows import Bad, BadItem, File, Row, Rows, from_start
from storeds.layouts.files.walk import IMAGE_SUFFIXES, Root, Walk, folders_in, is_hidden, kind_of_files, show
from storeds.pictures import MAX_PIXELS, read_picture_header
from storeds.pictures.decoders import grey_step, orientation_of
from storeds.pictures.formats import decode_reason, open_picture
from storeds.protocols import JSON, Field, Record

__all__ = ["MaskFile", "MaskFolders", "by_stem", "find_mask_folders", "masks", "taken_as_stored"]

_FILES = {"masks": IMAGE_SUFFIXES}
_IMAGE_FOLDERS = ("images", "image", "imgs", "img")
_MASK_FOLDERS = ("masks", "mask", "annotations", "labels")
_CITYSCAPES = ("leftImg8bit", ("gtFine", "gtCoarse"))
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "trainval", "train_extra"}
_UNNAMED = 255  # marks pixels without a class in most data sets with masks of 8 bits


class MaskFolders(NamedTuple):
    """Folders of images, and the folders of their masks.

    Attributes
    ----------
    pairs : tuple of (str, str, str)
        What keys begin with, the folder of the images, and that of the masks, both relative to the root.
    image_suffix, mask_suffix : str
        How the stems of the images and of the masks end. What is before it is equal for an image and its mask.
    """

    pairs: tuple[tuple[str, str, str], ...]
    image_suffix: str = ""
    mask_suffix: str = ""


def find_mask_folders(root: str) -> MaskFolders | None:
    """Return the folders of images and masks in `root`, recognised by their names, or None.

    Raises
    ------
    ConfigError
        Several folders could contain the masks.
    """
    names = folders_in(root)
    images, masks = _CITYSCAPES
    for name in masks:
        if images in names and name in names:
            return MaskFolders((("", images, name),), f"_{images}", f"_{name}_labelIds")
    pair = _pair_in(root)
    if pair is not None:
        return MaskFolders((("", *pair),))
    pairs = []
    for name in names:
        pair = _pair_in(os.path.join(root, name))
        if pair is None:  # the first folder of a class ends the search
            return None
        pairs.append((f"{name}/", f"{name}/{pair[0]}", f"{name}/{pair[1]}"))
    return MaskFolders(tuple(pairs)) if pairs else None


def _pair_in(root: str) -> tuple[str, str] | None:
    """Return the folders of images and masks directly in `root`, or None."""
    by_name = {name.lower(): name for name in folders_in(root)}
    images = next((by_name[name] for name in _IMAGE_FOLDERS if name in by_name), None)
    if images is None:
        return None
    masks = [by_name[name] for name in _MASK_FOLDERS if name in by_name]
    masks = [name for name in masks if kind_of_files(os.path.join(root, name), _FILES)]
    if len(masks) > 1:
        raise ConfigError(
            f"{show(root)} contains images in {', '.join(map(show, masks))}; say which are the masks with kind='masks', "
            f"image_folder= and mask_folder= (--kind masks --option image_folder={show(images)} --option "
            f"mask_folder={show(masks[0])})"
        )
    return (images, masks[0]) if masks and kind_of_files(os.path.join(root, images), _FILES) else None


def by_stem(
    walk: Walk, folder: str, suffixes: tuple[str, ...], problems: list[Bad], ignored: list[str], end: str = ""
) -> dict[str, list[tuple[str, File]]]:
    """Return the files below a folder by their stems below it, without `end`; the others go to the lists."""
    found: dict[str, list[tuple[str, File]]] = {}
    for each in walk.files(folder):
        if isinstance(each, Bad):
            problems.append(each)
            continue
        stem, suffix = os.path.splitext(each[0].removeprefix(f"{folder}/"))
        if suffix.lower() in suffixes and stem.endswith(end):
            found.setdefault(stem.removesuffix(end), []).append(each)
        else:
            ignored.append(each[0])
    return found


def masks(
    path: str | os.PathLike[str],
    *,
    image_folder: str | None = None,
    mask_folder: str | None = None,
    image_suffix: str | None = None,
    mask_suffix: str | None = None,
    classes: Sequence[str] | os.PathLike[str] | None = None,
    ignore_index: int | None = None,
    allow_outside: bool = False,
) -> Rows:
    """Rows of folders of images beside folders of masks, matched by their paths without suffix.

    Parameters
    ----------
    path : path
        The folder that contains both.
    image_folder, mask_folder : str, optional
        The folders of images and masks below `path`. By default those of Cityscapes (``leftImg8bit``, ``gtFine``), or
        ``images`` beside ``masks``, ``annotations`` or ``labels``, in `path` or in each of its sub-folders.
    image_suffix, mask_suffix : str, optional
        What follows the common part of the names, before the file suffix: ``mask_suffix="_mask"`` pairs ``a.jpg`` with
        ``a_mask.png``. Other files are ignored, and a note counts them.
    classes : sequence of str or path, optional
        The class names, or a file of them; the name of id i is item i. By default those in ``classes.txt`` in `path`.
        With names, packing decodes every mask, and reports class ids without one.
    ignore_index : int, optional
        The class id of pixels without a class, which needs no name. It goes to ``attrs["ignore_index"]``. Without it, 255
        needs no name.
    allow_outside
        As for `~storeds.layouts.files.folders.imagefolder`.

    Notes
    -----
    The key is the path of the image below its folder. If these paths begin with folders named ``train``, ``val``,
    ``test`` or similar, these are the field ``split``.

    Raises
    ------
    StoreNotFoundError
        The folder, or one of those given, does not exist.
    ConfigError
        There are no such folders, no image has a mask, or the class names are not valid.
    """
    root = os.fspath(path)
    folders = _choose(root, image_folder, mask_folder)
    image_end = folders.image_suffix if image_suffix is None else image_suffix
    mask_end = folders.mask_suffix if mask_suffix is None else mask_suffix
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, type(None))):
        raise ConfigError(f"ignore_index={ignore_index!r} must be a class id, a whole number")
    listed = os.path.join(root, "classes.txt")
    names = unique_classes(Path(listed) if classes is None and os.path.isfile(listed) else classes)
    walk = Walk(Root(root, allow_outside=allow_outside), ("",))
    for each in ("", *(prefix for prefix, _, _ in folders.pairs)):
        walk.watch(each)
    if os.path.isfile(listed):
        walk.watch("classes.txt")
    pairs, problems, ignored = list[_Pair | Bad](), list[Bad](), list[str]()
    has_pairs = False
    for prefix, image_at, mask_at in folders.pairs:
        images = by_stem(walk, image_at, IMAGE_SUFFIXES, problems, ignored, image_end)
        masks = by_stem(walk, mask_at, IMAGE_SUFFIXES, problems, ignored, mask_end)
        has_pairs = has_pairs or not images.keys().isdisjoint(masks)
        pairs += _paired(images, masks, (prefix, image_at, mask_at), (image_end, mask_end))
    if not has_pairs:
        ends = f"image_suffix={image_end!r} and mask_suffix={mask_end!r}"
        raise ConfigError(
            f"{show(root)}: no image in {show(image_at)} has a mask in {show(mask_at)}; paths without suffix are equal up to "
            f"{ends}: pass what follows the common part of the names (--option mask_suffix=_mask)"
        )
    has_split = {_top(pair.key) for pair in pairs if isinstance(pair, _Pair)} <= _SPLITS
    count = None if names is None else len(names)

    def row(pair: _Pair) -> Row:
        split = {"split": _top(pair.key)} if has_split else {}
        mask = MaskFile(pair.mask, pair.mask_name, count, ignore_index)
        return Row(show(pair.name), {"image": pair.image, "mask": mask, **split, "key": pair.key})

    turned: set[str] = set()

    def finish(values: Record) -> Record:
        if is_mask_unproven(values["image"]):
            turned.add(values["key"])
        return values

    pictures = {"image": Field("image", role="image"), "mask": Field("image", role="mask")}
    attrs: dict[str, JSON] = {} if names is None else {"classes": [*names]}
    left_out = [*_beside(root, folders)]
    if ignored:
        shown = some(map(show, ignored))
        left_out.insert(0, f"ignored {counted(len(ignored), 'file')} without the names of images and masks: {shown}")
    return Rows(
        fields={**pictures, **({"split": Field("str")} if has_split else {}), "key": Field("str")},
        attrs={**attrs, **({} if ignore_index is None else {"ignore_index": ignore_index})},
        items=from_start(lambda: [*(row(each) if isinstance(each, _Pair) else each for each in pairs), *problems]),
        finish=finish,
        late_notes=lambda: [*left_out, *walk.hidden.notes(), *taken_as_stored(turned)],
        notes=class_notes(names or ()),
        watched=lambda: walk.watched,
    )


def taken_as_stored(keys: Collection[str]) -> Iterator[str]:
    """Yield a sentence about pictures that EXIF turns, if nothing tells what their annotations refer to."""
    if keys:
        yield (
            f"{counted(len(keys), 'picture has', 'pictures have')} an EXIF orientation ({some(sorted(keys))}), and nothing tells "
            "whether annotations refer to the picture as displayed: they are taken to refer to the pixels as stored; if boxes "
            "do not fit their objects, store these pictures upright"
        )


def is_mask_unproven(blob: bytes) -> bool:
    """Whether a mask of the size of a picture as stored may be that of the picture as its EXIF orientation displays it."""
    orientation = orientation_of(blob) or 1
    header = read_picture_header(blob) if orientation > 4 else None
    return orientation in (2, 3, 4) or (header is not None and header.width == header.height)


def _beside(root: str, folders: MaskFolders) -> Iterator[str]:
    """Yield a sentence about what lies beside folders of images and masks, and is not read."""
    read = {"classes.txt", *(each.rstrip("/") for pair in folders.pairs for each in pair)}
    read |= {each.split("/")[0] for each in read}
    tops = sorted({"", *(prefix for prefix, _, _ in folders.pairs)})
    found = [
        f"{top}{name}" for top in tops for name in sorted(os.listdir(os.path.join(root, top))) if not is_hidden(name)
    ]
    others = [each for each in found if each not in read]
    if others:
        yield f"left out {counted(len(others), 'name')} beside the folders of images and masks: {some(map(show, others))}"


class _Pair(NamedTuple):
    """An image and its mask, each with its path below the root."""

    name: str
    key: str
    image: File
    mask_name: str
    mask: File


def _paired(
    images: Mapping[str, list[tuple[str, File]]],
    masks: Mapping[str, list[tuple[str, File]]],
    at: tuple[str, str, str],
    ends: tuple[str, str],
) -> Iterator[_Pair | Bad]:
    """Yield the pairs of images and masks with the same stem, and what is wrong with the others.

    Parameters
    ----------
    images, masks
        Stem → the files.
    at, ends
        An item of `MaskFolders.pairs`, and what follows the stems of images and masks.
    """
    prefix, image_at, mask_at = at
    for stem, found in images.items():
        (name, image), partners = found[0], masks.get(stem, [])
        if len(found) > 1 or len(partners) > 1:
            several = some(show(each) for each, _ in (found if len(found) > 1 else partners))
            what = "images" if len(found) > 1 else "masks"
            yield Bad(show(name), f"there are several {what} of this name: {several}; remove all but one")
        elif not partners:
            wanted = f"{mask_at}/{stem}{ends[1]}.png"
            yield Bad(show(name), f"has no mask: expected {show(wanted)}, or with another suffix")
        else:
            yield _Pair(name, f"{prefix}{name[len(image_at) + 1 :]}", image, *partners[0])
    for stem, partners in masks.items():
        if stem not in images:
            wanted = f"{image_at}/{stem}{ends[0]}.jpg"
            reason = f"is a mask without an image: expected {show(wanted)}, or with another suffix"
            yield from (Bad(show(mask), reason) for mask, _ in partners)


def _top(key: str) -> str:
    """Return the first folder of a key, empty without folders."""
    top, is_inside, _ = key.partition("/")
    return top if is_inside else ""


def _choose(root: str, images: str | None, masks: str | None) -> MaskFolders:
    """Return the folders that are given, or those found."""
    folders_in(root)  # raises an error for something else
    if images is None or masks is None:
        found = find_mask_folders(root) if images is masks else None
        if found is not None:
            return found
        if images is not masks:
            raise ConfigError(
                f"{show(root)}: image_folder and mask_folder go together; name both with image_folder= and mask_folder= "
                "(--option image_folder=… --option mask_folder=…), or neither"
            )
        raise ConfigError(
            f"{show(root)} contains no folder of images ({', '.join(_IMAGE_FOLDERS)}) beside one of masks "
            f"({', '.join(_MASK_FOLDERS)}); name both with image_folder= and mask_folder= (--option image_folder=… --option "
            "mask_folder=…)"
        )
    names = [os.path.normpath(name).replace(os.sep, "/") for name in (images, masks)]
    for name in names:
        if os.path.isabs(name) or name.split("/", 1)[0] in ("..", "."):
            raise ConfigError(
                f"the folder {name!r} must be below the source; pass the folder that contains both as source"
            )
        if not os.path.isdir(os.path.join(root, name)):
            raise StoreNotFoundError(f"{show(root)} contains no folder {show(name)}")
    return MaskFolders((("", *names),))  # type: ignore[arg-type]  # there are two


class MaskFile(File):
    """The bytes of a mask, and what the writer does not check: its class ids.

    Parameters
    ----------
    file : File
    name : str
        Its path below the root, for messages.
    classes : int, optional
        How many classes have a name. None: the mask is not decoded.
    ignore_index : int, optional
        The class id that needs no name; None for 255.
    """

    __slots__ = ("_classes", "_free")

    def __init__(self, file: File, name: str, classes: int | None = None, ignore_index: int | None = None) -> None:
        super().__init__(file.path, what=f"its mask {show(name)}")
        self._classes = classes
        self._free = _UNNAMED if ignore_index is None else ignore_index

    def read(self) -> bytes:
        # docstring inherited
        mask = super().read()
        if self._classes is None:
            return mask
        try:
            found = _ids(mask)
        except Exception as error:  # decoders raise any exception on damaged bytes
            raise BadItem(f"{self.what} cannot be read: {decode_reason(error)}") from None
        unnamed = [number for number in found if not 0 <= number < self._classes and number != self._free]
        if unnamed:
            raise BadItem(
                f"{self.what} contains class ids without a name: {some(map(str, unnamed), 8)}; there are "
                f"{counted(self._classes, 'class', 'classes')}, and {self._free} marks pixels without a class; correct classes= "
                "(--classes), ignore_index= (--option ignore_index=…) or the mask"
            )
        return mask


def _ids(mask: bytes) -> list[int]:
    """Return the class ids in a mask."""
    with open_picture(mask, MAX_PIXELS) as opened:
        pixels = np.asarray(opened)
        if pixels.ndim != 2:  # the writer refuses it
            return []
        if pixels.dtype.kind == "u" and pixels.itemsize <= 2:  # much faster than sorting
            step = grey_step(opened.mode, mask)
            return [int(number) // step for number in np.flatnonzero(np.bincount(pixels.ravel()))]
    return [int(number) for number in np.unique(pixels)]
