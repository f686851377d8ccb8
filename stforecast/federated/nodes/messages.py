"""Messages between server and nodes, and the server's checks of untrusted answers.

A node's answer may be damaged, of another version or malicious, so every part that is used is
checked here first. Accepted values are only required to be finite and of the expected shape;
`stforecast.federated.nodes.reported` bounds what a node's scores and counts can do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor

from data_prep.base.errors import Words, plain
from stforecast.federated.core.tensors import Like, Payload, like_of, total_bytes
from stforecast.federated.engine.faults import sound_clients
from stforecast.federated.uploads.uplink import Uplink

if TYPE_CHECKING:  # It needs an extra.
    from stforecast.federated.uploads.masking import PublicKeys

OF_SUMS = ("share", "mask", "unmask")
"""Tasks of the messages of a secure sum, in their order."""

FEW = 3
"""Number of parties below which each can compute what another one sent."""

FEW_CELLS = 9
"""Number of cells below which a sum of products gives up readings of each.

Products of readings summed over n cells leave open a rotation of the cells around their mean, of
(n - 1) (n - 2) / 2 angles. The variances of z-scores are n - 1 equations for these, enough up to
four cells. Above, who knew all products would find 66 to 88 % of readings to within a tenth of a
deviation for five cells, 50 to 69 % for seven, and 32 to 48 % for nine, by the rotation of the
largest skewness; a guess finds 17 %. See the benchmark `disclosure`.
"""

FEW_CELLS_FOUND = (
    f"from sums over fewer than {FEW_CELLS} cells, attacks compute the readings of each"
)
"""What is said where there are fewer."""

ALLOWED = "allow_disclosure = true in node.toml"
"""How a node's owner allows what is refused by default."""

P = ParamSpec("P")
T = TypeVar("T")


def few_parties(n: int) -> Words:
    """Return the warning of what others learn from the result of one party, or of two."""
    learned = (
        "with two parties, each can compute the other's upload from the result, also under secure "
        "aggregation"
        if n > 1
        else "with one party, the result shows its upload"
    )
    return Words(
        "{}; {clip} with {noise:gaussian} bounds what is learned, {min_parties} refuses such a run",
        learned,
        min_parties=FEW,
    )


@dataclass(frozen=True)
class Message:
    """A message between server and node.

    Attributes:
        about: numbers and names as JSON, never samples.
        payload: the method's tensors, one row for each of the node's clients concerned.
    """

    about: dict[str, Any]
    payload: Payload = field(default_factory=dict)


def index_of(message: Message) -> int:
    """Return the method's number of a round, from 0; refits go on with that of the best one."""
    return int(message.about.get("index", message.about["round"]))


