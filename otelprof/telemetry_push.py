"""The agent's own counters by OTLP, through opentelemetry-sdk, for each periodic reader of service.telemetry.metrics.

The SDK is imported when a reader is configured and not before: it costs half a second and some 10 MB. A counter's name leaves
without `_total`, which Prometheus adds again. What goes wrong is said once, and never touches the profiles.
"""

from __future__ import annotations

import logging
import platform
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from otelprof import __version__
from otelprof.config.telemetry import OtlpPush, Periodic
from otelprof.counters import CATALOGUE, Counters, Metric, MetricKind
from otelprof.errors import OtelprofError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider

log = logging.getLogger(__name__)

_SAY_AGAIN = 600.0  # seconds


class Pushes:
    """All periodic readers of a configuration, from `start` to `stop`."""

    def __init__(self, readers: Sequence[Periodic], counters: Counters) -> None:
        self._readers, self._counters = readers, counters
        self._provider: MeterProvider | None = None

    def start(self) -> None:
        """Begin to send; OtelprofError when a certificate can't be read."""
        if not self._readers:
            return
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  see the module's text
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        sdk = logging.getLogger("opentelemetry")
        sdk.handlers[:], sdk.propagate = [_Once()], False
        facts = {"service.name": "otelprof", "service.version": __version__, "service.instance.id": str(uuid.uuid4())}
        readers = [
            PeriodicExportingMetricReader(
                _exporter(one), export_interval_millis=one.interval, export_timeout_millis=one.timeout
            )
            for one in self._readers
        ]
        resource = Resource({**facts, "host.name": platform.node()})
        self._provider = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._observe(self._provider)

    def _observe(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("otelprof", __version__)
        for metric in CATALOGUE.values():
            make = meter.create_observable_counter if metric.kind is MetricKind.COUNTER else meter.create_observable_gauge
            make(metric.name.removesuffix("_total"), [self._reading(metric)], description=metric.meaning)

    def _reading(self, metric: Metric) -> Any:
        """What the SDK calls for the values of one metric."""
        from opentelemetry.metrics import Observation  # noqa: PLC0415

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            for found, labels, value in self._counters.read():
                if found is metric:
                    yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

        return observe

    def stop(self, deadline: float) -> None:
        """Send the last values and end, at the latest at `deadline` (CLOCK_MONOTONIC seconds)."""
        if self._provider is None:
            return
        left = max(0.1, deadline - time.monotonic())
        ending = threading.Thread(target=self._shut_down, args=(self._provider, left), name="telemetry push", daemon=True)
        ending.start()
        ending.join(left)
        self._provider = None

    @staticmethod
    def _shut_down(provider: MeterProvider, seconds: float) -> None:
        try:
            provider.shutdown(timeout_millis=seconds * 1000)
        except Exception as error:  # the SDK's end must not become ours
            log.debug("the last metrics weren't sent: %s", error)


class _Once(logging.Handler):
    """Turns what the SDK says at each try into one line now and then."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said = -_SAY_AGAIN

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, unless something was said a short while ago."""
        if time.monotonic() - self._said >= _SAY_AGAIN:
            self._said = time.monotonic()
            log.warning("service.telemetry: metrics can't be sent: %s", record.getMessage())


def _exporter(reader: Periodic) -> Any:
    settings = reader.exporter.otlp
    headers = {header.name.lower(): header.value for header in settings.headers}
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter  # noqa: PLC0415

        credentials = grpc.ssl_channel_credentials(_certificate(settings))
        insecure = settings.insecure or settings.endpoint.startswith("http://")
        return OTLPMetricExporter(
            endpoint=settings.endpoint,
            insecure=insecure,
            credentials=None if insecure else credentials,
            headers=headers,
            timeout=reader.timeout / 1000,
        )
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter  # noqa: PLC0415

    _certificate(settings)
    certificate = str(settings.certificate) if settings.certificate else None
    return HttpExporter(endpoint=_url(settings), certificate_file=certificate, headers=headers, timeout=reader.timeout / 1000)


def _url(settings: OtlpPush) -> str:
    """The whole URL for metrics over HTTP."""
    whole = settings.endpoint if "://" in settings.endpoint else f"http{'' if settings.insecure else 's'}://{settings.endpoint}"
    return whole if whole.endswith("/v1/metrics") else f"{whole.rstrip('/')}/v1/metrics"


def _certificate(settings: OtlpPush) -> bytes | None:
    if settings.certificate is None:
        return None
    try:
        return settings.certificate.read_bytes()
    except OSError as error:
        raise OtelprofError(f"service.telemetry: {settings.certificate} can't be read: {error.strerror}") from None
