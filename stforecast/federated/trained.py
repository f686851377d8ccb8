"""Result of a round's local training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stforecast.federated.uploads.payload import Like, Payload, joined, total_bytes


@dataclass(frozen=True)
class Trained:
    """Result of local training: uploads and losses of some clients.

    Attributes:
        ids: `(n,)` increasing ids of the clients that did not fail.
        upload: their encoded upload, one row per client.
        like: types and shapes before encoding.
        loss: `(n,)` mean of the whole local loss of each, in the order of the cohorts.
        task_loss: `(n,)` the same of the task's loss alone.
        bytes_down: bytes of what was sent to all of them.
        failed: ids of failed clients and the reasons.
    """

    ids: Tensor
    upload: Payload
    like: Like
    loss: Tensor
    task_loss: Tensor
    bytes_down: int
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def bytes_up(self) -> int:
        """Bytes of the upload."""
        return total_bytes(self.upload)

    @classmethod
    def nobody(cls, failed: dict[int, str], bytes_down: int) -> Trained:
        """Return the result if all clients failed."""
        ids, loss = torch.empty(0, dtype=torch.long), torch.empty(0)
        return cls(ids, {}, {}, loss, loss, bytes_down, failed)

    @classmethod
    def merged(cls, parts: Sequence[Trained]) -> Trained:
        """Merge the results of several cohorts, in order of client ids."""
        failed = {i: reason for part in parts for i, reason in part.failed.items()}
        bytes_down = sum(part.bytes_down for part in parts)
        found = [part for part in parts if len(part.ids)]
        if not found:
            return cls.nobody(failed, bytes_down)
        ids, upload = joined([(part.ids, part.upload) for part in found])
        loss, task_loss = (
            torch.cat(losses)
            for losses in zip(*((part.loss, part.task_loss) for part in found), strict=True)
        )
        return cls(ids, upload, found[0].like, loss, task_loss, bytes_down, failed)
