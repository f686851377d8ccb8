"""The hub of pre-trained weights, with and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

SECONDS = 10
"""Longest wait for an answer of the hub, as in its own client."""


@contextmanager
def reachable_hub() -> Iterator[bool]:
    """Tell whether the hub answers; if not, its client reads only what it has kept on disk.

    Without this, the client asks for each file six times, with a warning and a longer pause each.
    """
    from huggingface_hub import constants

    answers = _answers(constants.ENDPOINT)
    offline = constants.HF_HUB_OFFLINE or not answers
    with mock.patch.object(constants, "HF_HUB_OFFLINE", offline):
        yield answers


def _answers(address: str) -> bool:
    """Ask the hub once, by its client's own session, which knows proxies and the offline mode."""
    from huggingface_hub import get_session

    try:
        get_session().head(address, timeout=SECONDS)
    except Exception:  # Each version of the client has types of its own.
        return False
    return True
