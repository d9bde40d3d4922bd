"""URLs: paths and options are read strictly, and no secret of any URL is ever shown."""

from __future__ import annotations

import os
import pickle
import re
import socket
import string
import time
from pathlib import Path
from typing import Any, cast
from unittest import mock
from urllib.parse import quote, quote_plus

import hypothesis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import storeds
from make_store import make_store
from storeds.backends.mongodb.client import ClientOpener, Location, parse_location
from storeds.errors import ConfigError, StoredsError
from storeds.plugins import StoreURL, file_path, file_url, redact, redact_message

SECRET = "Sec:ret/Wo@rd?&%#+"  # every character that a URL gives a meaning
ENCODED = quote_plus(SECRET)
DIGITS = "9" * 5000  # more than int() reads
PIECES = ["mongodb:/", "://", ":/", "/", "user", ":", "@", "?pass=", "&token=", ";", ",", "'", " ", "***", "C:\\", "="]


def shown_by(call: Any, *args: Any) -> str:
    """Return what anybody can see of a call: its result, or its error with all causes and contexts, suppressed or not."""
    try:
        return repr(call(*args))
    except StoredsError as raised:
        shown, error = "", cast("BaseException | None", raised)
        while error is not None:
            shown, error = f"{shown}{error!r} {error} {vars(error)}", error.__cause__ or error.__context__
        return shown


# redact


@given(st.text(string.printable, min_size=1).filter(lambda text: not text.isspace()))
@example("@@@@")
@example("a/b?c@d")
@example("p:a:s:s")
@example("&password=x")
@example("://@:")
@example("a@b c")
@example("/secret x")
def test_no_password_survives_and_one_with_blanks_must_be_encoded(password: str) -> None:
    has_blanks = any(character.isspace() for character in password)
    for user in ("user", "me@corp.example", "us/er", ""):
        for scheme in ("mongodb", "MongoDB"):
            url, hidden = (f"{scheme}://{user}:{text}@host:27017/db/c" for text in (password, "***"))
            assert redact(url) == hidden
            if not has_blanks:
                assert redact_message(f"cannot reach {url}: refused") == f"cannot reach {hidden}: refused"
    if has_blanks:
        with pytest.raises(ConfigError, match="must be percent-encoded") as raised:
            storeds.open_backend(f"mongodb://user:{password}@host:27017/db/c")
        assert "mongodb://user:***@host:27017/db/c" in str(raised.value)


@pytest.mark.parametrize(
    "option",
    [
        *("tlsCertificateKeyFilePassword", "TLSCERTIFICATEKEYFILEPASSWORD", "authMechansmProperties", "pwd"),
        *("pasword", "sslPEMPassphrase", "tokn", "aws_session_token", "client_secret", "x-credential", "apiKey"),
    ],
)
def test_secret_options_are_hidden(option: str) -> None:
    for before, after in (("?", ""), ("?a=1&", "&b=2"), ("?a=1;", ";b=2")):
        text = redact(f"mongodb://host/db/c{before}{option}=AWS_SESSION_TOKEN:hush%2Fhush{after}")
        assert text == f"mongodb://host/db/c{before}{option}=***{after}"


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://[::1]:27017,h2:27018/db/c?replicaSet=r&authSource=admin",
        "mongodb://user@host/db/c?timeoutMS=3&w=1&readPreference=secondary&sort=x&path=y&words=z",
        "lmdb:///data/train.lmdb?readahead=true&index=3",
        "data/train.h5",
        "https://host:8080/path",
        "/data/run-1@home.h5",
        "git@github.com:someone/something",
        "x.h5?group=train&columns=a:b&sample=name",
        "map(access=READ, secure=True) and x?taken=3&words=4",
    ],
)
def test_what_is_no_secret_stays(url: str) -> None:
    assert redact(url) == redact_message(url) == url
    prose = f"at 12:30 from me@home.example, or you@corp.example: {{'key': '{url}', 'at': '@x'}}"
    assert redact_message(prose) == prose


