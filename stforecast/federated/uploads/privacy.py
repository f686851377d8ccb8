"""Privacy accounting of the Gaussian mechanism on uploads.

The guarantee holds for each client against everyone, including the server (local differential
privacy): its whole training series may be replaced by any other. A client's clipped upload then
changes by at most twice the clipping norm. Sampling of clients gives no amplification, since the
server sees who uploads. Selecting the best round by a validation loss is not accounted for.

Needs the extra `privacy` (dp-accounting, maintained by Google).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_prep.errors import InputError
from stforecast.federated.uploads.uplink import Uplink

NOT_COVERED = ("numbers of samples", "validation losses and the choice of the best round")
"""What every run shares without noise."""


def epsilon(uplink: Uplink, uploads: int) -> float:
    """Return ε of a client that sent `uploads` uploads, at δ = `uplink.privacy_delta`.

    Args:
        uplink: uplink with a clipping norm and Gaussian noise.
        uploads: number of the client's uploads.

    Raises:
        InputError: if the accountant is not installed.
    """
    try:
        import dp_accounting
    except ImportError as e:
        raise InputError(
            "privacy accounting needs dp-accounting; pip install 'stforecast[privacy]'"
        ) from e
    noise_multiplier = uplink.noise_std / (2 * uplink.clip)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), uploads)
    return float(accountant.get_epsilon(uplink.privacy_delta))


def guarantee(
    uplink: Uplink, uploads: int, of: str, shared: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the entry `privacy` of a run's results; empty without the Gaussian mechanism.

    Args:
        uplink: settings of the uploads.
        uploads: number of a client's uploads.
        of: what of a client is protected.
        shared: what else crosses clients without noise.
    """
    if not uplink.private or not uploads:
        return {}
    found = {"epsilon": epsilon(uplink, uploads), "delta": uplink.privacy_delta}
    about = {"of": of, "uploads": uploads, "not_covered": [*NOT_COVERED, *shared]}
    return {"privacy": {**found, **about}}
