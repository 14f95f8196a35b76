"""An agent as a child of a test, and what it said of each process, read from its file by the schema alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.programs import Program, fetch, free_port, otelprof, wait_for

LAUNCHES = "gpu_kernel_launches/count"


class Agent(Program):
    """`otelprof run` with everything into one file of OTLP/JSON."""

    def __init__(
        self, work: Path, driver: Path, name: str = "agent", *, cuda: Mapping[str, Any] | None = None,
        stitch: Mapping[str, Any] | None = None, known: bool = True,
    ) -> None:  # fmt: skip
        """`cuda` and `stitch` are settings; `known` False: the driver's file is met when a process maps it."""
        self.address = f"http://127.0.0.1:{free_port()}"
        self.output = work / f"{name}.jsonl"
        watched = {"libraries": [str(driver)] if known else [], **(cuda or {})}
        ebpf = {"report_interval": "1s", "native_frames": False, "cuda": watched}
        route = {"receivers": ["ebpf"], "processors": ["resource_detection", "cuda_stitch"], "exporters": ["file"]}
        config = {
            "receivers": {"ebpf": ebpf},
            "processors": {"resource_detection": {}, "cuda_stitch": {"spans": "none", **(stitch or {})}},
            "exporters": {"file": {"path": str(self.output), "format": "otlp_json"}},
            "service": {
                "telemetry": {"metrics": {"address": self.address.removeprefix("http://")}},
                "pipelines": {"profiles": route},
            },
        }
        path = work / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        state = {"STATE_DIRECTORY": str(work / "state")}
        super().__init__([otelprof(), "run", "--config", str(path)], work, name, state)

    def wait_ready(self) -> None:
        """Until its programs are attached and the first scan is done."""
        wait_for(lambda: fetch(f"{self.address}/readyz")[0] == 200, 30, self)

    def metric(self, name: str) -> float:
        """Sum over all labels of one of its counters."""
        lines = fetch(f"{self.address}/metrics")[1].decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def lines(self) -> list[str]:
        """What it has written so far; a line that is being written isn't there yet."""
        text = self.output.read_text() if self.output.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def rows(self, kind: str, pid: int) -> Counter[tuple[tuple[str, ...], str]]:
        """Values of one type and process by (names root first without the leaf, leaf); native frames are left out."""
        found: Counter[tuple[tuple[str, ...], str]] = Counter()
        for line in self.lines():
            for names, value in samples(json.loads(line), kind, pid):
                found[names[:-1], names[-1]] += value
        return found

    def last(self, kind: str, pid: int) -> Counter[tuple[tuple[str, ...], str]]:
        """The same of the last request that has the type and process: for types that hold a state."""
        found: Counter[tuple[tuple[str, ...], str]] = Counter()
        for line in self.lines():
            of_line = [(names, value) for names, value in samples(json.loads(line), kind, pid)]
            if of_line:
                found = Counter({(names[:-1], names[-1]): value for names, value in of_line})
        return found


def samples(request: dict[str, Any], kind: str, pid: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """(names root first, native ones left out, value) of a request of OTLP/JSON, read by the schema alone."""
    tables = request.get("dictionary", {})
    strings = tables.get("stringTable", [""])
    for group in request.get("resourceProfiles", []):
        resource = {pair["key"]: pair["value"] for pair in group["resource"]["attributes"]}
        if int(resource.get("process.pid", {}).get("intValue", 0)) != pid:
            continue
        for profile in (profile for scope in group["scopeProfiles"] for profile in scope["profiles"]):
            sample_type = profile["sampleType"]
            if f"{strings[sample_type['typeStrindex']]}/{strings[sample_type['unitStrindex']]}" != kind:
                continue
            for sample in profile["samples"]:
                stack = tables["stackTable"][sample["stackIndex"]]["locationIndices"]
                shown = [index for index in reversed(stack) if frame_type(tables, strings, index) != "native"]
                yield tuple(name(tables, strings, index) for index in shown), sum(map(int, sample["values"]))


def frame_type(tables: dict[str, Any], strings: list[str], location: int) -> str:
    """The frame's `profile.frame.type`, empty for a mark."""
    for index in tables["locationTable"][location].get("attributeIndices", []):
        attribute = tables["attributeTable"][index]
        if strings[attribute["keyStrindex"]] == "profile.frame.type":
            return str(attribute["value"]["stringValue"])
    return ""


def name(tables: dict[str, Any], strings: list[str], location: int) -> str:
    """Name of the function at a location."""
    line = tables["locationTable"][location]["lines"][0]
    return strings[tables["functionTable"][line["functionIndex"]]["nameStrindex"]]