@given(st.text() | st.text("ab1:/@?&=;., '[]*\\", max_size=20) | st.lists(st.sampled_from(PIECES)).map("".join))
@example("&toke::")
@example("?pass= ")
@example(":0@://?PASS=@")
def test_redacting_twice_changes_nothing(text: str) -> None:
    for hide in (redact, redact_message):
        assert hide(hide(text)) == hide(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mongodb:/user:PW@host/db/c", "mongodb:***@host/db/c"),
        ("mongodb+srv:///us/er:PW@host/db/c", "mongodb+srv:///us/er:***@host/db/c"),
        ("lmdb:/user:PW@x", "lmdb:***@x"),
        ("no store at /home/me/mongodb:/user:PW@host/db", "no store at /home/me/mongodb:***@host/db"),
        ("me@corp.example:PW@host", "me@corp.example:***@host"),
        ("'user:PW@host/db' is no store", "'user:***@host/db' is no store"),
        ("url=user:PW@host,", "url=user:***@host,"),
        ("no store at 'mongdb/user:PW@host/db'", "no store at 'mongdb/user:***@host/db'"),
    ],
)
@pytest.mark.parametrize("password", ["se/cr?et", "se@cr:et", "@"])
def test_a_password_is_hidden_where_the_url_is_malformed(text: str, shown: str, password: str) -> None:
    assert redact(text.replace("PW", password)) == redact_message(text.replace("PW", password)) == shown


@pytest.mark.share(10)
@pytest.mark.parametrize(
    "piece", [" ", "a@ ", "a:", ":/", "a://", "mongodb:/", "@", "a:b,", "://a", "?pass", ":@", "a=b&"]
)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("mongodb:", ""), ("?", "="), ("", "@"), ("a://x@", "y")])
def test_redacting_takes_linear_time(before: str, piece: str, after: str) -> None:
    """A quadratic search of 200,000 pieces takes minutes of CPU time."""
    text = before + piece * 200_000 + after
    begun = time.process_time()
    redact(text)
    redact_message(text)
    assert time.process_time() - begun < 30


# Printable or not, blank or not: whatever gets into a URL by copying and pasting. Words that messages use cannot come up.
CHARACTERS = st.characters(codec="utf-8", exclude_characters="*", exclude_categories=["Cs"])
SCHEMES = st.sampled_from(["mongodb://", "memory://", "mongodb:/", "lmdb://", "hdf5://", "http://", "//", ""])
MUTATIONS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["", "@", " ", ";", "%", "DB", "\x1b", "\N{NO-BREAK SPACE}"])),
    max_size=2,
)


@st.composite
def misspelt_urls(draw: st.DrawFn) -> tuple[str, str]:
    """Return a URL whose scheme has typing errors, and a secret in its password, which is encoded or not."""
    secret = "Hunter2Sesame"
    before = draw(st.text(CHARACTERS, max_size=3) | st.text("@:/?#% &=[]", max_size=3))
    behind = draw(st.text(CHARACTERS, max_size=3) | st.text("@:/?#% &=[]", max_size=3))
    scheme = draw(SCHEMES)
    for at, text in draw(MUTATIONS) if scheme not in ("", "lmdb://", "hdf5://") else []:
        scheme = f"{scheme[:at]}{text}{scheme[at + (not text) :]}"
    # Paths are shown as they are: what begins with ./, / or ~, or with a drive, as C:/ does.
    hypothesis.assume(scheme not in ("", "lmdb://", "hdf5://") or not before.startswith(("/", "\\")))
    hypothesis.assume(not re.match(r"\.{0,2}/(?!/)|~", scheme + "user"))
    hypothesis.assume(not scheme or "//" in scheme or ":/" in scheme)
    password = f"{before}{secret}{behind}"
    password = draw(st.sampled_from([password, quote_plus(password), quote(password, safe="")]))
    return f"{scheme}user:{password}@host.invalid/db/c?serverSelectionTimeoutMS=1", secret


@given(misspelt_urls())
def test_no_secret_of_a_misspelt_url_is_shown(drawn: tuple[str, str]) -> None:
    url, secret = drawn
    config = {"dataset": {"url": url.replace("$", "")}}
    for call, given_to_it in (
        (storeds.load_config, config),
        (storeds.build_dataset, config),
        (storeds.open_backend, url),
        (parse_location, url),
        (lambda url: storeds.open_writer(url, {"x": "int"}), url),
    ):
        with mock.patch("socket.getaddrinfo", side_effect=socket.gaierror("nobody is asked")):
            assert secret not in shown_by(call, given_to_it)


