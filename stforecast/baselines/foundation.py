"""Pretrained transformers of others that forecast series which they have never seen.

- Ansari et al., "Chronos: learning the language of time series", TMLR 2024, and "Chronos-2: from
  univariate to universal forecasting", arXiv 2510.15821.
- Das, Kong, Sen, Zhou, "A decoder-only foundation model for time-series forecasting", ICML 2024;
  this runs version 2.5.
- Podest et al., "TiRex-2: generalizing TiRex to multivariate data and streaming", arXiv 2607.01204.
- Khwaja et al., "Toto 2.0: time series forecasting enters the scaling era", arXiv 2605.20119.

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

MEDIAN = 4
"""Place of the median among nine quantiles, of levels .1 to .9."""


@dataclass(frozen=True)
class FoundationOptions(PeerOptions):
    """Options of pretrained transformers.

    Attributes:
        weights: folder with config.json and model.safetensors, such as amazon/chronos-2,
            google/timesfm-2.5-200m-transformers, NX-AI/TiRex-2 or Datadog/Toto-2.0-22m of the
            Hugging Face hub; by default the folder that the environment variable
            STFORECAST_WEIGHTS_CHRONOS (or _TIMESFM, _TIREX, _TOTO) names. Nothing is ever fetched.
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
        architectures: their names in config.json; empty where the library refuses weights that do
            not fit.
    """

    learned = ("checksum",)
    Options = FoundationOptions
    kinds: ClassVar[str]
    architectures: ClassVar[Set[str]] = frozenset()

    @property
    def folder(self) -> str:
        """Folder of the weights; empty if neither the options nor the environment name one."""
        return self.config.weights or os.environ.get(f"STFORECAST_WEIGHTS_{self.name.upper()}", "")

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
                f"{self.name}: {self.folder} holds other weights than those that it was "
                "saved with; restore them, or fit it again"
            )
        # Loaders give a model of another architecture random weights, so it is checked first. Only
        # safetensors are read, and nothing is fetched.
        folder = Path(self.folder).absolute()
        with mock.patch.dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1"):
            try:
                found = json.loads((folder / FILES[0]).read_text()).get("architectures")
                if self.architectures and not self.architectures & {*(found or ())}:
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
                    f"{self.name}: {self.folder} cannot be read as {self.kinds} ({e}); "
                    "give the folder of one"
                ) from e

    def _checksum(self) -> np.ndarray:
        """Return the SHA-256 of the files of weights, `(32,)` bytes."""
        if not self.folder:
            raise InputError(
                f"{self.name}: no weights; give ",
                Words(
                    "{weights}, a folder with config.json and model.safetensors of {}", self.kinds
                ),
            )
        digest = hashlib.sha256()
        for path in (Path(self.folder) / name for name in FILES):
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
        known = [row[~np.isnan(row)] for row in gapless(past)]
        inputs = [torch.tensor(k if len(k) else [0.0]) for k in known]
        with torch.no_grad():
            found = self.model(inputs, forecast_context_len=self._steps(), truncate_negative=False)
        return torch.as_tensor(found.mean_predictions[:, : self.spec.horizon])


class TiRex(Foundation):
    """A pretrained TiRex-2; a missing reading stays missing."""

    name = "tirex"
    summary = "a pretrained TiRex-2, which is not trained further (needs weights)"
    package, installed_by = "tirex2", "tirex-2"
    kinds = "a TiRex-2 model"

    def _open(self, folder: str, **safe: Any) -> Any:
        from tirex2 import load_model

        return load_model(folder, device="cpu")

    def _steps(self) -> int:
        return self.config.context

    def _medians(self, past: Tensor) -> Tensor:
        from tirex2 import TimeseriesType

        unknown = dict.fromkeys(("past_covariates", "future_covariates"))
        series = [TimeseriesType(target=row[None], **unknown) for row in past]
        found = self.model.forecast(series, prediction_length=self.spec.horizon)
        return torch.stack([quantiles[0, MEDIAN] for quantiles in found])


class Toto(Foundation):
    """A pretrained Toto 2.0; missing readings are interpolated, or repeat the last one.

    A context is as long as whole patches of the model, at least one. Steps before the first reading
    are masked.
    """

    name = "toto"
    summary = "a pretrained Toto 2.0, which is not trained further (needs weights)"
    package, installed_by = "toto2", "toto-2"
    kinds = "a Toto 2.0 model"

    def _open(self, folder: str, **safe: Any) -> Any:
        from toto2 import Toto2Model

        return Toto2Model.from_pretrained(folder, local_files_only=True).float().eval()

    def _steps(self) -> int:
        patch = self.model.config.patch_size
        return int(max(self.config.context // patch, 1) * patch)

    def _medians(self, past: Tensor) -> Tensor:
        known = torch.from_numpy(gapless(past))[:, None]  # Each window is a series of one variate.
        inputs = {
            "target": known.nan_to_num(0.0),
            "target_mask": ~known.isnan(),
            "series_ids": torch.zeros(known.shape[:2], dtype=torch.long),
        }
        with torch.no_grad():
            return torch.as_tensor(self.model.forecast(inputs, self.spec.horizon)[MEDIAN, :, 0])


def gapless(past: Tensor) -> np.ndarray:
    """Interpolate missing readings `(windows, steps)`, and repeat the last one.

    >>> nan = float("nan")
    >>> gapless(torch.tensor([[nan, 1.0, nan, 3.0, nan]])).tolist()
    [[nan, 1.0, 2.0, 3.0, 3.0]]
    """
    table = pd.DataFrame(past.numpy().T).interpolate(limit_area="inside").ffill()
    return table.to_numpy(np.float32).T.copy()
