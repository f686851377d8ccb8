"""Chronos: a pretrained transformer that forecasts series which it has never seen.

Ansari et al., "Chronos: learning the language of time series", TMLR 2024. Chronos-Bolt and its
weights are released under the Apache License 2.0.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from pydantic import PositiveInt

from data_prep.base.errors import InputError, Words
from stforecast.baselines.base import Arrays, Peer, PeerOptions
from stforecast.data.clock import Calendar

FILES = ("config.json", "model.safetensors")
"""Files of a folder of weights that are read."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class ChronosOptions(PeerOptions):
    """Options of `Chronos`.

    Attributes:
        weights: folder with config.json and model.safetensors of a Chronos-Bolt model, such as
            amazon/chronos-bolt-small of the Hugging Face hub. Nothing is ever fetched.
        context: steps before a window that the model reads; limited to its own context length.
        batch: number of windows to forecast at a time.
    """

    weights: str = ""
    context: PositiveInt = 2048
    batch: PositiveInt = 256


class Chronos(Peer):
    """A pretrained Chronos-Bolt; it learns nothing here, and forecasts the median.

    Each window of each cell is forecast by itself, on the CPU, from the steps before it; a missing
    reading stays missing. The state holds no weights, but their checksum: the folder must still be
    there when a saved forecaster is loaded. The time limit is checked after every batch.
    """

    name = "chronos"
    summary = "a pretrained Chronos-Bolt, which is not trained further (needs weights)"
    package = "chronos"
    learned = ("checksum",)
    Options = ChronosOptions

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        return {"checksum": self._checksum()}

    def _restore(self, arrays: Arrays) -> None:
        super()._restore(arrays)
        if not np.array_equal(arrays["checksum"], self._checksum()):
            raise InputError(
                f"chronos: {self.config.weights} holds other weights than those that it was saved "
                "with; restore them, or fit it again"
            )
        self.pipeline = self._load()

    def _checksum(self) -> np.ndarray:
        """Return the SHA-256 of the files of weights, `(32,)` bytes."""
        if not self.config.weights:
            raise InputError(
                Words(
                    "chronos: no weights; give {weights}, a folder with config.json and "
                    "model.safetensors of a Chronos-Bolt model, such as amazon/chronos-bolt-small"
                )
            )
        digest = hashlib.sha256()
        for path in (Path(self.config.weights) / name for name in FILES):
            if not path.is_file():
                raise InputError(f"chronos: no {path}; ", Words("{weights} needs {}", FILES))
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return np.frombuffer(digest.digest(), np.uint8)

    def _load(self) -> Any:
        """Load the model without the network; only safetensors are read."""
        with mock.patch.dict(os.environ, OFFLINE):
            from chronos import ChronosBoltPipeline

            try:
                return ChronosBoltPipeline.from_pretrained(
                    str(Path(self.config.weights).absolute()),
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    dtype=torch.float32,
                )
            except Exception as e:
                raise InputError(
                    f"chronos: {self.config.weights} cannot be read as a Chronos-Bolt model ({e}); "
                    "give the folder of one"
                ) from e

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        size = min(self.config.context, self.pipeline.model_context_length)
        padded = np.pad(series, ((size, 0), (0, 0)), constant_values=np.nan).astype(np.float32)
        contexts = np.lib.stride_tricks.sliding_window_view(padded, size, axis=0)
        cells, windows = np.divmod(np.arange(series.shape[1] * len(starts)), len(starts))
        y_hat = []
        for k in range(0, len(cells), self.config.batch):
            where = starts[windows[k : k + self.config.batch]], cells[k : k + self.config.batch]
            past = torch.from_numpy(contexts[where])
            median, _ = self.pipeline.predict_quantiles(past, self.spec.horizon, [0.5])
            y_hat.append(median[..., 0])
            self.limit.check(k + len(past), len(cells), "windows")
        return torch.cat(y_hat).numpy().reshape(series.shape[1], len(starts), -1)