# File URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("LMDB://a/b", ("lmdb", "a/b")),
        ("mongodb+srv://h/d/c", ("mongodb+srv", "h/d/c")),
        ("mongodb://u:p@localhost:1/db/c d@e", ("mongodb", "u:p@localhost:1/db/c d@e")),
        ("data/run@1:30.h5", (None, "data/run@1:30.h5")),
        ("lmdb:///run:1@home.h5", ("lmdb", "/run:1@home.h5")),
        ("./run:1@home.h5", (None, "./run:1@home.h5")),
    ],
)
def test_scheme_and_path(url: str, expected: tuple[str | None, str]) -> None:
    parsed = StoreURL.parse(url)
    assert (parsed.scheme, parsed.path) == expected


def open_to_read(url: str) -> None:
    storeds.open_backend(url)


def open_to_write(url: str) -> None:
    storeds.open_writer(url, {"a": "int"})


@pytest.mark.parametrize("call", [open_to_read, open_to_write])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("user:se*c/r?e[t]cret@h/a/b.lmdb", "'user:***@h/a/b.lmdb'"),
        ("mongodb:user:secret@h/a/b.h5", "'mongodb:***@h/a/b.h5'"),
        ("hdf5://user:secret@x?password=secret", "'hdf5://user:***@x?password=***': hdf5:// is for files"),
    ],
)
def test_a_url_like_a_path_is_refused(
    call: Any, url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        call(url)
    assert str(caught.value).startswith(says)
    assert "cret" not in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["run:1@home.h5", "mongodb:/user:1@home/x.h5"])
def test_a_path_like_a_url_is_opened(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_store({"a": "int"}, [{"a": 3}], f"./{name}")
    paths = (f"./{name}", tmp_path / name, f"hdf5://./{name}", name, f"hdf5://{name}?locking=false")
    backends = [storeds.open_backend(path) for path in paths]
    monkeypatch.chdir("/")  # a relative path was made absolute
    for backend in backends:
        with backend, pickle.loads(pickle.dumps(backend)) as copy:
            assert backend.get_many([0]) == copy.get_many([0]) == [{"a": 3}]


@pytest.mark.parametrize(
    ("url", "path", "options"),
    [
        ("lmdb://data/x.lmdb", "/here/data/x.lmdb", {}),
        ("lmdb://../x.lmdb", "/x.lmdb", {}),
        ("hdf5://~/x.h5", "/home/me/x.h5", {}),
        ("data//x.h5", "/here/data/x.h5", {}),
        (file_url("lmdb", "/a b/ü%20.lmdb"), "/a b/ü%20.lmdb", {}),
        ("lmdb:///x?a=1&b=c%26d&e=", "/x", {"a": "1", "b": "c&d", "e": ""}),
        ("/x?a=1", "/x?a=1", {}),  # a bare path is a path
    ],
)
def test_paths_and_options_of_a_file(
    url: str, path: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    monkeypatch.setenv("HOME", "/home/me")
    assert file_path(url) == (path, options)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("lmdb://", {}, "expected a path"),
        ("lmdb:///a\0b", {}, "expected a path"),
        ("lmdb:///x?a", {}, "must read name=value"),
        ("lmdb:///x?password=hush&password=hush", {}, "option 'password' is given twice"),
        ("lmdb:///x?readahaed=true", {}, "did you mean 'readahead'"),
        ("lmdb:///x?readahead=perhaps", {}, "readahead"),
        ("lmdb:///x?readahead=true", {"readahead": True}, "given in the URL and as a keyword"),
        ("hdf5:///x?cache_bytes=-1", {}, "cache_bytes"),
        (f"hdf5:///x?cache_bytes={DIGITS}", {}, "cache_bytes"),
        ("hdf5:///x", {"readahead": True}, "unknown option 'readahead'"),
        ("memory://x", {"a": 1}, "unknown option 'a'"),
        ("memory://x?a=1", {}, "without options"),
        ("memory://", {}, "expected memory://name"),
    ],
)
def test_options_are_strict(url: str, options: dict[str, Any], says: str) -> None:
    for call in (storeds.open_backend, lambda url, **given: storeds.open_writer(url, {"a": "int"}, **given)):
        with pytest.raises(ConfigError, match=says) as caught:
            call(url, **options)
        assert "hush" not in str(caught.value)


# MongoDB URLs


