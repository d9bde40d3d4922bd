"""The grammar of record patterns: what a text means, where a malformed one is wrong, and that filling reverses matching."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeds.errors import ConfigError
from storeds.layouts.pattern import Place, Template, escaped, natural_order, parse_pattern, shared_names

# Text → (literal texts, names, what differs from a plain place).
PLACES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "x": (("x",), (), {}),
    "a/b c/µ": (("a/b c/µ",), (), {}),
    "images[]": (("images",), (), {"rows": True}),
    "{label}/images[]": (("", "/images"), ("label",), {"rows": True}),
    "{label}/{}": (("", "/", ""), ("label", "key"), {}),
    "{key}.jpg": (("", ".jpg"), ("key",), {}),
    "{video}@fps": (("", ""), ("video",), {"attribute": "fps"}),
    "@fps": (("",), (), {"attribute": "fps"}),
    "x@a@b": (("x",), (), {"attribute": "a@b"}),
    "labels.h5::y[]": (("y",), (), {"file": Template(("labels.h5",), ()), "rows": True}),
    "a::b::y": (("y",), (), {"file": Template(("a::b",), ())}),
    "crops[].image.data": (("crops",), (), {"rows": True, "inner": "image.data"}),
    "table[]/number": (("table",), (), {"rows": True, "inner": "number"}),
    "{{a}}/x}}y": (("{a}/x}y",), (), {}),
    "{{{a}}}": (("{", "}"), ("a",), {}),
}


@pytest.mark.parametrize("text", PLACES)
def test_a_text_becomes_a_place(text: str) -> None:
    texts, names, others = PLACES[text]
    ((_, place),) = parse_pattern({"f": text}).places
    assert place == Place(text, Template(texts, names), **others)


@pytest.mark.parametrize(
    ("text", "path", "rows"),
    [("**", "", False), ("**[]", "", True), ("data/{}/**", "data/{}", False), ("{a}/**[]", "{a}", True)],
)
def test_two_stars_take_everything_below(text: str, path: str, rows: bool) -> None:
    ((_, place),) = parse_pattern({"*": text}).places
    assert (place.deep, place.rows, str(place.path)) == (True, rows, path)


@pytest.mark.parametrize(
    "given",
    [
        {"image": "{label}/x[]", "y": "y"},
        '{"image": "{label}/x[]", "y": "y"}',
        "image:{label}/x[],y:y",
        " image : {label}/x[] , y : y ",
        {"image": {"path": "{label}/x[]"}, "y": "y"},
    ],
)
def test_every_form_of_a_pattern_is_the_same(given: Any) -> None:
    pattern = parse_pattern(given)
    assert (pattern.names, pattern.has_rows, pattern.leading.text) == (("label",), True, "{label}/x[]")
    for again in (str(pattern), pattern.to_json(), pattern, pickle.loads(pickle.dumps(pattern))):
        assert parse_pattern(again) == pattern
    assert hash(parse_pattern(json.dumps(pattern.to_json()))) == hash(pattern)


# Text, where the mark is, and words of the message.
MALFORMED = [
    ("{label/{}", 0, "a brace has no partner"),
    ("a/b}", 3, "a brace has no partner"),
    ("{Label}", 0, "begins with a-z"),
    ("{a b}/x", 0, "begins with a-z"),
    ("x/{1}", 2, "begins with a-z"),
    ("{a}/{a}", 4, "is there twice"),
    ("{}/{key}", 3, "is there twice"),
    ("{a}{b}", 3, "text must separate {b} from the name before it"),
    ("a[]/b[]", 5, "one [] at most"),
    ("a[]@b", 1, "an attribute has no rows"),
    ("a@b[]", 1, "write @@ for an @ that belongs to the name"),
    ("a@@/{Label}", 4, "begins with a-z"),
    ("a@", 1, "@ is followed by"),
    ("a/**", 1, '** is for the field "*"'),
    ("**/a", 0, "** is the last part"),
    ("f.h5::{", 6, "a brace has no partner"),
]


@pytest.mark.parametrize(("text", "mark", "words"), MALFORMED)
def test_an_error_marks_the_place(text: str, mark: int, words: str) -> None:
    with pytest.raises(ConfigError, match=r"^columns\['f'\]: ") as raised:
        parse_pattern({"f": text})
    first, shown, below = str(raised.value).rsplit("\n", 2)
    assert words in first
    assert (shown, below) == (f"  {text}", f"  {' ' * mark}^")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "expected a mapping of fields to places"),
        (3, "expected a mapping"),
        ("x", "expected field:place"),
        ("{label}/{}", "expected field:place"),
        ({"f": ""}, "expected a place such as"),
        ({"f": 3}, "expected a place such as"),
        ({"F": "x"}, "field"),
        ({"f": {"kind": "int"}}, "a table has path and kind"),
        ({"f": {"path": "x", "role": "image"}}, "a table has path and kind"),
        ({"f": {"path": "x", "kind": "number"}}, "kind"),
        ("x:a,x:b", "'x' is there twice"),
        ({"a": "{x}/a", "b": "{y}/b"}, "has the name 'y', which '{x}/a' lacks"),
        ({"a": "{x}/a", "x": "x"}, "'x' is a field, and a name in the braces"),
    ],
)
def test_other_mistakes(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_pattern(given)


def test_attributes_are_for_hdf5_alone() -> None:
    ((_, place),) = parse_pattern({"f": "{}@x"}, attributes=False).places
    assert (place.attribute, place.path.texts) == ("", ("", "@x"))


LITERAL = st.text(st.characters(codec="utf-8", exclude_characters="@[]*"), max_size=5).filter(
    lambda text: "::" not in text
)
VALUE = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=5)


@given(
    start=LITERAL,
    parts=st.lists(
        st.tuples(st.sampled_from("abcde"), LITERAL.filter(bool)), max_size=4, unique_by=lambda part: part[0]
    ),
    draw=st.data(),
)
def test_filling_and_matching_are_inverse(start: str, parts: list[tuple[str, str]], draw: st.DataObject) -> None:
    text = start + "".join(f"\0{name}\0{literal}" for name, literal in parts)
    escaped = text.replace("{", "{{").replace("}", "}}")
    for name, _ in parts:
        escaped = escaped.replace(f"\0{name}\0", f"{{{name}}}", 1)
    if not escaped or "\0" in start + "".join(literal for _, literal in parts):
        return
    ((_, place),) = parse_pattern({"f": escaped}).places
    assert place.path == Template((start, *(literal for _, literal in parts)), tuple(name for name, _ in parts))
    values = {name: draw.draw(VALUE) for name, _ in parts}
    filled = place.path.fill(values)
    found = place.path.regex().fullmatch(filled)
    assert found is not None
    assert place.path.fill(found.groupdict()) == filled
    assert "/".join(part.fill(values) for part in place.path.split()) == filled


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8)))
def test_the_natural_order_is_total(names: list[str]) -> None:
    ordered = natural_order(names)
    assert sorted(ordered) == sorted(names)
    assert natural_order(reversed(names)) == ordered


def test_numbers_count_in_the_natural_order() -> None:
    names = ["img_2", "img_10", "img_1b", "img_01", "a", "10", "9", ""]
    assert natural_order(names) == ["", "9", "10", "a", "img_01", "img_1b", "img_2", "img_10"]


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["image_0", "label_0", "image_1", "label_1"], {"image": "image_{}", "label": "label_{}"}),
        (["1.jpg", "1.{b}", "2.jpg", "2.{b}"], {"jpg": "{}.jpg", "b": "{}.{{b}}"}),
        (["hr/a", "lr/a", "hr/b", "lr/b"], {"hr": "hr/{}", "lr": "lr/{}"}),
        (["64-00000", "128-00000", "64-00001", "128-00001"], {"size64": "64-{}", "size128": "128-{}"}),
        (["image_0", "label_0", "image_1"], {}),
        (["image_0", "image_1"], {}),
        (["1_0", "2_0", "1_1", "2_1"], {}),
        (["a", "b"], {}),
    ],
)
def test_names_that_share_parts(names: list[str], columns: dict[str, str]) -> None:
    assert shared_names(names) == columns
    assert shared_names(names[:3], has=names.__contains__) == columns or len(names) < 4


NAMES = ["img@2x", "a[]b", "a::b", "{x}", "@@", "[[]]", ":::", "a@b::c[]d{e}", "@[]::", "x"]


@pytest.mark.parametrize("name", NAMES)
def test_marks_that_belong_to_a_name_are_doubled(name: str) -> None:
    ((_, place),) = parse_pattern({"f": f"{escaped(name)}[]"}).places
    assert (place.path.fill({}), place.rows, bool(place.file), place.attribute) == (name, True, False, "")
    if "{" not in name:  # attributes have no names in braces
        ((_, place),) = parse_pattern({"f": f"{escaped(name)}.h5::y@x{escaped(name)}"}).places
        assert (place.file.fill({}), place.path.fill({}), place.attribute) == (f"{name}.h5", "y", f"x{name}")
    ((_, place),) = parse_pattern({"f": f"{escaped(name, attributes=False)}"}, attributes=False).places
    assert place.path.fill({}) == name
