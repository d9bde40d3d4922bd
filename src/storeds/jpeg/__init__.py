"""What is wrong with a JPEG, by its bytes alone, and the least change that lets a decoder finish.

``structure`` walks the markers, ``coverage`` says what the scans carry, ``entropy`` (with ``huffman`` and ``progressive``)
follows their codes where something is wrong, ``codes`` names it, and ``triage`` decides by the structure. ``strict`` decodes
once for the warnings, ``examine`` decides by both, and ``repair`` repairs. ``other`` judges other formats, with ``png``,
``tiff`` and ``containers``.
"""

from storeds.jpeg.examine import examine
from storeds.jpeg.finding import Finding, Frame
from storeds.jpeg.repair import repair
from storeds.jpeg.triage import triage
from storeds.records.fields import Verdict

__all__ = ["Finding", "Frame", "Verdict", "examine", "repair", "triage"]
