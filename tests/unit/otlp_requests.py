"""Builds OTLP profiles requests for tests the plain way, one message after the other."""

import time

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Profile, Sample

PERIOD = 10_101_010
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
PROFILE_ID = bytes(range(1, 17))


class Builder:
    """One request with one resource; `profile` starts another profile in it. Stacks are given root first."""

    def __init__(self, service: str = "shop", start: int | None = None, padding: tuple[str, ...] = ()) -> None:
        self.request = ExportProfilesServiceRequest()
        self.tables = tables = self.request.dictionary
        tables.string_table.append("")
        for text in padding:  # moves all later string numbers
            self.text(text)
        for table in (tables.mapping_table, tables.location_table, tables.function_table, tables.link_table):
            table.add()
        tables.attribute_table.add()
        tables.stack_table.add()
        self.resource = self.request.resource_profiles.add()
        self.label("service.name", service)
        self.start = start or time.time_ns()
        self.current = self.profile()

    def text(self, text: str) -> int:
        """The number of a string."""
        strings = self.tables.string_table
        if text not in strings:
            strings.append(text)
        return list(strings).index(text)

    def label(self, key: str, value: str | int) -> None:
        """An attribute of the resource, inline."""
        attribute = self.resource.resource.attributes.add(key=key)
        if isinstance(value, int):
            attribute.value.int_value = value
        else:
            attribute.value.string_value = value

    def profile(
        self, kind: tuple[str, str] = ("samples", "count"), period: tuple[str, str, int] = ("cpu", "nanoseconds", PERIOD)
    ) -> Profile:
        """A further profile, which `sample` adds to from now on."""
        profile = self.resource.scope_profiles.add().profiles.add(time_unix_nano=self.start, duration_nano=10**9)
        profile.sample_type.type_strindex, profile.sample_type.unit_strindex = map(self.text, kind)
        profile.period_type.type_strindex, profile.period_type.unit_strindex = map(self.text, period[:2])
        profile.period = period[2]
        profile.profile_id = PROFILE_ID
        self.current = profile
        return profile

    def attribute(self, key: str, value: str | int) -> int:
        """The number of an attribute."""
        entry = self.tables.attribute_table.add(key_strindex=self.text(key))
        if isinstance(value, int):
            entry.value.int_value = value
        else:
            entry.value.string_value = value
        return len(self.tables.attribute_table) - 1

    def location(self, name: str, kind: str = "cpython", file: str = "app.py", line: int = 1) -> int:
        """A location with one line; without a name one without lines."""
        location = self.tables.location_table.add()
        if name:
            function = self.tables.function_table.add(name_strindex=self.text(name), filename_strindex=self.text(file))
            function.start_line = line
            location.lines.add(function_index=len(self.tables.function_table) - 1, line=line)
        if kind:
            location.attribute_indices.append(self.attribute("profile.frame.type", kind))
        return len(self.tables.location_table) - 1

    def stack(self, *names: str, kind: str = "cpython") -> int:
        """A stack, root first."""
        entry = self.tables.stack_table.add()
        entry.location_indices.extend(self.location(name, kind) for name in reversed(names))
        return len(self.tables.stack_table) - 1

    def link(self, trace: bytes, span: bytes) -> int:
        """The number of a link."""
        self.tables.link_table.add(trace_id=trace, span_id=span)
        return len(self.tables.link_table) - 1

    def sample(self, *names: str, values: tuple[int, ...] = (1,), **fields: object) -> Sample:
        """A sample of the current profile."""
        return self.current.samples.add(stack_index=self.stack(*names), values=values, **fields)

    def data(self) -> bytes:
        """The request's bytes."""
        return self.request.SerializeToString()


def simple(service: str = "shop", start: int | None = None) -> Builder:
    """Three samples, 10 in all."""
    builder = Builder(service, start)
    builder.sample("main", "work", "inner", values=(6,))
    builder.sample("main", "work", values=(3,))
    builder.sample("main", "idle", values=(1,))
    return builder
