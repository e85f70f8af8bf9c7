from __future__ import annotations

from fuzz.case import ARRIVALS, DECODED, Case, read_case, write_case
from hypothesis import given
from hypothesis import strategies as st

KINDS = ("a", "b")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
cases = st.builds(
    Case,
    st.sampled_from(KINDS),
    st.binary(max_size=20),
    st.sampled_from(ARRIVALS),
    st.sampled_from(DECODED),
    pairs,
    pairs,
)


@given(cases)
def test_a_case_is_read_as_it_was_written(case: Case) -> None:
    """All facts are equal, line breaks in the body too."""
    assert read_case(write_case(case), KINDS) == case


@given(st.binary(max_size=60))
def test_any_bytes_are_a_case(content: bytes) -> None:
    """They are the body of an ordinary request."""
    assert read_case(content, KINDS).kind in KINDS


def test_a_body_arrives_as_torchserve_gives_it() -> None:
    """Decoded where its content type says so and it can be, else as bytes."""
    assert Case("a", b"[1]").request().row == {"body": bytearray(b"[1]")}
    assert Case("a", b"[1]", decoded="json").request().row == {"body": [1]}
    assert Case("a", b"[1", decoded="json").request().row == {"body": bytearray(b"[1")}
    assert Case("a", b"[1]", "bare", "text").request().row == "[1]"
    assert Case("a", b"[1]", "form", fields=(("x", "1"),)).request().row == {"x": "1"}
    assert Case("a", b"1", "data", headers=(("accept", "x"),)).request().header("Accept") == ""
    assert Case("a", b"1", "data", headers=(("accept", "x"),)).request().header("accept") == "x"
