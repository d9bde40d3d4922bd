"""Reads one image, with its label and whatever else is asked for, from one record."""

from __future__ import annotations

from dataclasses import dataclass

from storeds.readers._pictures import PictureReader

__all__ = ["ImageReader"]


@dataclass(frozen=True)
class ImageReader(PictureReader):
    """One record → ``{"image": …, "label": …}``.

    Parameters
    ----------
    fields : sequence of str, optional
        By default the image and, where there is one, the label: the field ``label``, or the one int whose name ends in
        label, labels, target or targets.
    decode : str or Decoder
        ``"bytes"`` (untouched, not even looked at), ``"pil"``, ``"tensor"`` (uint8, channels x height x width),
        ``"fast"`` (nearly the same, sooner) or a registered name.
    mode : str
        The Pillow mode that images are converted to, or ``"unchanged"``; `storeds.decode.decode_pil` has the rule.
    repair : bool
        Whether a damaged JPEG is mended before it is decoded; the store is never changed. If not, it is an error. A
        picture is damaged if the verdict in its store says so or, without one, if its decoder warns of it.
    min_recovered : float
        A mended picture of which a smaller share is there, 0 to 1, is an error all the same.
    orient : bool
        Whether images are turned as their EXIF orientation says.
    max_pixels : int
        An image that claims more pixels is an error, before anything is allocated for it.
    strided : bool
        Leave a tensor's pixels in memory as the decoder does, channels last, which saves a copy. Shape and values are the
        same. A dataset whose transforms are storeds' own does so by itself, and gives them in order again behind them.
    """
