"""YOLO: pictures, a text file for each with one object a line, and a ``data.yaml``."""

from storeds.formats.format import Format
from storeds.formats.yolo.read import yolo
from storeds.formats.yolo.write import YoloExporter

__all__ = ["YOLO"]

YOLO = Format(
    about="YOLO: pictures, a text file for each with one object a line, and data.yaml", read=yolo, write=YoloExporter
)
