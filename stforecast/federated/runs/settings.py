"""Settings of a run: flat names for users, one dataclass for each part of the system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from stforecast.federated.core import options

C = TypeVar("C")


class Settings(ABC, Generic[C]):
    """Resolves the settings of one kind of run; a subclass says what these are.

    Args:
        config: type of the resolved settings: the method, and a field for each section.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("model",)
    """Settings that the sections depend on, besides the method."""

    def __init__(self, config: Callable[..., C]) -> None:
        self.config = config

    @abstractmethod
    def methods(self) -> Iterable[str]:
        """Return the names of all methods."""

    @abstractmethod
    def defaults(self, method: str, model: str | None = None) -> dict[str, Any]:
        """Return a method's own defaults of shared settings, with those of `depends_on`.

        The help of the command line and `resolve` both start from them. With another `model` than
        the method's own, defaults of options of the latter are left out.
        """

    @abstractmethod
    def sections(self, method: str, *names: str) -> dict[str, type]:
        """Return the dataclass of each section, for a method and the values of `depends_on`."""

    @abstractmethod
    def conditions(self, method: str, chosen: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings that a method does not read, each with a condition as in `unread`."""

    def _sections(self, method: str, chosen: Mapping[str, Any]) -> dict[str, type]:
        return self.sections(method, *(str(chosen[name]) for name in self.depends_on))

    def unread(self, method: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings that are not read, each with its condition, "" if it is never read.

        The seed is read by all: one that draws no random numbers gives the same with every seed.
        """
        chosen = self.defaults(method, settings.get("model")) | dict(settings)
        found = options.unmet(self._sections(method, chosen).values(), chosen)
        found |= self.conditions(method, chosen)
        return {name: why for name, why in found.items() if name in settings}

    def check_read(self, method: str, settings: Mapping[str, Any]) -> None:
        """Refuse settings that a method does not read."""

        def readers(name: str) -> Iterator[str]:
            for other in self.methods():
                if self.unread(other, {name: settings[name]}).get(name) != "":
                    yield other

        options.check_none_unread(method, self.unread(method, settings), readers)

    def read_by(self, method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that are read, such as those of a record that has all."""
        left_out = self.unread(method, settings)
        return {name: value for name, value in settings.items() if name not in left_out}

    def resolve(self, method: str, **settings: Any) -> C:
        """Build the config from flat settings, with types checked and converted.

        Settings that the method does not read are accepted here, since records have all settings;
        see `check_read` for those that a user gives.

        Raises:
            InputError: for an unknown name (suggesting similar ones) or an invalid value.
        """
        chosen = self.defaults(method, settings.get("model")) | settings
        return self.config(
            method, **options.distribute(method, self._sections(method, chosen), chosen)
        )
