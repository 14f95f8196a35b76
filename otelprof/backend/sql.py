"""All SQL of the backend, in ClickHouse's dialect: the schema and the few questions that are asked of it.

Values go in as server-side parameters only; what is put together here are constant pieces of text. Every key is a content
hash, so that writing the same twice does no harm: tables of names are ReplacingMergeTree. Measured choices (order of the
key, codecs, size per row, what fsync costs): docs/decisions/0016-store.md.
"""

# ruff: noqa: S608  only constants of this file are put together
from __future__ import annotations

from otelprof.backend.store import WEIGHTS, Selection, SpanSearch

DATABASE = "otelprof"
TENANT = "anonymous"
COUNTED, SYMBOLS = "samples", ("frames", "stacks", "series")

PREPARE = (
    "SET allow_suspicious_low_cardinality_types = 1",  # LowCardinality(UInt64) for stack ids saves a fifth of a row
    f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
)

_DURABLE = "fsync_after_insert = 1, fsync_part_directory = 1"
_KEPT = f"ttl_only_drop_parts = 1, {_DURABLE}"

SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS otelprof.samples (
        tenant LowCardinality(String),
        ts DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD),
        service LowCardinality(String),
        type LowCardinality(String),
        series_id UInt64 CODEC(ZSTD),
        stack_id LowCardinality(UInt64),
        value Int64 CODEC(T64, ZSTD),
        count UInt32 CODEC(T64, ZSTD),
        trace_hi UInt64 CODEC(ZSTD), trace_lo UInt64 CODEC(ZSTD), span_id UInt64 CODEC(ZSTD),
        profile_hi UInt64 CODEC(ZSTD), profile_lo UInt64 CODEC(ZSTD), content UInt64 CODEC(ZSTD),
        INDEX traces trace_lo TYPE bloom_filter(0.001) GRANULARITY 4,
        INDEX spans span_id TYPE bloom_filter(0.001) GRANULARITY 4
    ) ENGINE = MergeTree PARTITION BY toDate(ts) ORDER BY (tenant, service, type, series_id, ts)
    TTL toDateTime(ts) + INTERVAL {days} DAY SETTINGS {kept}""",
    """
    CREATE TABLE IF NOT EXISTS otelprof.stacks (
        tenant LowCardinality(String),
        stack_id UInt64,
        frames Array(UInt64) CODEC(ZSTD),
        last_seen Date
    ) ENGINE = ReplacingMergeTree(last_seen) ORDER BY (tenant, stack_id)
    TTL last_seen + INTERVAL {days} + 2 DAY SETTINGS {durable}""",
    """
    CREATE TABLE IF NOT EXISTS otelprof.frames (
        frame_id UInt64,
        kind LowCardinality(String), name String CODEC(ZSTD), system_name String CODEC(ZSTD), file String CODEC(ZSTD),
        module LowCardinality(String), build_id LowCardinality(String),
        line UInt32 CODEC(T64, ZSTD), start_line UInt32 CODEC(T64, ZSTD), address UInt64 CODEC(ZSTD),
        last_seen Date
    ) ENGINE = ReplacingMergeTree(last_seen) ORDER BY frame_id
    TTL last_seen + INTERVAL {days} + 2 DAY SETTINGS {durable}""",
    """
    CREATE TABLE IF NOT EXISTS otelprof.series (
        tenant LowCardinality(String),
        series_id UInt64,
        service LowCardinality(String),
        type LowCardinality(String),
        labels Map(LowCardinality(String), String),
        first_seen SimpleAggregateFunction(min, DateTime64(3, 'UTC')),
        last_seen SimpleAggregateFunction(max, DateTime64(3, 'UTC'))
    ) ENGINE = AggregatingMergeTree ORDER BY (tenant, service, type, series_id, labels)
    TTL toDateTime(last_seen) + INTERVAL {days} + 2 DAY SETTINGS {durable}""",
    """
    CREATE TABLE IF NOT EXISTS otelprof.spans (
        tenant LowCardinality(String),
        trace_hi UInt64, trace_lo UInt64, span_id UInt64, parent_id UInt64,
        service LowCardinality(String), name LowCardinality(String),
        start DateTime64(9, 'UTC') CODEC(Delta, ZSTD), duration Int64 CODEC(T64, ZSTD),
        attributes Map(LowCardinality(String), String)
    ) ENGINE = MergeTree PARTITION BY toDate(start) ORDER BY (tenant, trace_hi, trace_lo, start)
    TTL toDateTime(start) + INTERVAL {days} DAY SETTINGS {kept}""",
)


def schema(days: int) -> list[str]:
    """The statements that make the tables, with samples kept for `days`."""
    return [text.replace("{days} + 2", str(days + 2)).format(days=days, kept=_KEPT, durable=_DURABLE) for text in SCHEMA]


DAYS = """
    SELECT DISTINCT partition_id AS day FROM system.parts
    WHERE database = 'otelprof' AND table IN ('samples', 'spans') AND active ORDER BY day"""


def drop_day(table: str, day: str) -> str:
    """The statement that drops a day (`20261201`) of a table."""
    return f"ALTER TABLE otelprof.{table} DROP PARTITION ID '{int(day):08d}'"


LIMITS = "SETTINGS max_execution_time = 30, max_threads = 4, max_memory_usage = 2000000000"

_CLAMPED = "toInt64(least(greatest(sum(toInt128({0})), -9223372036854775807), 9223372036854775807))"

SEEN_SERIES = f"""
    SELECT series_id, any(type) AS type, any(labels) AS labels,
        toUnixTimestamp64Milli(min(first_seen)) AS first, toUnixTimestamp64Milli(max(last_seen)) AS last
    FROM otelprof.series WHERE tenant = '{TENANT}' GROUP BY series_id"""

LAST_SAMPLES = f"""
    SELECT series_id, toUnixTimestamp64Milli(max(ts)) AS last FROM otelprof.samples
    WHERE tenant = '{TENANT}' AND ts >= now64(3) - INTERVAL 2 DAY GROUP BY series_id"""

RECENT_PROFILES = f"""
    SELECT DISTINCT profile_hi, profile_lo, content FROM otelprof.samples
    WHERE tenant = '{TENANT}' AND ts >= fromUnixTimestamp64Milli({{since:Int64}}) AND (profile_hi != 0 OR profile_lo != 0)"""

STACKS = f"""
    SELECT stack_id, any(frames) AS frames FROM otelprof.stacks
    WHERE tenant = '{TENANT}' AND stack_id IN {{keys:Array(UInt64)}} GROUP BY stack_id {LIMITS}"""

FRAMES = f"""
    SELECT frame_id, any(kind) AS kind, any(name) AS name, any(system_name) AS system_name, any(file) AS file,
        any(module) AS module, any(build_id) AS build_id, any(line) AS line, any(start_line) AS start_line,
        any(address) AS address
    FROM otelprof.frames WHERE frame_id IN {{keys:Array(UInt64)}} GROUP BY frame_id {LIMITS}"""


def sums(selection: Selection) -> str:
    """The value of each stack of a selection: columns stack_id, value."""
    return _summed(selection, ["toUInt64(stack_id) AS stack_id"], "stack_id")


def points(selection: Selection) -> str:
    """The value of each series per step (parameter `step`, milliseconds): columns series_id, t, value."""
    time = "intDiv(toUnixTimestamp64Milli(ts), {step:Int64}) * {step:Int64} AS t"
    return _summed(selection, ["series_id", time], "series_id, t")


def linked(by_span: bool, order: str, selection: Selection) -> str:
    """What traces or their spans weigh: columns trace_hi, trace_lo, span_id and one for each of WEIGHTS."""
    group = "trace_hi, trace_lo, span_id" if by_span else "trace_hi, trace_lo"
    columns = [
        f"{_CLAMPED.format(f'if(type = {{{name}:String}}, value, 0)')} AS {name}" for name in WEIGHTS
    ]  # the names are constants of ours
    where = f"{_conditions(selection)} AND trace_lo != 0 GROUP BY {group}"
    return f"SELECT {group}, {', '.join(columns)} {where} ORDER BY {order} DESC, {group} LIMIT {{limit:Int64}} {LIMITS}"


ROOTS = f"""
    SELECT trace_hi, trace_lo, argMin(span_id, rank) AS root, argMin(parent_id, rank) AS above,
        argMin(service, rank) AS root_service, argMin(name, rank) AS root_name,
        argMin(toUnixTimestamp64Nano(start), rank) AS began, argMin(duration, rank) AS lasted, uniqExact(span_id) AS spans
    FROM (SELECT *, (parent_id != 0, start, span_id) AS rank FROM otelprof.spans WHERE tenant = '{TENANT}'
        AND trace_lo IN {{traces_lo:Array(UInt64)}} AND (trace_hi, trace_lo) IN {{traces:Array(Tuple(UInt64, UInt64))}})
    GROUP BY trace_hi, trace_lo {LIMITS}"""

_SPAN_KINDS = {
    "": "",
    "root": " AND parent_id = 0",
    "gpu": " AND mapContains(attributes, 'cuda.stream') AND NOT startsWith(name, 'launch ')",
}


def spans(search: SpanSearch) -> str:
    """Spans, each once: columns trace_hi, trace_lo, span_id, parent_id, service, name, began, duration, attributes."""
    parts = [
        "start >= fromUnixTimestamp64Milli({start:Int64}) AND start <= fromUnixTimestamp64Milli({end:Int64})",
        *(
            ["trace_lo IN {traces_lo:Array(UInt64)} AND (trace_hi, trace_lo) IN {traces:Array(Tuple(UInt64, UInt64))}"]
            if search.traces
            else []
        ),
        *(["service IN {services:Array(String)}"] if search.services is not None else []),
    ]
    order = "duration DESC, trace_hi, trace_lo" if search.kind == "root" else "began, span_id"
    return f"""
    SELECT trace_hi, trace_lo, span_id, parent_id, service, name, toUnixTimestamp64Nano(start) AS began, duration, attributes
    FROM otelprof.spans WHERE tenant = '{TENANT}' AND {" AND ".join(parts)}{_SPAN_KINDS[search.kind]}
    ORDER BY {order} LIMIT 1 BY trace_hi, trace_lo, span_id LIMIT {{limit:Int64}} {LIMITS}"""


def _summed(selection: Selection, columns: list[str], group: str) -> str:
    """A sum over a selection; of types that hold a state, over the last value of each series and stack."""
    where = _conditions(selection)
    if not selection.last_value:
        return f"SELECT {', '.join(columns)}, {_CLAMPED.format('value')} AS value {where} GROUP BY {group} {LIMITS}"
    names = dict.fromkeys(["series_id", "stack", *group.split(", ")])
    inner = dict.fromkeys(["series_id", "toUInt64(stack_id) AS stack", *columns])
    last = f"SELECT {', '.join(inner)}, argMax(value, ts) AS held {where} GROUP BY {', '.join(names)}"
    return f"SELECT {group}, {_CLAMPED.format('held')} AS value FROM ({last}) GROUP BY {group} {LIMITS}"


def _conditions(selection: Selection) -> str:
    parts = [
        f"FROM otelprof.samples WHERE tenant = '{TENANT}'",
        "type = {type:String}" if selection.type else "type IN {types:Array(String)}",
        "ts >= fromUnixTimestamp64Milli({start:Int64}) AND ts <= fromUnixTimestamp64Milli({end:Int64})",
    ]
    if selection.series is not None:
        parts.append("service IN {services:Array(String)} AND series_id IN {series:Array(UInt64)}")
    if selection.traces:
        parts.append("trace_lo IN {traces_lo:Array(UInt64)} AND (trace_hi, trace_lo) IN {traces:Array(Tuple(UInt64, UInt64))}")
    if selection.spans:
        parts.append("span_id IN {spans:Array(UInt64)}")
    if selection.profiles:
        parts.append("(profile_hi, profile_lo) IN {profiles:Array(Tuple(UInt64, UInt64))}")
    if selection.stacks is not None:
        parts.append("stack_id IN {stacks:Array(UInt64)}")
    return " AND ".join(parts)