class Link(Protocol):
    """The server's link to the nodes."""

    def nodes(self) -> set[int]:
        """Return the nodes that are connected now."""
        ...

    def ask(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Return each node's answer, or why it has none; without nodes silent for `timeout` s."""
        ...

    def ask_some(
        self, messages: Mapping[int, Message], timeout: float, enough: int
    ) -> dict[int, Message | str]:
        """Return as soon as `enough` nodes have answered, these messages or those of earlier calls.

        Missing answers may come with a later call, until `timeout` seconds have passed, the node is
        sent another message, or `ask` is called. This default is for nodes that answer at once.
        """
        return self.ask(messages, timeout) if messages else {}

    def knock(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Send messages without waiting; return the answers that have come, also to earlier ones.

        A node that has not answered yet is sent nothing more for `timeout` seconds. This default is
        for nodes that answer at once.
        """
        return self.ask(messages, timeout) if messages else {}


class Rejected(Exception):
    """Raised for an unusable answer; `taken` says that it claims the clients of another node."""

    def __init__(self, reason: str, *, taken: bool = False) -> None:
        super().__init__(plain(reason))
        self.taken = taken


@dataclass(frozen=True)
class Answer:
    """A node's checked answer to a round; under secure aggregation, without its values.

    Attributes:
        ids: `(n,)` increasing numbers of the clients that trained.
        upload: their upload, one row per client, or one row with the mean of all.
        like: types and shapes of the upload.
        losses: sums over the clients of the mean local loss and of the task's alone.
        score: total and count of the validation score before training.
        bytes_up: bytes of the upload.
        keys: the node's public keys for the sum, under secure aggregation.
        late: number of rounds since the one that it answers.
        cells: cells of the clients that trained, up to `FEW_CELLS`, under secure aggregation.
        fewest_cells: cells that the node wants in a sum of its upload.
    """

    ids: Tensor
    upload: Payload
    like: Like
    losses: tuple[float, float]
    score: tuple[float, float]
    bytes_up: int
    keys: PublicKeys | None = None
    late: int = 0
    cells: int = 0
    fewest_cells: int = 1


def with_uploads(answers: Mapping[int, Answer]) -> dict[int, Answer]:
    """Return the answers, by node, of those that trained clients."""
    return {node: answer for node, answer in answers.items() if len(answer.ids)}


def most_common(answers: Sequence[Answer], before: Like | None) -> Like | None:
    """Return the types and shapes of most clients' uploads; `before` breaks a tie."""
    votes = [(sum(len(b.ids) for b in answers if b.like == a.like), a.like) for a in answers]
    return max(votes, key=lambda vote: (vote[0], vote[1] == before))[1] if votes else None


@dataclass(frozen=True)
class Finished:
    """A node's checked answer at the end of a run; under secure aggregation, without its errors.

    Attributes:
        errors: mean test errors by metric, as the node reports them.
        targets: number of test targets.
        has_best: whether the errors are those of the round that the settings select.
        keys: the node's public keys for the sum, under secure aggregation.
    """

    errors: dict[str, float]
    targets: int
    has_best: bool = True
    keys: PublicKeys | None = None


def untrusted(check: Callable[P, T]) -> Callable[P, T]:
    """Make any failure of a check a `Rejected`: it costs the node its answer and nothing else."""

    @functools.wraps(check)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return check(*args, **kwargs)
        except Rejected:
            raise
        except Exception as e:
            raise Rejected(f"its answer cannot be used ({e!r:.120})") from e

    return guarded


@untrusted
def check_join(
    answer: Message | str, n_clients: int, taken: Iterable[range]
) -> tuple[range, list[int]]:
    """Return the clients of a new node and their numbers of samples."""
    about = message_of(answer).about
    first, sizes = about.get("first"), about.get("sizes")
    if not _is_count(first) or not isinstance(sizes, list) or not all(map(_is_count, sizes)):
        raise Rejected(f"it sent first {first!r} and sizes {sizes!r:.60}, expected whole numbers")
    numbers = range(first, first + len(sizes))
    if not sizes or not all(sizes) or numbers.stop > n_clients:
        raise Rejected(
            f"it has clients {first} to {numbers.stop - 1} with {sizes!r:.60} samples; expected "
            f"samples for each, and numbers below {n_clients}"
        )
    for other in taken:
        if max(numbers.start, other.start) < min(numbers.stop, other.stop):
            last = numbers.stop - 1
            raise Rejected(f"its clients {first} to {last} are those of another node", taken=True)
    return numbers, sizes


@untrusted
def check_round(
    answer: Message | str, asked: Sequence[int], uplink: Uplink, *, mean: bool = False
) -> Answer:
    """Return a node's checked answer to a round; its upload may be one row, the clients' `mean`.

    Nodes leave out clients whose values are not finite, so such an upload is rejected. A method may
    not record the task's loss, which is then NaN; neither this loss nor a validation score, which
    are sums of errors, can be negative. A whole local loss can.
    """
    message = message_of(answer)
    about = message.about
    score = float(about["score"][0]), float(about["score"][1])
    losses = float(about["loss"]), float(about["task_loss"])
    ids, like = read_trained(about, asked)
    if not all(0 <= v < math.inf for v in score):
        raise Rejected(f"its validation score is {score}")
    trained = torch.tensor(ids, dtype=torch.long)
    rows = min(len(ids), 1) if mean else len(ids)
    upload = _decoded(message.payload, like, rows, uplink) if ids else {}
    sound = sound_clients(upload, n=rows)
    if not (sound.all() and math.isfinite(losses[0])):
        raise Rejected("it sent numbers that are not finite")
    if not (math.isnan(losses[1]) or 0 <= losses[1] < math.inf):
        raise Rejected(f"its task's loss is {losses[1]:.4g}")
    return Answer(trained, upload, like, losses, score, total_bytes(message.payload))


@untrusted
def check_finish(answer: Message | str) -> Finished:
    """Return a node's checked answer at the end."""
    about = message_of(answer).about
    targets = about["targets"]
    errors = {str(name): float(v) for name, v in about["errors"].items()}
    if not _is_count(targets):
        raise Rejected(f"it sent errors of {targets!r:.20} targets")
    return Finished(errors, targets, about["has_best"] is True)


def read_trained(about: Mapping[str, Any], asked: Collection[int]) -> tuple[list[int], Like]:
    """Return the clients that a node trained, and the types and shapes of their upload."""
    ids = [int(i) for i in about["ids"]]
    if not set(ids) <= set(asked) or len(set(ids)) < len(ids):
        raise Rejected(f"it answers for the clients {ids!r:.60}, asked were {list(asked)!r:.60}")
    return ids, {
        str(name): [str(t), *map(int, shape)] for name, (t, *shape) in about["like"].items()
    }


def message_of(answer: Message | str) -> Message:
    """Return a node's answer; raise `Rejected` with the reason if it has none."""
    if isinstance(answer, str):
        raise Rejected(answer)
    return answer


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _decoded(wire: Payload, like: Like, n: int, uplink: Uplink) -> Payload:
    """Decode the upload; raise `Rejected` unless it matches the announced types and shapes."""
    if uplink.bits == 32:
        upload = wire
    else:
        limit = 2 * sum(t.numel() for t in wire.values()) + n
        if any(n * math.prod(shape) > limit for _, *shape in like.values()):
            raise Rejected(f"it sent fewer values than {like} need")
        upload = uplink.decode(wire, {}, like)
    if like_of(upload) != like or any(len(t) != n for t in upload.values()):
        shapes = {name: tuple(t.shape) for name, t in upload.items()}
        raise Rejected(f"it sent {shapes}, expected {n} clients like {like}")
    return upload
