"""The queue of a GPU's jobs: order, room, what is alone, what failed, and going on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import yaml
from paths import ROOT
from waiting import until

SCRIPT = ROOT / "benchmarks" / "queue_jobs.py"


def queue(folder: Path, jobs: dict[str, dict[str, object]], *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "jobs.yaml").write_text(yaml.safe_dump(jobs, sort_keys=False))
    command = [sys.executable, str(SCRIPT), "jobs.yaml", "--state", "state", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_jobs_run_after_what_they_need_and_a_finished_one_never_again(tmp_path: Path) -> None:
    jobs = {
        "first": {"run": "echo first >> told"},
        "second": {"run": "echo second >> told", "needs": ["first"]},
    }
    assert queue(tmp_path, jobs).returncode == 0
    assert (tmp_path / "told").read_text().split() == ["first", "second"]
    again = queue(tmp_path, jobs)
    assert (again.returncode, again.stdout) == (0, "all done\n")
    assert (tmp_path / "told").read_text().split() == ["first", "second"]
    assert json.loads((tmp_path / "state/first.end").read_text())["code"] == 0


def test_who_waits_for_a_failed_job_is_named_and_the_others_run(tmp_path: Path) -> None:
    jobs = {
        "bad": {"run": "echo what went wrong; exit 3"},
        "after": {"run": "touch after", "needs": ["bad"]},
        "other": {"run": "touch other"},
    }
    ended = queue(tmp_path, jobs)
    assert ended.returncode == 1
    assert "bad: FAILED with 3" in ended.stdout
    assert ended.stdout.endswith("not done: bad, after\n")
    assert (tmp_path / "state/bad.log").read_text() == "what went wrong\n"
    assert (tmp_path / "other").exists()
    assert not (tmp_path / "after").exists()
    jobs["bad"]["run"] = "true"  # mended: the queue goes on with it
    assert queue(tmp_path, jobs).returncode == 0
    assert (tmp_path / "after").exists()


def test_the_card_is_never_overfull_and_who_is_alone_is_alone(tmp_path: Path) -> None:
    note = "echo +{0} >> told; sleep .7; echo -{0} >> told"
    sizes = {"a": 50, "b": 50, "c": 60}
    jobs: dict[str, dict[str, object]] = {n: {"run": note.format(n), "gigabytes": size} for n, size in sizes.items()}
    jobs["timed"] = {"run": note.format("timed"), "alone": True}
    jobs["last"] = {"run": note.format("last"), "gigabytes": 1}
    assert queue(tmp_path, jobs, "--gigabytes", "100").returncode == 0
    running: set[str] = set()
    for line in (tmp_path / "told").read_text().split():
        running = running | {line[1:]} if line[0] == "+" else running - {line[1:]}
        assert sum(sizes.get(name, 0) for name in running) <= 100
        assert "timed" not in running or running == {"timed"}
    told = (tmp_path / "told").read_text().split()
    assert told.index("-timed") < told.index("+last")  # nobody passes who would keep the card from emptying


def test_what_takes_nothing_of_the_card_does_not_wait_for_who_is_alone(tmp_path: Path) -> None:
    jobs: dict[str, dict[str, object]] = {
        "busy": {"run": "until [ -e fetched ]; do sleep .1; done"},
        "timed": {"run": "touch timed", "alone": True},
        "fetch": {"run": "touch fetched", "gigabytes": 0},
    }
    assert queue(tmp_path, jobs).returncode == 0
    assert (tmp_path / "timed").exists()


def test_a_file_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    jobs = {
        "wants": {"run": "cat model > got", "files": ["model"]},
        "makes": {"run": "sleep .5; echo weights > part; mv part model"},
    }
    assert queue(tmp_path, jobs).returncode == 0
    assert (tmp_path / "got").read_text() == "weights\n"


def test_only_some_with_what_they_need(tmp_path: Path) -> None:
    jobs = {
        "one": {"run": "touch one"},
        "two": {"run": "touch two", "needs": ["one"]},
        "three": {"run": "touch three"},
    }
    listed = queue(tmp_path, jobs, "--only", "two", "--list").stdout
    assert [line.split()[1] for line in listed.splitlines()] == ["one", "two"]
    assert queue(tmp_path, jobs, "--only", "two").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["jobs.yaml", "one", "two"]
    assert "no job four" in queue(tmp_path, jobs, "--only", "four").stderr


def test_what_stands_first_begins_first_even_where_its_needs_stand_behind_it(tmp_path: Path) -> None:
    jobs: dict[str, dict[str, object]] = {
        "look": {"run": "echo look >> told", "needs": ["train"]},
        "train": {"run": "echo train >> told"},
        "more": {"run": "echo more >> told"},
    }
    jobs["look"]["alone"] = True  # it waits for what it needs, and what it needs not for it
    assert queue(tmp_path, jobs, "--at-once", "1").returncode == 0
    assert (tmp_path / "told").read_text().split() == ["train", "look", "more"]
    listed = queue(tmp_path, jobs, "--only", "look", "--list").stdout
    assert [line.split()[1] for line in listed.splitlines()] == ["look", "train"]


def test_the_list_may_be_changed_while_it_is_worked_through(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("long: {run: until test -e go; do sleep .1; done}\nnever: {run: touch never, needs: [long]}\n")
    command = [sys.executable, str(SCRIPT), "jobs.yaml", "--state", "state"]
    with (tmp_path / "said").open("w") as said:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=said)
    try:
        until(lambda: "long: begins" in (tmp_path / "said").read_text())
        jobs.write_text("{")  # half written: nothing changes
        until(lambda: "the list stays as it was" in (tmp_path / "said").read_text())
        jobs.write_text("long: {run: never this}\nadded: {run: touch go, needs: }")
        until(lambda: "added has a strange `needs`: None" in (tmp_path / "said").read_text())
        jobs.write_text("long: {run: never this, gigabytes: 500}\nadded: {run: touch go}")
        assert running.wait(60) == 0
    finally:
        running.kill()
    told = (tmp_path / "said").read_text()
    assert "jobs.yaml is read anew: 2 jobs" in told  # the new one, and the one that ran
    assert json.loads((tmp_path / "state/long.end").read_text())["run"].startswith("until test")  # as it began
    assert told.endswith("all done\n")
    assert not (tmp_path / "never").exists()


def test_a_stopped_queue_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("long: {run: 'touch began; sleep 600; touch ended'}")
    command = [sys.executable, str(SCRIPT), "jobs.yaml", "--state", "state"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        until(lambda: (tmp_path / "began").exists())
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 143  # it waits for what it has ended
    finally:
        running.kill()
    assert not (tmp_path / "state/long.end").exists()  # not done: the next run begins it anew


def test_the_list_that_ships_names_configs_and_scripts_that_are_there(tmp_path: Path) -> None:
    jobs = yaml.safe_load((ROOT / "benchmarks" / "gpu.yaml").read_text())
    listed = queue(tmp_path, jobs, "--list")
    assert (listed.returncode, len(listed.stdout.splitlines())) == (0, len(jobs))
    named = {
        word for job in jobs.values() for word in job["run"].split() if word.startswith(("configs/", "benchmarks/"))
    }
    assert len(named) > 20
    assert [word for word in sorted(named) if not (ROOT / word).is_file()] == []


def test_a_list_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for text, said in {
        "a: {runn: x}": "a needs a `run`, and runn is unknown",
        "a: {needs: []}": "a needs a `run`",
        "a: true": "a needs a `run`, and True is unknown",
        "a: {run: 'true', needs: [b]}": "a needs b, which is not in the list",
        "{a: {run: 'true', needs: [b]}, b: {run: 'true', needs: [a]}}": "a needs b needs a, and none can begin",
        "a: {run: 'true', gigabytes: '24'}": "a has a strange `gigabytes`: '24'",
        "": "names no jobs",
        "{": "is no list of jobs",
    }.items():
        (tmp_path / "bad.yaml").write_text(text)
        command = [sys.executable, str(SCRIPT), "bad.yaml", "--state", "state"]
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 1
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not (tmp_path / "state").exists()
