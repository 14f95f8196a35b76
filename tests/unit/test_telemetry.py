"""The agent's page: counters for Prometheus and two probes."""

import select
import socket
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from otelprof.agent import own_cost
from otelprof.counters import QUEUE_BYTES, SAMPLES_LOST, SAMPLES_SEEN, Counters
from otelprof.errors import OtelprofError
from otelprof.telemetry import Page, exposition

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url):
    try:
        with OPENER.open(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_counters_are_exposed_under_their_full_names_with_labels():
    counters = Counters()
    counters.add(SAMPLES_SEEN, 7)
    counters.add(SAMPLES_LOST, 2, 'ring "full"\n')
    counters.set(QUEUE_BYTES, 1.5, "otlp_grpc/2")
    text = exposition(counters).decode()

    assert "otelprof_samples_seen_total 7.0\n" in text
    samples = {(s.name, *s.labels.values()): s.value for family in text_string_to_metric_families(text) for s in family.samples}
    assert samples == {
        ("otelprof_samples_seen_total",): 7,
        ("otelprof_samples_lost_total", 'ring "full"\n'): 2,
        ("otelprof_queue_bytes", "otlp_grpc/2"): 1.5,
    }


def test_the_page_serves_metrics_health_and_readiness():
    ready = False
    page = Page(("127.0.0.1", 0), Counters(), lambda: ready)
    url = page.start()
    try:
        assert get(f"{url}/healthz") == (200, "ok\n")
        assert get(f"{url}/readyz")[0] == 503
        ready = True
        assert get(f"{url}/readyz") == (200, "ready\n")
        assert get(f"{url}/metrics?x=1")[0] == 200
        assert get(f"{url}/other")[0] == 404
    finally:
        page.stop()
        page.stop()


def test_many_silent_clients_do_not_keep_the_page_from_answering_for_good():
    page = Page(("127.0.0.1", 0), Counters(), lambda: True)
    url = page.start()
    host, port = url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(40)]
    refused = set()
    try:
        while len(refused) < 40 - 16:  # 16 are served at once; a refused one reads the end of its connection
            found = set(select.select([sock for sock in silent if sock not in refused], [], [], 10)[0])
            assert found, f"only {len(refused)} of 40 were refused"
            refused |= found
    finally:
        for sock in silent:
            sock.close()
        page.stop()


def test_a_port_that_is_taken_is_one_line_that_says_what_to_set():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OtelprofError, match=rf"can't listen on 127\.0\.0\.1:{port}: Address already in use; set service"):
            Page(("127.0.0.1", port), Counters(), lambda: True).start()


def test_an_ipv6_address_is_written_in_brackets():
    page = Page(("::1", 0), Counters(), lambda: True)
    try:
        assert get(f"{page.start()}/healthz")[0] == 200
    finally:
        page.stop()


def test_the_agent_counts_its_own_cpu_and_memory():
    found = {metric.name: value for metric, _, value in own_cost()}
    assert 0 < found["otelprof_process_cpu_seconds_total"] <= time.process_time()
    assert 1 << 20 < found["otelprof_process_resident_bytes"] < 1 << 36
