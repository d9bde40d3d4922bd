"""The names of `storeds.pictures` that judge and repair a JPEG, under the name that programs know."""

from storeds.pictures import (
    MAX_PIXELS,
    JpegCutter,
    JpegPart,
    Marked,
    PictureHeader,
    RestartMarker,
    Verdict,
    examine,
    format_of_picture,
    is_ready,
    read_header,
    read_picture_header,
    repair,
    restart_intervals,
    set_verdict,
)

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
