"""Through the real OpenTelemetry Collector: what the agent and the application send is what the backend and Tempo have."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.collector import SHIPPED, Backend, Collector, Tempo, agent, application, run_agent, session
from tests.e2e.programs import wait_for

CONFIGS = Path(__file__).parent / "collector_configs"
FRAGMENT = SHIPPED / "profiles-fragment.yaml"
TOKEN = "secret-of-the-gateway"
INSECURE = {"insecure": True}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("collector_binary")]


def plain_collector(path: Path, exporter: dict[str, object]) -> Path:
    """A Collector with nothing but profiles: in by OTLP on both ports, out by `exporter`."""
    protocols = {name: {"endpoint": f"127.0.0.1:${{env:OTLP_{name.upper()}}}"} for name in ("grpc", "http")}
    pipeline = {"receivers": ["otlp"], "exporters": list(exporter)}
    receivers = {"otlp": {"protocols": protocols}}
    path.write_text(
        yaml.safe_dump({"receivers": receivers, "exporters": exporter, "service": {"pipelines": {"profiles": pipeline}}})
    )
    return path


@pytest.mark.parametrize("way", ["otlp_grpc", "otlp_http"])
def test_what_the_agent_sends_is_what_the_backend_has(way: str, memory_backend: Backend, tmp_path: Path) -> None:
    session(tmp_path / "session.jsonl", 1000)

    def exporter(server: Backend | Collector) -> dict[str, object]:
        if way == "otlp_grpc":
            return {way: {"endpoint": f"127.0.0.1:{server.grpc}", "tls": INSECURE}}
        return {way: {"endpoint": f"http://127.0.0.1:{server.http}"}}

    config = plain_collector(tmp_path / "collector.yaml", exporter(memory_backend))
    with Collector(tmp_path, [config], {}) as middle:
        assert "samples=1000 " in run_agent(tmp_path, agent(tmp_path, exporter(middle)))
        wait_for(lambda: memory_backend.samples() == 1000, 20, middle)
    assert memory_backend.samples() == 1000
    assert memory_backend.services() == {"shop-100", "shop-101"}
    assert memory_backend.samples('{service_name="shop-100"}') == 500


@pytest.mark.parametrize("mine", ["traces-only", "all-signals", "gateway"])
def test_the_fragment_adds_profiles_to_a_collector_that_runs(
    mine: str, memory_backend: Backend, tempo: Tempo, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    env = {"TEMPO": str(tempo.port), "TOKEN": TOKEN, "CERT": str(cert), "KEY": str(key)}
    env["OTELPROF_BACKEND"] = f"127.0.0.1:{memory_backend.grpc}"
    secured = mine == "gateway"
    tls = {"ca_file": str(cert)} if secured else INSECURE
    headers = {"authorization": f"Bearer {TOKEN}"} if secured else {}
    with Collector(tmp_path, [CONFIGS / f"{mine}.yaml", FRAGMENT], env) as middle:
        spans = application(middle.grpc, 60, cert if secured else None, TOKEN if secured else "")
        session(tmp_path / "session.jsonl", 600, spans)
        exporter = {"otlp_grpc": {"endpoint": f"localhost:{middle.grpc}", "tls": tls, "headers": headers}}
        run_agent(tmp_path, agent(tmp_path, exporter, ("profiles", "traces")))
        wait_for(lambda: memory_backend.samples() >= 600 and memory_backend.spans() >= 120, 20, middle)
        wait_for(lambda: len(tempo.spans) >= 120, 20, middle)
    assert (memory_backend.samples(), memory_backend.spans(), len(tempo.spans)) == (600, 120, 120)
    assert memory_backend.samples(spanSelector=[spans[7][1]]) == 10


def test_a_gateway_refuses_an_agent_without_its_token_and_the_agent_says_so(
    memory_backend: Backend, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    env = {
        "TEMPO": "1",
        "TOKEN": TOKEN,
        "CERT": str(cert),
        "KEY": str(key),
        "OTELPROF_BACKEND": f"127.0.0.1:{memory_backend.grpc}",
    }
    session(tmp_path / "session.jsonl", 10)
    with Collector(tmp_path, [CONFIGS / "gateway.yaml", FRAGMENT], env) as middle:
        exporter = {"otlp_grpc": {"endpoint": f"localhost:{middle.grpc}", "tls": {"ca_file": str(cert)}}}
        assert run_agent(tmp_path, agent(tmp_path, exporter)).endswith("sent=0 unsent=2")
    assert "UNAUTHENTICATED" in (tmp_path / "agent.err").read_text()
    assert memory_backend.samples() == 0


def test_the_spans_fragment_points_every_span_to_its_profile_and_keeps_the_pipeline_s_processors(
    tempo: Tempo, tmp_path: Path
) -> None:
    env = {"TEMPO": str(tempo.port)}
    configs = [CONFIGS / "all-signals.yaml", SHIPPED / "spans-fragment.yaml"]
    with Collector(tmp_path, configs, env, ",+confmap.enableMergeAppendOption") as middle:
        spans = application(middle.grpc, 20)
        session(tmp_path / "session.jsonl", 1, spans)
        exporter = {"otlp_grpc": {"endpoint": f"localhost:{middle.grpc}", "tls": INSECURE}}
        run_agent(tmp_path, agent(tmp_path, exporter, ("traces",)))
        wait_for(lambda: len(tempo.spans) >= 40, 20, middle)
    pointed = {span: attributes["pyroscope.profile.id"] for span, attributes in tempo.spans.items()}
    own = {f"{number + 1:016x}": parent for number, (_, parent) in enumerate(spans)}
    assert pointed == {**{span: span for _, span in spans}, **own}


def test_the_agent_s_own_metrics_reach_a_collector(tempo: Tempo, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("exporters: {debug: {verbosity: detailed}}\n")
    session(tmp_path / "session.jsonl", 10)
    with Collector(tmp_path, [CONFIGS / "all-signals.yaml", tmp_path / "more.yaml"], {"TEMPO": str(tempo.port)}) as middle:
        config = agent(tmp_path, {"debug": {}})
        values = yaml.safe_load(config.read_text())
        push = {"interval": 60_000, "exporter": {"otlp": {"endpoint": f"http://127.0.0.1:{middle.grpc}"}}}
        values["service"]["telemetry"]["metrics"]["readers"] = [{"periodic": push}]
        config.write_text(yaml.safe_dump(values))
        run_agent(tmp_path, config)
        wait_for(lambda: "otelprof_samples_seen" in middle.log(), 20, middle)
    log = middle.log()
    assert "service.name: Str(otelprof)" in log
    assert "otelprof_process_cpu_seconds" in log


def test_without_the_feature_gate_or_a_profiles_pipeline_the_agent_says_what_is_missing(tempo: Tempo, tmp_path: Path) -> None:
    session(tmp_path / "session.jsonl", 10)
    with Collector(tmp_path, [CONFIGS / "traces-only.yaml"], {"TEMPO": str(tempo.port)}) as middle:
        exporter = {"otlp_grpc": {"endpoint": f"localhost:{middle.grpc}", "tls": INSECURE}}
        assert run_agent(tmp_path, agent(tmp_path, exporter)).endswith("sent=0 unsent=2")
    assert (
        "a Collector needs a profiles pipeline and --feature-gates=+service.profilesSupport"
        in (tmp_path / "agent.err").read_text()
    )
