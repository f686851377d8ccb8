"""Pretrained transformers of others that forecast series which they have never seen.

- Ansari et al., "Chronos: learning the language of time series", TMLR 2024, and "Chronos-2: from
  univariate to universal forecasting", arXiv 2510.15821.
- Das, Kong, Sen, Zhou, "A decoder-only foundation model for time-series forecasting", ICML 2024;
  this runs version 2.5.

Code and weights of all are released under the Apache License 2.0.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pandas as pd
import torch
from pydantic import PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.baselines.base import Arrays, Peer, PeerOptions
from stforecast.data.clock import Calendar

FILES = ("config.json", "model.safetensors")
"""Files of a folder of weights that are read."""


@dataclass(frozen=True)
class FoundationOptions(PeerOptions):
    """Options of pretrained transformers.

    Attributes:
        weights: folder with config.json and model.safetensors, such as amazon/chronos-2 or
            google/timesfm-2.5-200m-transformers of the Hugging Face hub. Nothing is ever fetched.
        context: steps before a window that the model reads; limited to its own context length.
        batch: number of windows to forecast at a time.
    """

    weights: str = ""
    context: PositiveInt = 2048
    batch: PositiveInt = 256


class Foundation(Peer):
    """A pretrained transformer; it learns nothing here, and forecasts the median.

    Each window of each cell is forecast by itself, on the CPU, from the steps before it. The state
    holds no weights, but their checksum: the folder must still be there when a saved forecaster is
    loaded. The time limit is checked after every batch.

    Attributes:
        kinds: the models that it reads, in words.
        architectures: their names in config.json.
    """

    learned = ("checksum",)
    Options = FoundationOptions
    kinds: ClassVar[str]
    architectures: ClassVar[Set[str]]

    @abstractmethod
    def _open(self, folder: str, **safe: Any) -> Any:
        """Return the model of a folder; `safe` are settings of every loader."""

    @abstractmethod
    def _steps(self) -> int:
        """Return how many steps the model reads."""

    @abstractmethod
    def _medians(self, past: Tensor) -> Tensor:
        """Forecast `(windows, horizon)` from the past `(windows, steps)`, NaN where missing."""

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        return {"checksum": self._checksum()}

    def _restore(self, arrays: Arrays) -> None:
        super()._restore(arrays)
        if not np.array_equal(arrays["checksum"], self._checksum()):
            raise InputError(
                f"{self.name}: {self.config.weights} holds other weights than those that it was "
                "saved with; restore them, or fit it again"
            )
        # Loaders give a model of another architecture random weights, so it is checked first. Only
        # safetensors are read, and nothing is fetched.
        folder = Path(self.config.weights).absolute()
        with mock.patch.dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1"):
            try:
                found = json.loads((folder / FILES[0]).read_text()).get("architectures")
                if not self.architectures & {*(found or ())}:
                    raise ValueError(f"its architecture is {found}")
                self.model = self._open(
                    str(folder),
                    local_files_only=True,
                    use_safetensors=True,
                    trust_remote_code=False,
                    dtype=torch.float32,
                )
            except Exception as e:
                raise InputError(
                    f"{self.name}: {self.config.weights} cannot be read as {self.kinds} ({e}); "
                    "give the folder of one"
                ) from e

    def _checksum(self) -> np.ndarray:
        """Return the SHA-256 of the files of weights, `(32,)` bytes."""
        if not self.config.weights:
            raise InputError(
                f"{self.name}: no weights; give ",
                Words(
                    "{weights}, a folder with config.json and model.safetensors of {}", self.kinds
                ),
            )
        digest = hashlib.sha256()
        for path in (Path(self.config.weights) / name for name in FILES):
            if not path.is_file():
                raise InputError(
                    f"{self.name}: no {path}; ", Words("{weights} needs {}", " and ".join(FILES))
                )
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return np.frombuffer(digest.digest(), np.uint8)

    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        size = self._steps()
        padded = np.pad(series, ((size, 0), (0, 0)), constant_values=np.nan).astype(np.float32)
        contexts = np.lib.stride_tricks.sliding_window_view(padded, size, axis=0)

        def forecast(where: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            return self._medians(torch.from_numpy(contexts[where])).numpy()

        return self._by_batches(series.shape[1], starts, self.config.batch, forecast)


class Chronos(Foundation):
    """A pretrained Chronos-Bolt or Chronos-2; a missing reading stays missing."""

    name = "chronos"
    summary = "a pretrained Chronos-Bolt or Chronos-2, which is not trained further (needs weights)"
    package = "chronos"
    kinds = "a Chronos-Bolt or Chronos-2 model"
    architectures = frozenset({"ChronosBoltModelForForecasting", "Chronos2Model"})

    def _open(self, folder: str, **safe: Any) -> Any:
        from chronos import BaseChronosPipeline

        return BaseChronosPipeline.from_pretrained(folder, **safe)

    def _steps(self) -> int:
        return min(self.config.context, int(self.model.model_context_length))

    def _medians(self, past: Tensor) -> Tensor:
        from chronos import Chronos2Pipeline

        if isinstance(self.model, Chronos2Pipeline):  # Each window is a series of one variate.
            found, _ = self.model.predict_quantiles(past[:, None], self.spec.horizon, [0.5])
            return torch.cat(found)[..., 0]
        found, _ = self.model.predict_quantiles(past, self.spec.horizon, [0.5])
        return torch.as_tensor(found[..., 0])


class TimesFM(Foundation):
    """A pretrained TimesFM 2.5; missing readings are interpolated, or repeat the last one.

    A context is as long as whole patches of the model, at least one.
    """

    name = "timesfm"
    summary = "a pretrained TimesFM 2.5, which is not trained further (needs weights)"
    package = "transformers"
    kinds = "a TimesFM 2.5 model"
    architectures = frozenset({"TimesFm2_5ModelForPrediction"})

    def _open(self, folder: str, **safe: Any) -> Any:
        from transformers import TimesFm2_5ModelForPrediction

        model, info = TimesFm2_5ModelForPrediction.from_pretrained(
            folder, output_loading_info=True, **safe
        )
        if missing := sorted(info["missing_keys"]):
            raise ValueError(f"{FILES[1]} has no {missing[0]}")
        return model.eval()

    def _restore(self, arrays: Arrays) -> None:
        super()._restore(arrays)
        if self.spec.horizon > (most := self.model.config.horizon_length):
            raise InputError(
                f"{self.name} forecasts up to {most} steps; ", Words("lower {horizon}")
            )

    def _steps(self) -> int:
        patch = self.model.config.patch_length
        steps = min(self.config.context, self.model.config.context_length)
        return int(max(steps // patch, 1) * patch)

    def _medians(self, past: Tensor) -> Tensor:
        filled = pd.DataFrame(past.numpy().T).interpolate(limit_area="inside").ffill()
        known = [column.dropna().to_numpy() for _, column in filled.items()]
        inputs = [torch.tensor(k if len(k) else [0.0]) for k in known]
        with torch.no_grad():
            found = self.model(inputs, forecast_context_len=self._steps(), truncate_negative=False)
        return torch.as_tensor(found.mean_predictions[:, : self.spec.horizon])
