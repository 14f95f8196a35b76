"""Resources: what the receiver saw, what the process says of itself, what the machine is."""

import numpy as np
import pytest

from otelprof.batch import Interner
from otelprof.component import Build
from otelprof.processes.identity import Facts
from otelprof.processes.resource import process_resource
from otelprof.processors.resource_detection import detectors
from otelprof.processors.resource_detection.config import Settings
from otelprof.processors.resource_detection.factory import FACTORY
from otelprof.testing import RecordingConsumer, RecordingHost, sample_batch

ENV_NAME, ENV_ATTRIBUTES = detectors.ENV_SERVICE_NAME, detectors.ENV_RESOURCE_ATTRIBUTES


def processor(*names):
    consumer = RecordingConsumer()
    made = FACTORY.create(Build("resource_detection", Settings(tuple(names)) if names else Settings(), consumer))
    made.start(RecordingHost())
    return made, consumer


def detected(attributes, *names):
    """The attributes that come out for a process with these."""
    made, consumer = processor(*names)
    made.consume(sample_batch({"main": 1}, attributes=attributes))
    batch = consumer.batches[0]
    return dict(batch.interner.resources[int(batch.samples["resource"][0])].attributes)


def test_a_process_is_named_by_its_environment_before_its_script():
    seen = {
        "service.name": "train",
        ENV_NAME: "shop",
        ENV_ATTRIBUTES: "service.name=other,deployment.environment.name=prod%20eu",
    }

    assert detected(seen, "env") == {
        "process.pid": 1,
        "service.name": "shop",
        "deployment.environment.name": "prod eu",
    }


def test_without_the_env_detector_the_variables_do_not_leave_either():
    assert detected({ENV_NAME: "shop", "service.name": "train"}, "process") == {"process.pid": 1, "service.name": "train"}


def test_a_process_cannot_pass_for_another_one():
    seen = {"container.id": "c1", ENV_ATTRIBUTES: "process.pid=7,container.id=c2,host.name=pod-3"}
    found = detected(seen, "env", "host", "container")

    assert (found["process.pid"], found["container.id"], found["host.name"]) == (1, "c1", "pod-3")


def test_a_service_without_a_name_is_called_after_its_executable():
    assert detected({"process.executable.name": "nginx"}, "process")["service.name"] == "nginx"
    assert detected({}, "process")["service.name"] == "unknown_service"


def test_the_container_goes_only_where_it_is_wanted():
    assert "container.id" not in detected({"container.id": "c1"}, "env")
    assert detected({"container.id": "c1"}, "container")["container.id"] == "c1"


def test_the_machine_is_described_by_default():
    found = detected({})

    assert found["os.type"] == "linux"
    assert found["host.name"]


@pytest.mark.parametrize("text", ["novalue", "=x", "a=1,b", "a b=1", "a=%ff", ",".join(f"k{n}=v" for n in range(100))])
def test_malformed_attributes_are_dropped_whole_with_one_note(text, caplog):
    made, consumer = processor("env")
    for _ in range(2):
        made.consume(sample_batch({"main": 1}, attributes={ENV_ATTRIBUTES: text}))
    batch = consumer.batches[0]

    assert batch.interner.resources[int(batch.samples["resource"][0])].attributes == (("process.pid", 1),)
    assert len([record for record in caplog.records if "malformed" in record.getMessage()]) == 1


@pytest.mark.parametrize(
    ("text", "found"), [("", {}), (" a = 1 , ", {"a": "1"}), ("a=b=c", {"a": "b=c"}), ("ä=%C3%A4", {"ä": "ä"})]
)
def test_attributes_are_read_as_the_specification_says(text, found):
    assert detectors.parse_attributes(text) == (found, False)


def test_each_resource_is_made_once_and_only_its_column_changes():
    made, consumer = processor("process")
    interner = Interner()
    for pid in (1, 2, 1):
        made.consume(sample_batch({"main;work": 2, "main": 1}, pid=pid, interner=interner))
    one, two, three = (batch.samples for batch in consumer.batches)

    assert len(interner.resources) == 1 + 2 + 2  # none, as seen, as detected
    assert one["resource"][0] == three["resource"][1] != two["resource"][0]
    for name in ("value", "stack", "thread", "type"):
        assert np.array_equal(one[name], three[name])
    assert not one.flags.writeable


def test_what_passed_once_passes_a_second_time_unchanged():
    first, consumer = processor()
    first.consume(sample_batch({"main": 1}))
    second, again = processor()
    second.consume(consumer.batches[0])

    assert again.batches[0].samples is consumer.batches[0].samples


def test_generations_are_kept_apart():
    made, consumer = processor("process")
    for number in range(20):
        made.consume(sample_batch({"main": 1}, pid=number + 1, attributes={"process.executable.name": f"p{number}"}))

    names = [batch.interner.resources[int(batch.samples["resource"][0])].get("service.name") for batch in consumer.batches]
    assert names == [f"p{number}" for number in range(20)]


def test_kubernetes_is_told_by_the_agents_own_environment():
    assert detectors.kubernetes({"K8S_NODE_NAME": "n1", "K8S_CLUSTER_NAME": ""}) == {"k8s.node.name": "n1"}


def test_gpu_models_come_from_the_drivers_files(tmp_path):
    for number, name in enumerate(("H200", "L4")):
        place = tmp_path / f"0000:0{number}:00.0"
        place.mkdir()
        (place / "information").write_text(f"Model: \t\t NVIDIA {name}\nIRQ: 7\nGPU UUID: \t GPU-{number}\n")
    (tmp_path / "empty").mkdir()

    assert detectors.gpu_models(tmp_path) == {"GPU-0": "NVIDIA H200", "GPU-1": "NVIDIA L4"}
    assert detectors.gpu_models(tmp_path / "none") == {}


def test_the_facts_of_a_process_become_its_resource():
    facts = Facts(
        7,
        executable_path="/usr/bin/python3.11",
        command="python3",
        service="train",
        start_time=1_700_000_000_123_456_789,
        environment=(("OTEL_SERVICE_NAME", "shop"),),
    )

    assert dict(process_resource(facts, "cpython", "3.11.2").attributes) == {
        "process.pid": 7,
        "process.executable.name": "python3.11",
        "process.executable.path": "/usr/bin/python3.11",
        "process.command": "python3",
        "process.creation.time": "2023-11-14T22:13:20.123Z",
        "process.runtime.name": "cpython",
        "process.runtime.version": "3.11.2",
        "service.name": "train",
        ENV_NAME: "shop",
    }
