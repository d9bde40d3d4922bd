"""Pictures: what is wrong with one, judged by its bytes alone, its repair, and its decoding.

Start with ``verdict.py``: `examine` combines the structure (``header.py``) with one strict decode. ``formats.py`` names and
checks other formats. ``decode.py`` decodes a picture for a sample, with the functions of ``decoders.py``; for a crop,
the small JPEG that ``cuts.py`` makes. ``restarts.py`` puts in the restart markers that this takes.
"""

from storeds.pictures.cuts import JpegCutter, JpegPart, is_ready
from storeds.pictures.formats import PictureHeader, format_of_picture, read_picture_header
from storeds.pictures.header import MAX_PIXELS, read_header
from storeds.pictures.restarts import Marked, RestartMarker, restart_intervals
from storeds.pictures.verdict import Verdict, examine, repair, set_verdict

__all__ = [
    "MAX_PIXELS",
    "JpegCutter",
    "JpegPart",
    "Marked",
    "PictureHeader",
    "RestartMarker",
    "Verdict",
    "examine",
    "format_of_picture",
    "is_ready",
    "read_header",
    "read_picture_header",
    "repair",
    "restart_intervals",
    "set_verdict",
]
