"""Types of command-line values that click doesn't have."""

from __future__ import annotations

import click

from otelprof.config.units import parse_duration


class Seconds(click.ParamType):
    """A duration: `30`, `1.5`, `30s`, `2m`; the value is seconds, above zero."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click.ParamType."""
        text = str(value)
        try:
            seconds = float(text) if text.replace(".", "", 1).isdecimal() else float(parse_duration(text))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not 0 < seconds < 1e9:
            self.fail("a duration above zero is needed, such as 30s", param, ctx)
        return seconds


SECONDS = Seconds()