@pytest.mark.parametrize(
    ("url", "uri", "database", "collection"),
    [
        ("mongodb://[::1]:5,h2:2/db/c?replicaSet=r", "mongodb://[::1]:5,h2:2/db?replicaSet=r", "db", "c"),
        ("mongodb://h/d%C3%A4/c%2Fd?authSource=x", "mongodb://h/d%C3%A4?authSource=x", "dä", "c/d"),
        ("mongodb://%2Ftmp%2Fm.sock/db/c", "mongodb://%2Ftmp%2Fm.sock/db", "db", "c"),
        ("mongodb+srv://u:p@h.example.com/db/c?w=1", "mongodb+srv://u:p@h.example.com/db?w=1", "db", "c"),
    ],
)
def test_the_last_segment_is_ours(url: str, uri: str, database: str, collection: str) -> None:
    location = parse_location(url)
    assert (location.uri, location.database, location.collection) == (uri, database, collection)
    assert location.url == redact(url)


BAD_TAILS = [
    ("host/db", "expected mongodb"),
    ("host//c", "expected mongodb"),
    ("host/db/c/d", "expected mongodb"),
    ("host/db?authSource=x", "expected mongodb"),
    ("host/db/system.users", "cannot be the name of a collection"),
    ("host/db/a%00b", "cannot be the name of a collection"),
    ("host/d%2Fb/c", "cannot be the name of a database"),
    ("host:99999/db/c", "Port"),
    (f"host:{DIGITS}/db/c", ""),
    (f"host/db/c?timeoutMS={DIGITS}", ""),
    ("[::1/db/c", "IPv6"),
    ("host,/db/c", ""),
    ("host/db/c?maxPoolsSize=3", "Unknown option"),
    ("host/db/c?maxPoolSize=many", "maxpoolsize"),
    ("host/db/c?tls=true&ssl=false", "conflicting"),
    ("host/db/c?tlsCAFile=/nowhere/ca.pem", "/nowhere/ca.pem"),
    *(
        (f"host.example.com/db/c?{options}", "")
        for options in (
            f"tlsCertificateKeyFilePassword={ENCODED}&maxPoolSize=x",
            f"tlsCertificateKeyFilePasswort={ENCODED}",
            f"authMechanism=MONGODB-AWS&authMechanismProperties=NO_SUCH:{ENCODED}",
            f"authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:{ENCODED}&nonsense=1",
        )
    ),
]


@pytest.mark.parametrize(("tail", "says"), BAD_TAILS)
def test_malformed_mongodb_urls_are_config_errors_without_secrets(tail: str, says: str) -> None:
    for scheme in ("mongodb", "mongodb+srv") if "example.com" in tail else ("mongodb",):
        for call in (parse_location, storeds.open_backend):
            shown = shown_by(call, f"{scheme}://user:{ENCODED}@{tail}")
            assert shown.startswith("ConfigError")
            assert says in shown
            assert ENCODED not in shown
            assert SECRET not in shown


def test_reprs_show_no_secret() -> None:
    location = parse_location(f"mongodb://user:{ENCODED}@host/db/c?tlsInsecure=true")
    client = ClientOpener(location)
    for thing in (location, client, {"nested": [location, client]}):
        for seen in (repr(thing), str(thing), f"{thing}"):
            assert SECRET not in seen
            assert ENCODED not in seen
    assert "user:***@host" in repr(location)
    assert isinstance(location, Location)
    assert client.url == location.url


@pytest.mark.parametrize("name", ["a?b.lmdb", "a?b=c", "d?e/f.lmdb", "ä#%3F b?.h5"])
def test_a_question_mark_starts_options_unless_a_file_has_that_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (tmp_path / "a").touch()  # of a shorter name
    for scheme in ("lmdb", "hdf5", "plugin"):
        assert file_path(f"{scheme}://{path}") == (str(path), {})
        for query, options in (("", {}), ("x=1", {"x": "1"}), ("x=1%3F&y=?", {"x": "1?", "y": "?"})):
            assert file_path(f"{scheme}://{tmp_path}/a?{query}") == (str(tmp_path / "a"), options)
    path.unlink()
    if name == "a?b=c":
        assert file_path(f"lmdb://{path}") == (str(tmp_path / "a"), {"b": "c"})
    else:
        with pytest.raises(ConfigError, match="must read name=value"):
            file_path(f"lmdb://{tmp_path}/a?b.lmdb")
