"""YOLO: pictures, a text file for each with one object a line, and a ``data.yaml``."""
