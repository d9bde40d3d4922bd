"""No message and no `repr` of a config shows a password, wherever it stands and however its URL is misspelt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import storeds
from storeds.errors import StoredsError

URLS = [
    *("mongodb://user:hush@h/d/c", "mongodb//user:hush@h/d/c", "mongodb:user:hush@h/d/c", "mongodb/user:hush@h/d/c"),
    *("mongdb/user:hush?x@h/d/c", "mnogodb+srv/user:a/hush@h/d/c", "user:hush@h/d/c", "mongodb://user:hush y@h/d/c"),
    *("mongodb://h/d/c?password=hush", "mongodb://h/d/c?pasword=hush", "mongodb://h/d/c?w=1&tokn=hush"),
    *("mongodb://h/d/c?tlsCertificateKeyFilePasword=hush", "mongodb://h/d/c?secret:hush", "x.h5?api_key=hush"),
    *("x.h5?acces_key=hush&group=a", "mongodb://h/d/c?authMechansmProperties=AWS_SESSION_TOKEN:hush", "x?pwd==hush"),
]
PLACES: dict[str, Callable[[str], dict[Any, Any]]] = {
    "url": lambda url: {"dataset": {"url": url}},
    "a key of options": lambda url: {"dataset": {"url": "x", "options": {url: 1}}},
    "a key of where": lambda url: {"dataset": {"url": "x", "where": {url: ["a"]}}},
    "a key of roles": lambda url: {"dataset": {"url": "x", "roles": {url: "mask"}}},
    "a key of fields": lambda url: {"dataset": {"url": "x", "fields": {url: url}}},
    "a wrong type below a key": lambda url: {"dataset": {"url": "x", "roles": {url: 1}}},
    "keys inside keys": lambda url: {"dataset": {"url": "x", "reader_options": {"a": {url: {url: [url]}}}}},
    "an unknown key": lambda url: {"dataset": {"url": "x", url: 1}},
    "an unknown table": lambda url: {url: {}, "dataset": {"url": "x"}},
    "a split": lambda url: {"dataset": {"url": "x"}, "splits": {url: {}}},
    "a setting of a split": lambda url: {"dataset": {"url": "x"}, "splits": {"val": {"dataset": {url: 1}}}},
    "a number that is too large below a key": lambda url: {"dataset": {"url": "x", "options": {url: 1 << 70}}},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("url", URLS)
def test_neither_repr_nor_messages_show_a_password(url: str, place: str, caplog: pytest.LogCaptureFixture) -> None:
    mapping, shown = PLACES[place](url), []
    try:
        config = storeds.load_config(mapping)
    except StoredsError as error:
        shown += [str(error), repr(error)]
    else:
        shown += [repr(config), str(config), repr(config.dataset), repr(config.splits)]
        with pytest.raises(StoredsError) as raised:
            storeds.build_dataset(config)
        shown.append(str(raised.value))
    assert "hush" not in " ".join([*shown, caplog.text])
