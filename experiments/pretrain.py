"""Train the network of `pretrained` on simulated traffic, which is drawn at random.

    python -m experiments.pretrain --out stforecast/baselines/pretrained.npz

No record of any place is used, so the network cannot know the test part of any data. A series is

    week(t) · exp(fast(t) + slow(t) + day(t) + white(t) + trend(t) + events(t))

with a weekly profile of a few bumps, two AR(1) processes, an effect of each day, white noise, and
rare events, holidays and shifts of the level, all of random size. Half of the series are Poisson
counts of this; some are speeds, which fall where it is high. Some cells begin late, rest at night
or have gaps. It takes a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.signal import lfilter
from torch.nn.functional import huber_loss
from tqdm import tqdm

from stforecast.baselines.pretrained import WEIGHTS, Past, Perceptron, WallClock
from stforecast.data.clock import Calendar

STEPS_OF_DAY = {12: 1, 24: 6, 48: 2, 72: 1, 96: 2, 144: 3, 288: 2}
"""Steps of a day, and how often series with them are drawn."""

CELLS, DAYS = 256, 42
"""Cells that are drawn together, and their days."""

STARTS, AHEAD = 6, 5
"""Windows of a batch, and targets of a window; one is the next step."""

BATCHES = 8
"""Batches from the same cells."""

RATE = 2e-3
"""Largest learning rate, after a tenth of the steps."""


class CellDraws:
    """Random numbers of cells, each `(cells, 1)`."""

    def __init__(self, rng: np.random.Generator, n_cells: int) -> None:
        self.rng, self.n = rng, n_cells

    def uniform(self, low: float, high: float) -> np.ndarray:
        """Draw numbers between two."""
        return self.rng.uniform(low, high, (self.n, 1))

    def log_uniform(self, low: float, high: float) -> np.ndarray:
        """Draw log-uniform numbers between two."""
        return np.exp(self.uniform(np.log(low), np.log(high)))

    def normal(self, n_columns: int = 1) -> np.ndarray:
        """Draw standard normal numbers."""
        return self.rng.standard_normal((self.n, n_columns))

    def happens(self, share: float) -> np.ndarray:
        """Draw whether something happens."""
        return self.rng.random((self.n, 1)) < share

    def size(self, typical: float, share: float) -> np.ndarray:
        """Return a size that is 0 unless it `happens`, and several times larger or smaller."""
        return self.happens(share) * self.log_uniform(typical / 3, typical * 2)


def traffic(
    rng: np.random.Generator, day: int, n_cells: int = CELLS, days: int = DAYS
) -> np.ndarray:
    """Draw series of cells, `(steps, cells)`, z-scored; they begin on a Monday at midnight."""
    draw, steps = CellDraws(rng, n_cells), day * days
    week = weekly_profile(draw, day)
    log = np.log(np.tile(week, (1, days // 7)) + 1e-4)
    of_days = draw.size(0.1, 0.6) * draw.normal(days)
    log += ar1(draw, steps, draw.size(0.15, 0.8), draw.log_uniform(0.02, 0.3) * day)
    log += ar1(draw, steps, draw.size(0.12, 0.8), draw.log_uniform(0.5, 12) * day)
    log += np.repeat(of_days, day, axis=1) + draw.size(0.1, 0.8) * draw.normal(steps)
    log += draw.happens(0.3) * draw.normal() * 0.01 * np.arange(steps) / day
    disturb(draw, log, week, day)
    level = np.exp(log)
    roads = draw.happens(0.2)[:, 0]
    level[roads] = speeds(rng, level[roads])
    counts = ~roads & draw.happens(0.55)[:, 0]
    busy = draw.log_uniform(0.5, 3000) * np.sqrt(24 / day)
    level[counts] = rng.poisson(np.minimum(level * busy, 1e7)[counts])
    interrupt(draw, level, day)
    spread = np.nanstd(level, axis=1, keepdims=True)
    return ((level - np.nanmean(level, axis=1, keepdims=True)) / np.maximum(spread, 1e-6)).T


def weekly_profile(draw: CellDraws, day: int) -> np.ndarray:
    """Return the mean activity at each step of a week, `(cells, 7 day)`, the largest about 1."""
    work, leisure, late = (bumps(draw, day, *span) for span in ((6, 24), (8, 27), (14, 28)))
    friday = work + 0.3 * draw.happens(0.4) * late
    kept = draw.uniform(0, 1), draw.uniform(0, 1)
    saturday, sunday = (k * work + (1 - k) * leisure for k in kept)
    saturday, sunday = saturday * draw.log_uniform(0.25, 1.6), sunday * draw.log_uniform(0.2, 1.5)
    days = [work] * 4 + [friday, saturday, sunday]
    same = draw.happens(0.2)
    days = [np.where(same, work, one) * (1 + 0.04 * draw.normal()) for one in days]
    floor = draw.log_uniform(0.005, 0.6)
    return floor + (1 - floor) * np.concatenate(days, axis=1)


def bumps(draw: CellDraws, day: int, first: float, last: float) -> np.ndarray:
    """Return a day's profile of one to five bumps between two hours, `(cells, day)`, up to 1."""
    hours = (np.arange(day) + 0.5) / day * 24
    total = np.zeros((draw.n, day))
    for share in (1.0, 0.8, 0.6, 0.35, 0.2):
        distance = np.abs((hours - draw.uniform(first, last) + 12) % 24 - 12)
        shape = np.exp(-((distance / draw.log_uniform(0.6, 5)) ** draw.uniform(1.2, 4)))
        total += draw.happens(share) * np.exp(0.6 * draw.normal()) * shape
    return total / (total.max(axis=1, keepdims=True) + 1e-9)


