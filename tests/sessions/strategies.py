"""Strategies for sessions: random ones, and boundary values of every field."""

from __future__ import annotations

from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.session import Reply, Session

ID_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~:-"

steps = st.sampled_from((0, 1, 2**32, 2**64 - 1)) | st.integers(0, 1000)
models = st.binary(min_size=16, max_size=16)
content_types = st.sampled_from(("", "application/json", "text/plain; charset=utf-8", "naïve/型")) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=20
)
replies = st.builds(Reply, st.binary(max_size=80), content_types)


def sessions() -> st.SearchStrategy[Session]:
    return st.builds(
        Session,
        steps=steps,
        last_start=steps,
        last_digest=st.binary(max_size=32),
        last_reply=replies,
        state=st.binary(max_size=200),
        model=models,
        ended=st.booleans(),
    )


def ids() -> st.SearchStrategy[str]:
    return st.text(ID_CHARACTERS, min_size=1, max_size=128)
