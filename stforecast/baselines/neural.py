"""Deep models on the records of all cells together, from neuralforecast.

- Olivares et al., "NeuralForecast: user friendly state-of-the-art neural forecasting models", PyCon
  2022.
- DLinear: Zeng et al., "Are transformers effective for time series forecasting?", AAAI 2023.
- N-HiTS: Challu et al., "N-HiTS: neural hierarchical interpolation for time series forecasting",
  AAAI 2023.
- PatchTST: Nie et al., "A time series is worth 64 words: long-term forecasting with transformers",
  ICLR 2023.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import NonNegativeInt

from data_prep.base.errors import InputError, Words
from stforecast.baselines.base import Arrays, Peer, PeerOptions
from stforecast.data.clock import Calendar
from stforecast.data.dates import WEEK


@dataclass(frozen=True)
class NeuralOptions(PeerOptions):
    """Options of a deep model; whatever else it has is the library's default.

    Attributes:
        input_size: steps before a window that the model reads; 0 takes a week, but at most 512
            steps.
        max_steps: number of training steps; 0 takes the library's default.
    """

    input_size: NonNegativeInt = 0
    max_steps: NonNegativeInt = 0


class NeuralPeer(Peer):
    """One deep model of neuralforecast, trained on the series of all cells together, on the CPU.

    It draws training windows from the whole training part, and trains without validation, as the
    library does by default. A missing reading is replaced by the cell's last one for the inputs,
    and left out of the loss. The run's seed is the library's. Steps before the series count as
    missing and are 0.0. The time limit is checked after every training step, and after every 1,024
    windows that are forecast.
    """

    package = "neuralforecast"
    pooled = True
    learned = ("input_size",)
    Options = NeuralOptions
    model: ClassVar[str]

    def _learn(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> Arrays:
        from neuralforecast.tsdataset import TimeSeriesDataset

        past = series[: starts.max() + self.spec.horizon]
        n_steps, n_cells = past.shape
        # The longest look-back window of the PatchTST paper.
        input_size = self.config.input_size or min(calendar.steps_in(WEEK), 512)
        if n_steps < input_size + self.spec.horizon:
            raise InputError(
                f"{self.name}: the training part has {n_steps} steps, one window needs "
                f"{input_size + self.spec.horizon}; ",
                Words("choose a smaller {input_size} or a longer part"),
            )
        values, seen = _filled(past)
        table = np.stack([values.T.ravel(), seen.T.ravel()], axis=1)
        indptr = np.arange(n_cells + 1) * n_steps
        with _quiet():
            net = self._build(input_size)
            net.fit(TimeSeriesDataset(table, ["y", "available_mask"], indptr, y_idx=0))
        weights = {f"net/{name}": t.numpy() for name, t in net.state_dict().items()}
        return {"input_size": np.array(input_size), **weights}

    def _restore(self, arrays: Arrays) -> None:
        super()._restore(arrays)
        with _quiet():
            self.net = self._build(int(arrays["input_size"]))
        self.net.load_state_dict(
            {
                name.removeprefix("net/"): torch.from_numpy(np.array(values))
                for name, values in arrays.items()
                if name.startswith("net/")
            }
        )
        self.net.eval()

    def _build(self, input_size: int) -> Any:
        """Build the library's model; it writes no files and draws no progress bar."""
        from neuralforecast import models
        from pytorch_lightning.callbacks import LambdaCallback

        def on_time(trainer: Any, *_: Any) -> None:
            self.limit.check(trainer.global_step, trainer.max_steps, "training steps")

        steps = {"max_steps": self.config.max_steps} if self.config.max_steps else {}
        return getattr(models, self.model)(
            h=self.spec.horizon,
            input_size=input_size,
            random_seed=self.seed,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[LambdaCallback(on_train_batch_end=on_time)],
            **steps,
        )

    @torch.inference_mode()
    def _forecast(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        size = self.net.input_size
        values, seen = (np.pad(part, ((size, 0), (0, 0))) for part in _filled(series))
        inputs, masks = (sliding_window_view(part, size, axis=0) for part in (values, seen))

        def forecast(where: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            batch = {
                "insample_y": torch.from_numpy(inputs[where][..., None]),
                "insample_mask": torch.from_numpy(masks[where][..., None]),
                **dict.fromkeys(("futr_exog", "hist_exog", "stat_exog")),
            }
            y_hat: np.ndarray = self.net(batch)[..., 0].numpy()
            return y_hat

        return self._by_batches(series.shape[1], starts, 1024, forecast)


def _filled(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill gaps with the last reading, else 0.0; return this and 1.0 where observed, as float32."""
    values = pd.DataFrame(series).ffill().fillna(0.0).to_numpy(np.float32)
    return values, (~np.isnan(series)).astype(np.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's seeds, messages and warnings to itself."""
    from pytorch_lightning.utilities.seed import isolate_rng

    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    with isolate_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class DLinear(NeuralPeer):
    """neuralforecast's DLinear, 5,000 training steps by default."""

    name = "dlinear"
    summary = "neuralforecast's DLinear, two linear layers, of all cells together"
    model = "DLinear"


class NHITS(NeuralPeer):
    """neuralforecast's NHITS, 1,000 training steps by default."""

    name = "nhits"
    summary = "neuralforecast's N-HiTS, stacked MLPs at several rates, of all cells together"
    model = "NHITS"


class PatchTST(NeuralPeer):
    """neuralforecast's PatchTST, 5,000 training steps by default, which take hours on few cores."""

    name = "patchtst"
    summary = "neuralforecast's PatchTST, a transformer on patches, of all cells together (slow)"
    model = "PatchTST"