def ar1(draw: CellDraws, steps: int, size: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Return AR(1) processes, `(cells, steps)`, of a standard deviation and a memory in steps."""
    kept = np.exp(-1 / memory)
    shocks = size * np.sqrt(1 - kept**2) * draw.normal(steps)
    shocks[:, :1] = size * draw.normal()
    return np.stack([lfilter([1.0], [1.0, -k], s) for (k,), s in zip(kept, shocks, strict=True)])


def disturb(draw: CellDraws, log: np.ndarray, week: np.ndarray, day: int) -> None:
    """Add events, shifts of the level and holidays, which are like Sundays."""
    rng, steps = draw.rng, log.shape[1]
    for own, profile in zip(log, week, strict=True):
        if rng.random() < 0.3:
            for start in rng.integers(steps, size=rng.poisson(rng.uniform(0, 0.15) * steps / day)):
                part = own[start : start + max(1, int(day * np.exp(rng.uniform(-3.5, -1))))]
                part += rng.normal(0.3, 0.6) * np.hanning(len(part) + 2)[1:-1]
        if rng.random() < 0.15:
            own[rng.integers(steps) :] += rng.normal(0, 0.4)
        if rng.random() < 0.25:
            for start in day * rng.integers(steps // day, size=rng.integers(1, 4)):
                usual = profile[start % (7 * day) :][:day]
                own[start : start + day] += np.log((profile[-day:] + 1e-4) / (usual + 1e-4))


def speeds(rng: np.random.Generator, level: np.ndarray) -> np.ndarray:
    """Return speeds that fall where a level is high, with noise, `(cells, steps)`."""
    draw = CellDraws(rng, len(level))
    load = level / np.quantile(level, 0.98, axis=1, keepdims=True)
    jam = 1 / (1 + np.exp((draw.uniform(0.6, 1.1) - load) / draw.log_uniform(0.03, 0.15)))
    noise = draw.uniform(0.003, 0.04) * draw.normal(level.shape[1])
    return (1 - draw.uniform(0.1, 0.85) * jam) * (1 + noise)


def interrupt(draw: CellDraws, level: np.ndarray, day: int) -> None:
    """Let some cells begin late, rest at night or have gaps."""
    rng, steps = draw.rng, level.shape[1]
    slot = np.arange(steps) % day
    for own in level:
        if rng.random() < 0.07:
            begin, end = rng.integers(0, 4) * day // 24, rng.integers(4, 8) * day // 24
            own[(slot >= begin) & (slot < end)] = rng.choice([0.0, np.nan])
        if rng.random() < 0.2:
            for start in rng.integers(steps, size=rng.integers(1, 6)):
                own[start : start + int(day * np.exp(rng.uniform(-3, 0.7)))] = np.nan
        if rng.random() < 0.1:
            own[rng.random(steps) < rng.uniform(0, 0.2)] = np.nan
        if rng.random() < 0.35:
            own[: rng.integers(steps * 3 // 4)] = np.nan


def samples(rng: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield inputs of windows and targets, and relative targets `(cells, windows, ahead)`."""
    share = np.array(list(STEPS_OF_DAY.values())) / sum(STEPS_OF_DAY.values())
    while True:
        day = int(rng.choice(list(STEPS_OF_DAY), p=share))
        series = torch.from_numpy(traffic(rng, day))
        calendar = Calendar(pd.Timestamp("2024-01-01"), pd.Timedelta(days=1) / day)
        past = Past(series, WallClock.of(calendar))
        for _ in range(BATCHES):
            most = day if rng.random() < 0.8 else 7 * day
            far = np.exp(rng.uniform(0, np.log(most + 0.99), AHEAD)).astype(int)
            far[0] = 1
            first = rng.integers(day, len(series) - most, STARTS)
            starts, ahead = torch.from_numpy(first), torch.from_numpy(far)
            inputs = past.inputs(starts, ahead)
            y = series.T[:, starts[:, None] + ahead - 1]
            y = (y - inputs.mean[..., None]) / inputs.spread[..., None]
            yield inputs.window, inputs.target, y.float()


def train_network(steps: int, width: int, seed: int = 0) -> Perceptron:
    """Train the network with Adam, a rate that rises and falls once, and Huber's loss."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    drawn = samples(rng)
    window, target, _ = next(drawn)
    network = Perceptron(window.shape[-1], target.shape[-1], width)
    torch.nn.init.zeros_(network.output.weight)
    adam = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    rates = torch.optim.lr_scheduler.OneCycleLR(adam, RATE, total_steps=steps, pct_start=0.1)
    mean = 0.0
    for step in (bar := tqdm(range(1, steps + 1), unit="step")):
        window, target, y = next(drawn)
        known = ~y.isnan()
        loss = huber_loss(network(window, target)[known], y[known].clamp(-10, 10))
        adam.zero_grad()
        loss.backward()
        adam.step()
        rates.step()
        mean += (loss.item() - mean) * max(1 / step, 0.005)
        bar.set_postfix(loss=f"{mean:.4f}")
    return network


def main() -> None:
    """Train the network and write its weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12000, help="batches of 7,680 targets")
    parser.add_argument("--width", type=int, default=128, help="units of each layer")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="file to write (%(default)s)")
    args = parser.parse_args()
    network = train_network(args.steps, args.width)
    halves = {
        name: t.detach().numpy().astype(np.float16) for name, t in network.state_dict().items()
    }
    np.savez_compressed(args.out, **halves)


if __name__ == "__main__":
    main()
