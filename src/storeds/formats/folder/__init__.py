"""The folders of storeds itself: pictures as files, and all other values in ``metadata.jsonl``."""
