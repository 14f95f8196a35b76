"""`otelprof check-otlp`: files of every form, each violation a line with its place, the exit status."""

import io
import json
import sys

import pytest

from otelprof.cli import run_command
from otelprof.formats.otlp_json import to_json
from otelprof.otlp.encode import encode_profiles
from otelprof.testing import sample_batch
from tests.unit.otlp_requests import simple

GOOD = encode_profiles(sample_batch({"main;work": 3, "main": 1}, attributes={"service.name": "shop"}))[0]


@pytest.fixture
def run(capsys):
    def command(*arguments):
        status = run_command(["check-otlp", *map(str, arguments)])
        return status, *capsys.readouterr()

    return command


def test_what_we_write_is_good_in_both_forms(run, tmp_path):
    (tmp_path / "one.pb").write_bytes(GOOD.data)
    (tmp_path / "lines.jsonl").write_text(f"{to_json(GOOD)}\n{to_json(GOOD)}\n")
    status, out, err = run(tmp_path / "one.pb", tmp_path / "lines.jsonl")
    assert (status, out, err) == (0, "", "otelprof: 2 files: good\n")


def test_a_document_over_many_lines_is_one_request(run, tmp_path):
    (tmp_path / "pretty.json").write_text(json.dumps(json.loads(to_json(GOOD)), indent=2))
    assert run(tmp_path / "pretty.json")[0] == 0


def test_each_violation_is_a_line_with_file_rule_and_path(run, tmp_path):
    file = tmp_path / "other.pb"
    request = simple()  # without a scope, with one location for each use of a frame
    file.write_bytes(request.data())
    status, out, err = run(file)
    lines = out.splitlines()
    assert status == 1
    assert f"{file}: parca/scope: resource_profiles[0].scope_profiles[0]: has no scope with a name" in lines
    assert err == f"otelprof: {len(lines)} violations in 1 files\n"
    assert all(line.split(": ")[1].count("/") == 1 for line in lines)


def test_a_line_of_json_lines_is_named_by_its_number(run, tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text(f"{to_json(GOOD)}\n{{}}\n")
    status, out, _ = run(file)
    assert status == 1
    assert f"{file}:2: profcheck/zero: mapping_table: is empty; row 0 must be the zero value" in out.splitlines()


def test_json_has_one_object_a_violation(run, tmp_path):
    (tmp_path / "bad.pb").write_bytes(b"\xff\xff")
    status, out, _ = run("--json", tmp_path / "bad.pb")
    (found,) = json.loads(out)
    assert status == 1
    assert (found["file"], found["rule"], found["line"]) == (str(tmp_path / "bad.pb"), "otlp/malformed", 0)


def test_samples_numbered_as_before_v1_10_are_told_as_such(run, tmp_path):
    request = simple()
    for sample in request.current.samples:
        sample.ClearField("values")
        sample.attribute_indices[:] = [100]
    (tmp_path / "old.pb").write_bytes(request.data())
    status, out, _ = run(tmp_path / "old.pb")
    assert status == 1
    assert "otlp/malformed: the samples have the field numbers of an older revision" in out


def test_standard_input_and_a_file_that_is_not_there(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.data)))
    assert run("-")[0] == 0
    status, out, _ = run(tmp_path / "none.pb")
    assert (status, out) == (1, f"{tmp_path}/none.pb: file/unreadable: No such file or directory; name a readable file\n")


@pytest.mark.parametrize("arguments", [[], ["--nonsense", "x"]])
def test_wrong_use_is_exit_status_2(run, arguments):
    assert run(*arguments)[0] == 2


def test_the_help_names_it(capsys):
    assert run_command(["--help"]) == 0
    assert "check-otlp" in capsys.readouterr().out
