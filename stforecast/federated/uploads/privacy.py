"""What the Gaussian mechanism on uploads guarantees, by a well-kept accountant.

The guarantee is each client's own, against everyone, the server included (local differential
privacy): its whole training series may be replaced by any other. A client's clipped upload then
moves by at most twice the clipping norm. Sampling of clients amplifies nothing here, since the
server sees who uploads. Choosing the best round by a validation loss is not accounted for.

Needs the extra `privacy` (dp-accounting, kept by Google).
"""

from __future__ import annotations

from data_prep.errors import InputError
from stforecast.federated.uploads.uplink import Uplink


def epsilon(uplink: Uplink, uploads: int) -> float:
    """ε of a client that sent `uploads` uploads, at δ = `uplink.privacy_delta`.

    Args:
        uplink: with a clipping norm and Gaussian noise.
        uploads: how often the client uploaded.

    Raises:
        InputError: if the accountant is not installed.
    """
    try:
        import dp_accounting
    except ImportError as e:
        raise InputError(
            "the privacy account needs dp-accounting; pip install 'stforecast[privacy]'"
        ) from e
    noise_multiplier = uplink.noise_std / (2 * uplink.clip)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), uploads)
    return float(accountant.get_epsilon(uplink.privacy_delta))
