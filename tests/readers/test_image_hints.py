"""What the error for a store without images proposes."""

from __future__ import annotations

import re

import pytest

import storeds
from storeds.errors import ConfigError

MP4 = b"\0\0\0\x18ftypisom" + bytes(20)


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"id": b"n7", "clip": MP4}, "reader='video' and reader_options={'by': 'clip'} reads videos in 'clip'"),
        ({"video": MP4}, "reader='video' reads videos in 'video'"),
        ({"id": b"n7"}, ""),
        ({"id": b""}, ""),
    ],
)
def test_the_video_reader_is_proposed_for_videos_alone(values: dict[str, bytes], hint: str) -> None:
    with storeds.open_writer("memory://hints", dict.fromkeys(values, "bytes"), overwrite=True) as writer:
        writer.append([values])
        writer.publish()
    end = re.escape(f", and {hint}" if hint else "reader 'array' reads any field") + "$"
    with pytest.raises(ConfigError, match=end):
        storeds.StoreDataset("memory://hints")
