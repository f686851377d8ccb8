"""Parameters of a forecaster, read and set as scikit-learn does."""

from __future__ import annotations

from typing import Any, Self


class Parameters:
    """Base of an estimator whose parameters are a method's name and flat settings.

    `sklearn.base.clone`, `GridSearchCV` and the like work with it.

    Args:
        method: name of a method.
        **settings: any setting of `stforecast.config`.
    """

    def __init__(self, method: str, **settings: Any) -> None:
        self._given = {"method": method, **settings}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the method and the settings as they were given; others have their defaults.

        Args:
            deep: without effect; no setting is an estimator.
        """
        return dict(self._given)

    def set_params(self, **settings: Any) -> Self:
        """Change settings; the forecaster is then to be fitted again.

        Args:
            **settings: `method`, or any setting of `stforecast.config`.

        Raises:
            InputError: for an unknown method, setting or value.
        """
        type(self).__init__(self, **{**self._given, **settings})
        return self

    def __sklearn_tags__(self) -> Any:
        """Return the properties that scikit-learn asks of an estimator."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(allow_nan=True),
        )
