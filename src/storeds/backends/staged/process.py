"""The process that copies a store: it reads what to do from its input, and writes its error to its output."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from storeds.backends.opening import open_backend, open_writer
from storeds.backends.staged.cache import StageCache
from storeds.backends.staged.opening import copy_of
from storeds.errors import StoredsError

__all__: list[str] = []


def _main() -> None:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        cache = StageCache(Path(request["path"]), request["limit"])
        copy = copy_of(request["url"], cache, {}, open_backend, open_writer)
        for each in request["lock"]:  # the copy takes the lock itself
            os.close(each)
        if request["renew"] is None:
            copy.fill()
        else:
            copy.renew(request["renew"])
    except StoredsError as error:
        sys.stdout.write(json.dumps({"error": type(error).__name__, "message": str(error)}))
        sys.stdout.flush()
        os._exit(1)


def _end_with_input() -> None:
    """End this process once nobody waits for it: the process that began it is gone, with all that were forked from it."""
    sys.stdin.read()
    os._exit(2)


if __name__ == "__main__":
    _main()
