"""What is wrong with a picture, judged by its bytes alone, and the repair of JPEGs that end early.

Start with ``verdict.py``: `examine` combines the structure (``header.py``) with one strict decode. ``formats.py`` names and
checks other formats, ``cuts.py`` makes a small JPEG of the part that a crop needs, and ``restarts.py`` puts in the restart
markers that this takes.
"""

from storeds.jpeg.cuts import JpegCutter, JpegPart, is_ready
from storeds.jpeg.formats import PictureHeader, format_of_picture, read_picture_header
from storeds.jpeg.header import MAX_PIXELS, read_header
from storeds.jpeg.restarts import Marked, RestartMarker, restart_intervals
from storeds.jpeg.verdict import Verdict, examine, repair, set_verdict

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
