"""Settings of FedTA; see `vision.methods.fedta`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from vision.methods.prompt_pool import PoolOptions


@dataclass(frozen=True)
class FedTAOptions(PoolOptions):
    """Settings of FedTA. The pool is that of the input enhancement.

    Attributes:
        pool_size: prompts M in the pool (paper: 10).
        prompt_length: tokens of a prompt (paper: 10).
        top_n: prompts N of an image, at most `pool_size` (related code: 1).
        vote: whether a training batch uses the prompts that most of its samples select.
        lambda1: weight λ₁ of the pull on the keys of selected prompts.
        standardise: whether features are standardised before they are compared with keys and mixed
            with anchors; the paper uses them as they are.
        anchors: number of tail anchors (paper: 100 in its counts, 500 best in its figure 5).
        mix: combination of feature and anchor: `interleave`, a `random` fixed order, or `add`.
        lambda2: weight λ₂ of the contrast with global prototypes.
        lambda3: weight λ₃ of the pull on the selected anchor's key.
        temperature: temperature τ of the contrast.
        threshold: average similarity (Thr) below which a global prototype is fixed.
        same_class: whether pairs of one class count as similarity `one` or are left out.
        head_epochs: epochs of the second stage, which trains the head that predicts; by default
            those of the first.
        fusion_epochs: the server's epochs on the surrogate set; by default the clients'.
        input_enhancement: whether there is a first stage; without it F_out is the frozen feature.
        tail_anchor: whether features are mixed with anchors (ablation "w/o TA": F_TA = F_out).
        fusion: whether pools are fused by distillation (ablation "w/o SIKF": averaged).
        selection: whether global prototypes are selected (ablation "w/o BGPS": averaged).
    """

    vote: bool = False
    lambda1: NonNegativeFloat = 0.1
    standardise: bool = True
    anchors: PositiveInt = 100
    mix: Literal["interleave", "random", "add"] = "interleave"
    lambda2: NonNegativeFloat = 1.0
    lambda3: NonNegativeFloat = 0.1
    temperature: PositiveFloat = 0.1
    threshold: float = 0.15
    same_class: Literal["one", "exclude"] = "one"
    head_epochs: PositiveInt | None = None
    fusion_epochs: PositiveInt | None = None
    input_enhancement: bool = True
    tail_anchor: bool = True
    fusion: bool = True
    selection: bool = True
