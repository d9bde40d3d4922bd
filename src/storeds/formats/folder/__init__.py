"""The folders of storeds itself: pictures as files, and all other values in ``metadata.jsonl``."""

from storeds.formats.folder.read import exported
from storeds.formats.folder.write import FolderExporter
from storeds.formats.format import Format

__all__ = ["FOLDER"]

FOLDER = Format(
    about="an export of storeds: pictures in folders, all else in metadata.jsonl; pack of it gives an equal store",
    read=exported,
    write=FolderExporter,
)
