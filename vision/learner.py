"""Estimator that fits on images, evaluates, saves, loads and predicts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from data_prep.base.errors import InputError, choose, reading
from data_prep.base.limits import check_size
from stforecast.bench.progress import rounds_bar
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import Method, predictions_of
from stforecast.federated.core.mixed_models import MixedModel, check_shares_no_encoder
from stforecast.federated.core.options import Estimator
from stforecast.federated.core.population import Population
from stforecast.federated.core.state import KIND, State
from stforecast.federated.engine.rounds import Federation, RoundReport
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.nodes.received import behind_link
from stforecast.federated.runs import model_files
from stforecast.federated.runs.unfinished_run import Checkpointer
from vision.config import ImageConfig, check_read, read_by, resolve
from vision.datasets import load
from vision.datasets.image_set import ImageSet, hold_out_for_server, long_tailed
from vision.evaluation import MASKS, Counts, Evaluator, column
from vision.methods import METHODS
from vision.models import MODELS
from vision.partition.base import Partition
from vision.streams.base import TaskStream
from vision.task import Classification, among_own_classes, stacked_images

DESCRIPTION = "learner.json"
"""File with the settings and shapes of a saved learner."""

ROUNDS = "rounds.csv"
"""File with the rounds of a run."""


class Learner(Estimator):
    """Image classifier that is trained with a federated method.

    Args:
        method: name of a method, see `stforecast vision list methods`.
        **settings: any setting of `vision.config`, e.g. `rounds=20`, `data="mnist+usps"`.

    Attributes:
        config: all settings, resolved.
        images: the clients' images; set by `fit`.
        partition: the images of each client (and stage); set by `fit`.
        stages_: for a task stream, correct predictions by stage and client; else None.
        counts_: correct predictions of the last round, by model, client, domain and class.
        judged_: for each judged model, whether clients predict with their `own` after local
            training or with the `averaged` one; "" if the server averages nothing of it.
        shape: channels, height and width of an image; set by `fit` and `load`.
        class_names: names of the classes; set by `fit` and `load`.

    Raises:
        InputError: for an unknown method, setting or value.

    Example:
        >>> learner = Learner("pfpl", clients=4, rounds=2, size=8, channels=8).fit()
        >>> 0 <= learner.accuracy() <= 1
        True
    """

    def __init__(self, method: str = "pfpl", **settings: Any) -> None:
        self._given = {"method": method, **settings}
        self.config: ImageConfig = resolve(method, **settings)
        check_read(method, settings)
        self._rounds = pd.DataFrame()
        self._rounds_file: Path | None = None
        self.stages_: pd.DataFrame | None = None
        self._state: State | None = None
        self._method: Method | None = None
        self._of_node = False

    @classmethod
    def recorded(cls, settings: Mapping[str, Any]) -> Learner:
        """Return a learner of all recorded settings; a method may read only some."""
        return cls(**read_by(settings["method"], settings))

    def fit(
        self,
        images: ImageSet | None = None,
        after_round: Callable[[RoundReport], None] | None = None,
        checkpointer: Checkpointer | None = None,
        *,
        progress: bool | None = None,
    ) -> Learner:
        """Divide the images among clients and train.

        Args:
            images: a set in memory; by default the one named in the settings.
            after_round: called with each round's report, in place of a progress bar.
            checkpointer: writes checkpoints and resumes from the newest one.
            progress: whether to show a bar of the rounds; by default in terminals and notebooks.

        Raises:
            InputError: if files are missing or damaged or the partition is impossible.
        """
        run = self.config.run
        images = load_images(self.config) if images is None else images
        self.images, surrogate = prepared(images, self.config)
        self.partition: Partition | TaskStream = self.config.partition.split(self.images, run.seed)
        self._describe(self.images)
        stream = TaskStream.of(self.partition)
        models = [""] * len(stream.train[0])
        self._method = method_for_images(
            self.config, self.shape, len(self.class_names), surrogate, models
        )
        seen = stream.accumulated() if self._method.needs.former_stages else stream
        seen = seen.pooled() if self._method.pooled else seen
        data = [training_data(self.images, ids, self.config) for ids in seen.train]
        federation = Federation(
            self._method,
            Stream(data, seen.order),
            seed=run.seed,
            device=pick_device(run.device),
            cohort_size=run.cohort or None,
            uplink=self.config.uplink,
            robust=self.config.robust,
            workers=run.workers or torch.get_num_threads(),
        )
        by_stage = stream is self.partition
        evaluator = Evaluator(federation, stream, self.images, run.test_every, by_stage=by_stage)

        def each_round(report: RoundReport) -> None:
            evaluator(report)
            (after_round or moved)(report)

        shown = progress if after_round is None else False
        with rounds_bar(self.config.total_rounds, progress=shown, keep=False) as moved:
            if checkpointer:
                checkpointer.note_data(*self.images.identity())
                checkpointer.run(federation, each_round, evaluator)
            else:
                federation.run(each_round)
        self._state = federation.ready()
        self._rounds, self.stages_ = evaluator.table(), evaluator.stages()
        self.counts_ = evaluator.counts
        self.judged_ = {model.name: model.way or "" for model in evaluator.models}
        return self

    @classmethod
    def of_node(
        cls, config: ImageConfig, method: Method, state: State, images: ImageSet, counts: Counts
    ) -> Learner:
        """Return the fitted learner of a node, whose method is `behind_link`."""
        self = cls.recorded(config.flat())
        self._method, self._state, self._of_node = method, state, True
        self.images, self.counts_ = images, counts
        models = [(view, mask) for view in counts.views for mask in counts.masks]
        self._rounds = pd.DataFrame([{column(*m): counts.accuracy(*m) for m in models}])
        self._describe(images)
        return self

    @property
    def rounds_(self) -> pd.DataFrame:
        """One row per round: losses, bytes, seconds, and accuracy by model and mask.

        Those of a loaded learner are its run's; a folder of `save` has none.
        """
        if self._rounds_file:
            with reading(self._rounds_file, "as a table of rounds", "run it again"):
                return pd.read_csv(self._rounds_file)
        return self._rounds

    def _describe(self, images: ImageSet) -> None:
        channels, height, width = images.images.shape[1:]
        self.shape, self.class_names = (channels, height, width), images.class_names

    def accuracy(self, view: str | None = None, mask: str = MASKS[0]) -> float:
        """Return the mean over clients of the test accuracy after the last round.

        Args:
            view: one of the judged models, a key of `judged_`; by default the first.
            mask: classes that predictions choose from: `all classes` or `own classes`.

        Raises:
            InputError: if it was loaded, as accuracy is counted on the images of a fit.
        """
        if not hasattr(self, "counts_"):
            raise InputError(
                "a loaded learner has no accuracy: it is counted on the test images of a fit; "
                "predict images whose classes are known, or fit it"
            )
        view = view or self.fitted()[0].views[0]
        return self.counts_.accuracy(view, mask)

    def predict(
        self, images: Tensor | np.ndarray, client: int, view: str | None = None
    ) -> np.ndarray:
        """Predict the classes of images with a client's model.

        Args:
            images: `(n, channels, height, width)` uint8, of the shape of the training images.
            client: number of the client, from 0; a method that pools data has one model for all.
            view: one of the method's models; by default its first.

        Returns:
            `(n,)` names of classes.

        Raises:
            InputError: if the images have another shape, or the client or model does not exist.
        """
        method, state = self.fitted()
        images, n = torch.as_tensor(images), len(state.clients)
        client = 0 if method.pooled else client
        if images.shape[1:] != self.shape or images.dtype != torch.uint8:
            raise InputError(
                f"images are {images.dtype} {tuple(images.shape[1:])}; the model expects uint8 "
                f"{self.shape}; resize them, see ImageSet.resized and as_rgb"
            )
        if not 0 <= client < n:
            raise InputError(f"client is {client}; there are clients 0 to {n - 1}")
        if view is not None and view not in method.views:
            raise choose(f"model of {method.name}", view, method.views)
        device = next(iter({**state.server, **state.clients.params}.values())).device
        data = ClientData({"x": images[None]}, torch.tensor([len(images)])).to(device)
        ids, rows = torch.tensor([client]), torch.tensor([0])
        parts = [torch.zeros(0, dtype=torch.long)]
        with torch.no_grad():
            for _, logits in predictions_of(method, state, data, ids, view, rows=rows):
                parts.append(logits[0].argmax(-1).cpu())
        return np.asarray(self.class_names)[torch.cat(parts).numpy()]

    def fitted(self) -> tuple[Method, State]:
        """Return the method and the state for predictions.

        Raises:
            InputError: if the learner is neither fitted nor loaded.
        """
        if self._method is None or self._state is None:
            raise InputError("this learner is not fitted; call fit or Learner.load first")
        return self._method, self._state

    def __repr__(self) -> str:
        """Name the method, the data, and the images and classes that it was fitted on."""
        run = f"Learner({self.config.method!r}, data={self.config.data.data!r})"
        fitted = f"images {self.shape}, {len(self.class_names)} classes" if self._state else "no"
        return f"<{run}, fitted: {fitted}>"

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save what `predict` needs, `learner.json` and `state.safetensors`, in a folder."""
        method, state = self.fitted()
        about = {
            "settings": self.config.flat(),
            "shape": self.shape,
            "classes": self.class_names,
            "round": state.round,
            "of_node": self._of_node,
        }
        model_files.write_model(
            Path(folder), DESCRIPTION, about, model_files.to_arrays(method, state)
        )
        return Path(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> Learner:
        """Load a learner from the folder of a run or of `save`; nothing is unpickled.

        The device for predictions may differ from the training's.

        Raises:
            InputError: if a file is missing, damaged or of another version; names the file.
        """
        rounds = Path(folder) / ROUNDS
        folder, about, arrays = model_files.read_model(Path(folder), DESCRIPTION, "Learner.save")
        with model_files.restoring(folder):
            self = cls.recorded({**about["settings"], "device": device})
            self.shape, self.class_names = tuple(about["shape"]), tuple(about["classes"])
            # A model needs at least 1,024 bytes of memory for each value of a pixel.
            check_size(1024 * math.prod(self.shape), "an image of that shape")
            seed, where = self.config.run.seed, pick_device(self.config.run.device)
            self._state = model_files.from_arrays(arrays, about["round"], seed, where)
            self._method = method_for_images(self.config, self.shape, len(self.class_names))
            if about.get("of_node"):
                self._of_node, self._method = True, behind_link(self._method)
            model_files.check_shapes(self._method, arrays, len(self._state.clients))
            self.predict(torch.zeros(1, *self.shape, dtype=torch.uint8), 0)
        self._rounds_file = rounds if rounds.exists() else None
        return self


def load_images(config: ImageConfig) -> ImageSet:
    """Load and resize the images named in the settings; cached for later runs."""
    data = config.data
    return _load(data.data, data.images, data.size or None)


_load = lru_cache(maxsize=2)(lambda name, root, size: load(name, root, size=size))


def training_data(images: ImageSet, ids: Sequence[Tensor], config: ImageConfig) -> ClientData:
    """Return the training samples of each client's images."""
    data = stacked_images(images, ids)
    return among_own_classes(data, len(images.class_names)) if config.data.within_task else data


def prepared(images: ImageSet, config: ImageConfig) -> tuple[ImageSet, ImageSet | None]:
    """Hold out the server's images and thin the clients' images to a long tail."""
    data, seed = config.data, config.run.seed
    surrogate = None
    if data.surrogate:
        images, surrogate = hold_out_for_server(images, data.surrogate, seed)
    return long_tailed(images, data.imbalance, seed), surrogate


def method_for_images(
    config: ImageConfig,
    shape: tuple[int, int, int],
    n_classes: int,
    surrogate: ImageSet | None = None,
    models: Sequence[str] = ("",),
) -> Method:
    """Build the configured method with a new model for images of a shape.

    Where clients have different models, `models` are their own, "" for one by turns.
    """
    model = MODELS[config.run.model]
    population = Population(
        partial(model, shape, n_classes, config.model_options),
        config.run.seed,
        config.training.mixed_precision,
    )
    batch = None
    if surrogate is not None:
        batch = {"x": surrogate.images[None], "y": surrogate.labels[None]}
    task = Classification(n_classes, batch)
    method = METHODS[config.method](population, task, config.training, config.method_options)
    if isinstance(population.model, MixedModel):
        check_shares_no_encoder(method)
        population.own = {KIND: population.model.kinds_of_clients(models)}
    return method
