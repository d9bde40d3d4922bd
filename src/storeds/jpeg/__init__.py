"""What is wrong with a picture, judged by its bytes alone, and the repair of damaged JPEGs.

Start with ``examine.py``: it combines the structure (``triage.py``, ``markers.py``) with one strict decode, and follows
the Huffman codes (``entropy.py``) of damaged files. ``intervals.py`` places what lies between restart markers, and
``rebuild.py`` writes it there. ``formats.py`` judges other formats: PNG, WebP, GIF, TIFF and so on.
"""

from storeds.jpeg.cuts import JpegCutter, JpegPart, is_ready
from storeds.jpeg.examine import examine, inspect_jpeg, repair
from storeds.jpeg.formats import PictureHeader, check_other, read_picture_header, sniff
from storeds.jpeg.intervals import place_parts
from storeds.jpeg.markers import MAX_PIXELS, Frame, read_header, surely_opens
from storeds.jpeg.restarts import Marked, RestartMarker, restart_intervals
from storeds.jpeg.triage import Finding, triage
from storeds.records.fields import Verdict

__all__ = [
    "MAX_PIXELS",
    "Finding",
    "Frame",
    "JpegCutter",
    "JpegPart",
    "Marked",
    "PictureHeader",
    "RestartMarker",
    "Verdict",
    "check_other",
    "examine",
    "inspect_jpeg",
    "is_ready",
    "place_parts",
    "read_header",
    "read_picture_header",
    "repair",
    "restart_intervals",
    "sniff",
    "surely_opens",
    "triage",
]
