"""The source for folders of images beside folders of masks: Cityscapes, ADE20K, and ``images`` beside ``masks``."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    BadItem,
    Fingerprint,
    Problem,
    Root,
    StringArray,
    class_notes,
    is_hidden,
    read_file,
    show,
)
from storeds.ops.packing.sources.class_names import find_class_file
from storeds.ops.packing.sources.columns import check_classes
from storeds.ops.packing.sources.mask_checks import JPEG_SUFFIXES, MaskCheck, lossy_notes
from storeds.ops.packing.sources.old_folders import FoundFile, Walk, folders_in
from storeds.protocols import JSON, Field, Record

__all__ = ["MaskFolderSource", "MaskFolders", "find_mask_folders"]

_IMAGE_FOLDERS = ("images", "image", "imgs", "img")
_MASK_FOLDERS = ("masks", "mask", "annotations", "labels")
_CITYSCAPES = ("leftImg8bit", ("gtFine", "gtCoarse"))
_ADE20K = ("training", "validation")
_SPLITS = frozenset(
    ("train", "training", "val", "valid", "validation", "test", "testing", "dev", "trainval", "train_extra")
)


@dataclass(frozen=True)
class MaskFolders:
    """Folders of images, and the folders of their masks.

    Parameters
    ----------
    pairs : tuple of (str, str, str)
        What keys begin with, the folder of the images, and that of the masks, both relative to the root.
    known_as : str
        The data set whose folders have these names; empty for others.
    image_suffix, mask_suffix : str
        How the stems of the images and of the masks end. What is before it is equal for an image and its mask.
    """

    pairs: tuple[tuple[str, str, str], ...]
    known_as: str = ""
    image_suffix: str = ""
    mask_suffix: str = ""


def find_mask_folders(root: str) -> MaskFolders | None:
    """Return the folders of images and masks in `root`, recognised by their names, or None.

    Raises
    ------
    ConfigError
        Several folders could contain the masks.
    """
    names = [name for name in folders_in(root) if not is_hidden(name)]
    images, masks = _CITYSCAPES
    for name in masks:
        if images in names and name in names:
            return MaskFolders((("", images, name),), "Cityscapes", f"_{images}", f"_{name}_labelIds")
    pair = _pair_in(root, names)
    if pair is not None:
        inside = folders_in(os.path.join(root, pair[1]))
        is_ade = pair == ("images", "annotations") and all(name in inside for name in _ADE20K)
        return MaskFolders((("", *pair),), "ADE20K" if is_ade else "")
    pairs = []
    for name in sorted(names):
        pair = _pair_in(os.path.join(root, name))
        if pair is None:  # the first folder of a class ends the search
            return None
        pairs.append((f"{name}/", f"{name}/{pair[0]}", f"{name}/{pair[1]}"))
    return MaskFolders(tuple(pairs)) if pairs else None


def _pair_in(root: str, names: Sequence[str] | None = None) -> tuple[str, str] | None:
    """Return the folders of images and masks directly in `root`, or None."""
    by_name = {name.lower(): name for name in (folders_in(root) if names is None else names)}
    images = next((by_name[name] for name in _IMAGE_FOLDERS if name in by_name), None)
    if images is None:
        return None
    masks = [by_name[name] for name in _MASK_FOLDERS if name in by_name]
    masks = [name for name in masks if _contains_images(os.path.join(root, name))]
    if len(masks) > 1:
        raise ConfigError(
            f"{show(root)} contains images in {', '.join(map(show, masks))}; say which are the masks with mask_folder= "
            f"(--kind masks --mask-folder {show(masks[0])})"
        )
    return (images, masks[0]) if masks and _contains_images(os.path.join(root, images)) else None


def _contains_images(folder: str) -> bool:
    """Whether the first folder with files, from `folder` down, contains an image."""
    for _, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if not is_hidden(name))
        files = [name for name in names if not is_hidden(name)]
        if files:
            return any(name.lower().endswith(IMAGE_SUFFIXES) for name in files)
    return False


class MaskFolderSource:
    """Folders of images beside folders of masks, matched by their paths without suffix.

    Parameters
    ----------
    root : path
        The folder that contains both.
    image_folder, mask_folder : str, optional
        The folders of images and masks below `root`. By default those of Cityscapes (``leftImg8bit``, ``gtFine``), of
        ADE20K, or ``images`` beside ``masks``, ``annotations`` or ``labels``, in `root` or in each of its sub-folders.
    image_suffix, mask_suffix : str, optional
        What follows the common part of the names, before the file suffix: ``mask_suffix="_mask"`` pairs ``a.jpg`` with
        ``a_mask.png``. Other files are ignored, and a note counts them.
    classes : sequence of str or path, optional
        The class names; the name of id i is item i. By default those in a file ``classes.txt``, ``class_names.txt``,
        ``objectInfo150.txt``, ``classes.json`` or ``id2label.json`` in `root`. With names, packing decodes every mask, and
        reports class ids without one.
    ignore_index : int, optional
        The class id of pixels without a class, which needs no name. It goes to ``attrs["ignore_index"]``. Without it, 255
        needs no name.
    allow_outside : bool
        Follow links that lead out of `root`.
    include_hidden : bool
        Include hidden files and folders.

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

    thread_safe = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        image_folder: str | None = None,
        mask_folder: str | None = None,
        image_suffix: str | None = None,
        mask_suffix: str | None = None,
        classes: Sequence[str] | os.PathLike[str] | None = None,
        ignore_index: int | None = None,
        allow_outside: bool = False,
        include_hidden: bool = False,
    ) -> None:
        where = os.fspath(root)
        self._root = os.path.abspath(where)
        folders = _folders(where, image_folder, mask_folder)
        suffixes = (
            folders.image_suffix if image_suffix is None else image_suffix,
            folders.mask_suffix if mask_suffix is None else mask_suffix,
        )
        if isinstance(ignore_index, bool) or not isinstance(ignore_index, (int, type(None))):
            raise ConfigError(f"ignore_index={ignore_index!r} must be a class id, a whole number")
        names = check_classes(find_class_file(where) if classes is None else classes)
        self._check = MaskCheck(None if names is None else len(names), ignore_index)
        walk = Walk(Root(where, allow_outside=allow_outside), ("",), include_hidden=include_hidden)
        found = _Pairs(walk, suffixes)
        for pair in folders.pairs:
            found.add(*pair)
        nothing = None if found.keys else found.nothing(folders.pairs[0])
        if nothing is not None:
            raise ConfigError(f"{show(where)}: {nothing}")
        self._keys, self._images, self._masks = found.keys, found.images, found.masks
        self._sizes = found.sizes
        tops = {key.partition("/")[0] if "/" in key else "" for key in self._keys}
        self._has_split = tops <= _SPLITS
        split = {"split": Field("str")} if self._has_split else {}
        pictures = {"image": Field("image", role="image"), "mask": Field("image", role="mask")}
        self.fields: Mapping[str, Field] = {**pictures, **split, "key": Field("str")}
        named: dict[str, JSON] = {} if names is None else {"classes": list(names)}
        self.attrs: Mapping[str, JSON] = {**named, **({} if ignore_index is None else {"ignore_index": ignore_index})}
        self.problems: Sequence[Problem] = tuple(walk.problems)
        self.notes: tuple[str, ...] = (*class_notes(names or ()), *found.notes(), *walk.hidden.notes())
        found.fingerprint.add(f"{self.attrs}")
        self.fingerprint: JSON = found.fingerprint.finish("masks", len(self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return show(self._images[index])

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

    def strata(self) -> Iterator[tuple[str, None]]:
        """Yield the key of each item, and no label."""
        return ((key, None) for key in self._keys)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key, image, mask = self._keys[index], self._images[index], self._masks[index]
        record: Record = {"image": read_file(os.path.join(self._root, image))}
        try:
            record["mask"] = read_file(os.path.join(self._root, mask))
        except BadItem as error:
            raise BadItem(f"its mask {show(mask)} {error}") from None
        fault = self._check.fault(record["image"], record["mask"], mask)
        if fault is not None:
            raise BadItem(fault)
        if self._has_split:
            record["split"] = key.partition("/")[0]
        return {**record, "key": key}


def _folders(root: str, images: str | None, masks: str | None) -> MaskFolders:
    """Return the folders that are given, or those found."""
    folders_in(root)  # raises an error for something else
    if images is not None and masks is not None:
        chosen = MaskFolders((("", _below(images), _below(masks)),))
    elif images is not None or masks is not None:
        chosen = _complete(root, images, masks)
    else:
        found = find_mask_folders(root)
        if found is None:
            raise ConfigError(
                f"{show(root)} contains no folder of images ({', '.join(_IMAGE_FOLDERS)}) beside one of masks "
                f"({', '.join(_MASK_FOLDERS)}); name them with image_folder= and mask_folder= (--image-folder, --mask-folder)"
            )
        return found
    for _, *each in chosen.pairs:
        for name in each:
            if not os.path.isdir(os.path.join(root, name)):
                raise StoreNotFoundError(f"{show(root)} contains no folder {show(name)}")
    return chosen


def _below(name: str) -> str:
    """Return the name of a folder below the root in the form of keys."""
    name = os.path.normpath(name).replace(os.sep, "/")
    if os.path.isabs(name) or name.split("/", 1)[0] in ("..", "."):
        raise ConfigError(f"the folder {name!r} must be below the source; pass the folder that contains both as source")
    return name


def _complete(root: str, images: str | None, masks: str | None) -> MaskFolders:
    """Return the pair of folders of which one is given."""
    by_name = {name.lower(): name for name in folders_in(root)}
    what, usual = ("image", _IMAGE_FOLDERS) if images is None else ("mask", _MASK_FOLDERS)
    given = _below(images or masks or "")
    other = next((by_name[name] for name in usual if name in by_name and by_name[name] != given), None)
    if other is None:
        raise ConfigError(
            f"{show(root)} contains none of {', '.join(usual)} beside {show(given)}; name the other folder with "
            f"{what}_folder= (--{what}-folder)"
        )
    return MaskFolders((("", other, given) if images is None else ("", given, other),))


class _Pairs:
    """Collects the pairs of several folders, and reports what has no partner.

    Parameters
    ----------
    walk : Walk
        Finds the files, and collects the problems.
    suffixes : (str, str)
        How the stems of images and masks end.
    """

    def __init__(self, walk: Walk, suffixes: tuple[str, str]) -> None:
        self._walk, self._suffixes = walk, suffixes
        self.keys, self.images, self.masks, self.sizes = StringArray(), StringArray(), StringArray(), array("q")
        self.fingerprint = Fingerprint()
        self._ignored: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._lossy: list[str] = []

    def add(self, prefix: str, image_folder: str, mask_folder: str) -> None:
        """Add the pairs of one folder of images and one of masks; keys begin with `prefix`."""
        images = self._files(image_folder, self._suffixes[0])
        masks = self._files(mask_folder, self._suffixes[1])
        for stem, found in images.items():
            partners = masks.pop(stem, [])
            if self._is_single(found, "image") & self._is_single(partners, "mask"):
                if partners:
                    self._append(prefix, image_folder, found[0], partners[0])
                else:
                    wanted = f"{mask_folder}/{stem}{self._suffixes[1]}.png"
                    self._report(found[0][0], f"has no mask: expected {show(wanted)}, or with another suffix")
        for stem, found in masks.items():
            if self._is_single(found, "mask"):
                wanted = f"{image_folder}/{stem}{self._suffixes[0]}.jpg"
                self._report(
                    found[0][0], f"is a mask without an image: expected {show(wanted)}, or with another suffix"
                )

    def _files(self, folder: str, suffix: str) -> dict[str, list[FoundFile]]:
        """Return the images below a folder by their stems below it, without `suffix`."""
        found: dict[str, list[FoundFile]] = {}
        for file in self._walk.files(folder):
            stem, extension = os.path.splitext(file[0][len(folder) + 1 :])
            if extension.lower() in IMAGE_SUFFIXES and stem.endswith(suffix):
                found.setdefault(stem.removesuffix(suffix), []).append(file)
            else:
                self._ignore(file[0], extension)
        return found

    def _ignore(self, path: str, extension: str) -> None:
        # x_gtFine_color.png counts as _color.png: one kind of file of many names.
        _, mark, last = os.path.splitext(os.path.basename(path))[0].rpartition("_")
        sort = f"*{mark + last if last.isalpha() else ''}{extension}"
        self._ignored[sort] += 1
        self._examples.setdefault(sort, path)

    def _is_single(self, files: Sequence[FoundFile], what: str) -> bool:
        """Return whether there is at most one file; report all if there are more, because nothing says which is meant."""
        if len(files) < 2:
            return True
        for number, (path, *_) in enumerate(files):
            others = some(show(file[0]) for at, file in enumerate(files) if at != number)
            self._report(path, f"is one of several {what}s of the same name: {others}; remove all but one")
        return False

    def _append(self, prefix: str, folder: str, image: FoundFile, mask: FoundFile) -> None:
        key = f"{prefix}{image[0][len(folder) + 1 :]}"
        self.keys.append(key)
        self.images.append(image[0])
        self.masks.append(mask[0])
        self.sizes.append(image[1] + mask[1])
        self.fingerprint.add(image[0], *image[1:])
        self.fingerprint.add(mask[0], *mask[1:])
        if mask[0].lower().endswith(JPEG_SUFFIXES):
            self._lossy.append(mask[0])

    def _report(self, path: str, reason: str) -> None:
        self._walk.problems.append(Problem(show(path), reason))

    def nothing(self, pair: tuple[str, str, str]) -> str | None:
        """Return why no name of an image belongs to one of a mask, and what to do; None if one does."""
        _, image_folder, mask_folder = pair
        images = list(self._files(image_folder, self._suffixes[0]))
        masks = list(self._files(mask_folder, self._suffixes[1]))
        if not images or not masks:
            empty, suffix = (mask_folder, self._suffixes[1]) if images else (image_folder, self._suffixes[0])
            ending = f" whose names end with {suffix}" if suffix else ""
            return f"{show(empty)} contains no images{ending} ({' '.join(IMAGE_SUFFIXES)})"
        if not set(images).isdisjoint(masks):
            return None  # they are doubled
        longer = next((stem for stem in masks if stem.startswith(images[0]) and stem != images[0]), None)
        advice = (
            f"pass mask_suffix={longer.removeprefix(images[0])!r} (--mask-suffix {longer.removeprefix(images[0])})"
            if longer is not None
            else "their paths without suffix must be equal, except for image_suffix= and mask_suffix= (--image-suffix, "
            "--mask-suffix)"
        )
        return (
            f"no image in {show(image_folder)} has a mask in {show(mask_folder)}: {show(images[0])!r} and {show(masks[0])!r} "
            f"do not match; {advice}"
        )

    def notes(self) -> Iterator[str]:
        """Yield a sentence on files that are ignored, and one on masks that are JPEGs."""
        if self._ignored:
            count = sum(self._ignored.values())
            listed = some(
                f"{number:,} {sort}, such as {show(self._examples[sort])}"
                for sort, number in self._ignored.most_common()
            )
            yield f"ignored {counted(count, 'file')} that {'is' if count == 1 else 'are'} no image or mask: {listed}"
        yield from lossy_notes(self._lossy)
