"""Serve archives as a TorchServe worker does, in an interpreter without this repository.

Run as `python -I -S host.py SITE... < jobs.json > results.json`. SITE are folders with packages, whose `.pth` files are
not read. Each job runs in a process of its own, which is forked after the import of torch:

    {"folder": an unpacked archive, "name": of the model, "batches": [[{"body", "headers"}, ...], ...],
     "environment": {...}, "paths": [...], "metrics": a metrics file or null}

Its result has `batches` (status, headers, body in latin-1 for each row), `log` (messages by logger), and `files` (the
files of the imported serving modules); or `error`.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any


class Context:
    """A double of `ts.context.Context` with the members that a handler needs."""

    def __init__(self, job: dict[str, Any], headers: list[dict[str, str]]) -> None:
        self.model_name = job["name"]
        self.manifest = {"model": {"modelVersion": "1.0"}}
        self.model_yaml_config = {"maxWorkers": 1}
        self.metrics = metrics_of(job)
        self.system_properties = {"model_dir": job["folder"], "batch_size": len(headers), "gpu_id": None}
        self.given = headers
        self.statuses = [200 for _ in headers]
        self.told: list[dict[str, str]] = [{} for _ in headers]

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """The headers of a row."""
        return self.given[idx]

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Record the status of a row."""
        self.statuses[idx] = code

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Record the content type of a row."""
        self.told[idx]["content-type"] = value

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Record a header of a row."""
        self.told[idx][key] = value


class Metrics:
    """Every metric of a file, in the form in which TorchServe gives them to a handler."""

    def __init__(self, file: str) -> None:
        import yaml

        declared = yaml.safe_load(Path(file).read_text())["model_metrics"]
        self.known = {(one["name"], kind): one for kind, metrics in declared.items() for one in metrics}

    def get_metric(self, metric_name: str, metric_type: Any) -> Any:
        """A declared metric.

        Raises:
            KeyError: the metric is not declared.
        """
        found = self.known[metric_name, metric_type.value]
        return type("Metric", (), {"unit": found["unit"], "dimension_names": found["dimensions"]})()


def metrics_of(job: dict[str, Any]) -> Metrics | None:
    """The metrics that the server's metrics file declares."""
    return None if job["metrics"] is None else Metrics(job["metrics"])


class Messages(logging.Handler):
    """A log handler that collects all messages."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the message."""
        self.lines += record.getMessage().splitlines()


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """The answers of one archive."""
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.path[:0] = job["paths"]
    log = Messages()
    logging.getLogger().addHandler(log)
    logging.getLogger().setLevel(logging.INFO)
    spec = importlib.util.spec_from_file_location("neuron_lstm", Path(job["folder"]) / "neuron_lstm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handlers = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == "neuron_lstm"]
    assert len(handlers) == 1, handlers
    handler = handlers[0]()
    handler.initialize(Context(job, []))
    batches = []
    for batch in job["batches"]:
        context = Context(job, [row.get("headers", {}) for row in batch])
        rows = [{} if row.get("body") is None else {"body": row["body"].encode("latin-1")} for row in batch]
        bodies = handler.handle(rows, context)
        assert len(bodies) == len(rows)
        batches.append(
            [
                {"status": status, "headers": headers, "body": body.decode("latin-1")}
                for status, headers, body in zip(context.statuses, context.told, bodies, strict=True)
            ]
        )
    ours = [module for name, module in sys.modules.items() if name.startswith("torchserve_neuron_lstm")]
    return {"batches": batches, "log": log.lines, "files": [str(one.__file__) for one in ours]}


def forked(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a job, from a process of its own."""
    with tempfile.NamedTemporaryFile() as file:
        child = os.fork()
        if child == 0:
            try:
                result = serve(job)
            except BaseException as error:  # noqa: BLE001 - told to whoever started this
                result = {"error": f"{type(error).__name__}: {error}"}
            Path(file.name).write_text(json.dumps(result))
            os._exit(0)
        os.waitpid(child, 0)
        text = Path(file.name).read_text()
    return json.loads(text) if text else {"error": "the process died"}


def main() -> None:
    """Answer every job."""
    jobs = json.load(sys.stdin)
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent] + sys.argv[1:]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryFile() as noise:  # the output of engines is no result
        results = os.dup(1)
        os.dup2(noise.fileno(), 1)
        import torch

        torch.set_num_threads(1)
        assert importlib.util.find_spec("torchserve_neuron_lstm") is None
        told = [forked(job) for job in jobs]
    with os.fdopen(results, "w") as out:
        json.dump(told, out)


if __name__ == "__main__":
    main()
