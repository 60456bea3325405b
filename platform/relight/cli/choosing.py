"""The options by which commands choose events and deliveries: declared once, for all commands that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from relight.cli.inspection import Inspection
from relight.cli.target import Context, Kubeconfig, Namespace


def _text(name: str, metavar: str, help_: str) -> Any:
    return Annotated[str | None, typer.Option(f"--{name}", metavar=metavar, help=help_, show_default=False)]


_CHOICES: Mapping[str, Any] = {
    "trigger": _text("trigger", "NAME", "Only of this Trigger."),
    "broker": _text("broker", "NAME", "Only of this broker; channels/NAME is a channel."),
    "type": _text("type", "TYPE", "Only of this type."),
    "id": _text("id", "ID", "Only this event."),
    "where": _text("where", "CESQL", "Only what an expression says yes to."),
    "reason": _text("reason", "TEXT", "Only where the reason holds this text."),
}
DELIVERY = tuple(_CHOICES)
"""What chooses deliveries; an event alone has no Trigger and no reason."""
_TARGET: Mapping[str, Any] = {"namespace": Namespace, "kubeconfig": Kubeconfig, "context": Context}


@dataclass(frozen=True)
class Chosen:
    """What the options say."""

    inspection: Inspection
    """Of the broker that they name."""
    fields: Mapping[str, str | None]
    """By the names that the broker knows them by; None: of any."""

    def with_(self, **more: str) -> dict[str, str | None]:
        return {**self.fields, **more}


def choosing(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options in front of its own, and those that name the platform behind them.

    The command gets them as its first argument, a ``Chosen``. typer reads the options from the signature.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        options = {name: _CHOICES[name] for name in names}

        def run(**given: Any) -> None:
            fields = {name: given.pop(name) for name in (*options, "namespace")}
            inspection = Inspection(given.pop("kubeconfig"), given.pop("context"))
            command(Chosen(inspection, fields), **given)

        listed = [*map(_parameter, options.items()), *own, *map(_parameter, _TARGET.items())]
        run.__doc__ = command.__doc__
        run.__annotations__ = {one.name: one.annotation for one in listed}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in listed]
        )
        return run

    return decorate


def _parameter(option: tuple[str, Any]) -> inspect.Parameter:
    name, annotation = option
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
